#include "moesaic/cost/phase_loads.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(PhaseLoads, TakeTheBusiestRankAndCardOfEachPhase) {
  const Topology topology = Topology::from_nodes({0, 0, 1, 2});
  PhaseLoads loads(topology);
  loads.add_message(0, 0, 2, 100);  // node 0 sends 130, node 1 takes in 150
  loads.add_message(0, 1, 3, 30);
  loads.add_message(0, 3, 2, 50);
  loads.add_message(0, 0, 1, 7);
  loads.add_message(0, 1, 0, 9);
  loads.add_message(2, 2, 0, 40);
  loads.add_message(2, 2, 1, 0);  // an empty message is one, too
  loads.add_copy(2, 1, 11);
  loads.add_copy(2, 1, 11);
  loads.add_copy(2, 0, 12);
  const std::vector<PhaseLoad> expected{{.messages_between = 1,
                                         .bytes_between = 150,
                                         .messages_inside = 1,
                                         .bytes_inside = 9,
                                         .bytes_copied = 0},
                                        {},
                                        {.messages_between = 2,
                                         .bytes_between = 40,
                                         .messages_inside = 0,
                                         .bytes_inside = 0,
                                         .bytes_copied = 22}};
  EXPECT_EQ(loads.busiest(), expected);
  EXPECT_EQ(loads.card_bytes(), 150);  // node 1 took in 150 and sent 40: the two ways do not share

  Calibration calibration;
  calibration.between = {1, 0.5};
  calibration.inside = {0.25, 2};
  calibration.copy = {1, 10};
  EXPECT_DOUBLE_EQ(loads.seconds(calibration), 1 + 75 + 0.25 + 18 + 2 + 20 + 2.2);
}

}  // namespace
}  // namespace moesaic
