// calibrations.h: a calibration of round numbers, for prices that are worked out by hand.
#pragma once

#include "moesaic/comm/topology.h"
#include "moesaic/cost/calibration.h"

namespace moesaic {

// Between nodes `between_bytes_per_s` a card and 100 us a message; inside 1e9 bytes/s and 10 us. All coders:
// encode 1e9 alone and 0.5e9 together, decode 2e9 and 1e9. memcpy 8e9 and 4e9.
inline Calibration round_calibration(const Topology& topology, double between_bytes_per_s = 12.5e6) {
  Calibration calibration;
  calibration.machine = "a test";
  calibration.cores = 2;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    calibration.node_of_rank.push_back(topology.node_of(rank));
  }
  calibration.between_measured = topology.num_nodes() > 1;
  calibration.inside = {10e-6, 1e-9};
  calibration.between = {100e-6, 1 / between_bytes_per_s};
  calibration.copy = {8e9, 4e9};
  constexpr double kBits[] = {16, 10.6, 8.1, 9, 3.6, 2.7};  // by Method
  for (const codec::Method method : codec::kMethods) {
    calibration.rates_of(method) = {{1e9, 0.5e9}, {2e9, 1e9}, kBits[static_cast<int>(method)]};
  }
  calibration.gradients = {{1e9, 0.5e9}, {2e9, 1e9}, 10};
  return calibration;
}

}  // namespace moesaic
