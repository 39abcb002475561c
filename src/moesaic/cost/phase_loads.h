// phase_loads.h: what the messages of a collective ask of ranks and network cards, phase by phase, and what
// that costs by a Calibration.
//
// Local; plain sums, equal on all ranks that add the same. A phase begins when the one before is over: time
// is the sum over phases of messages and bytes between nodes, of the busiest rank and card (sent or taken in,
// whichever is more), those inside nodes, of the busiest rank, and copies, of the busiest rank.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/cost/calibration.h"

namespace moesaic {

// Of the busiest rank or card.
struct PhaseLoad {
  std::int64_t messages_between = 0, bytes_between = 0;
  std::int64_t messages_inside = 0, bytes_inside = 0;
  std::int64_t bytes_copied = 0;
  bool operator==(const PhaseLoad&) const = default;
};

class PhaseLoads {
 public:
  // Borrows `topology`.
  explicit PhaseLoads(const Topology& topology) : topology_(&topology) {}

  // phase: 0, 1, ...
  void add_message(int phase, int from, int to, std::int64_t bytes);
  void add_copy(int phase, int rank, std::int64_t bytes);

  std::vector<PhaseLoad> busiest() const;
  // Between nodes, of all phases together, of the busiest card.
  std::int64_t card_bytes() const;
  double seconds(const Calibration& calibration) const;

 private:
  struct Rank {
    std::int64_t messages_between = 0, messages_inside = 0, sent_inside = 0, received_inside = 0, copied = 0;
  };
  struct Card {
    std::int64_t sent = 0, received = 0;
  };
  struct Phase {
    std::vector<Rank> ranks;
    std::vector<Card> cards;
  };
  Phase& phase(int index);

  const Topology* topology_;
  std::vector<Phase> phases_;
};

}  // namespace moesaic
