#include "moesaic/cost/phase_loads.h"

#include <algorithm>

namespace moesaic {

PhaseLoads::Phase& PhaseLoads::phase(int index) {
  while (static_cast<int>(phases_.size()) <= index) {
    phases_.push_back({std::vector<Rank>(static_cast<std::size_t>(topology_->world_size())),
                       std::vector<Card>(static_cast<std::size_t>(topology_->num_nodes()))});
  }
  return phases_[static_cast<std::size_t>(index)];
}

void PhaseLoads::add_message(int index, int from, int to, std::int64_t bytes) {
  Phase& phase = this->phase(index);
  Rank& sender = phase.ranks[static_cast<std::size_t>(from)];
  const int here = topology_->node_of(from), there = topology_->node_of(to);
  if (here == there) {
    ++sender.messages_inside;
    sender.sent_inside += bytes;
    phase.ranks[static_cast<std::size_t>(to)].received_inside += bytes;
  } else {
    ++sender.messages_between;
    phase.cards[static_cast<std::size_t>(here)].sent += bytes;
    phase.cards[static_cast<std::size_t>(there)].received += bytes;
  }
}

void PhaseLoads::add_copy(int index, int rank, std::int64_t bytes) {
  phase(index).ranks[static_cast<std::size_t>(rank)].copied += bytes;
}

std::vector<PhaseLoad> PhaseLoads::busiest() const {
  std::vector<PhaseLoad> loads;
  for (const Phase& phase : phases_) {
    PhaseLoad& load = loads.emplace_back();
    for (const Rank& rank : phase.ranks) {
      load.messages_between = std::max(load.messages_between, rank.messages_between);
      load.messages_inside = std::max(load.messages_inside, rank.messages_inside);
      load.bytes_inside = std::max({load.bytes_inside, rank.sent_inside, rank.received_inside});
      load.bytes_copied = std::max(load.bytes_copied, rank.copied);
    }
    for (const Card& card : phase.cards) {
      load.bytes_between = std::max({load.bytes_between, card.sent, card.received});
    }
  }
  return loads;
}

std::int64_t PhaseLoads::card_bytes() const {
  std::int64_t most = 0;
  for (int node = 0; node < topology_->num_nodes(); ++node) {
    Card all;
    for (const Phase& phase : phases_) {
      all.sent += phase.cards[static_cast<std::size_t>(node)].sent;
      all.received += phase.cards[static_cast<std::size_t>(node)].received;
    }
    most = std::max({most, all.sent, all.received});
  }
  return most;
}

double PhaseLoads::seconds(const Calibration& calibration) const {
  double seconds = 0;
  for (const PhaseLoad& load : busiest()) {
    seconds += calibration.between.seconds(static_cast<double>(load.messages_between),
                                           static_cast<double>(load.bytes_between));
    seconds += calibration.inside.seconds(static_cast<double>(load.messages_inside),
                                          static_cast<double>(load.bytes_inside));
    seconds += static_cast<double>(load.bytes_copied) / calibration.copy.together_bytes_per_s;
  }
  return seconds;
}

}  // namespace moesaic
