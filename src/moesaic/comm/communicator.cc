#include "moesaic/comm/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "moesaic/comm/communicator_state.h"
#include "moesaic/core/error.h"

namespace moesaic {

Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Communicator::Communicator(Transport& transport, Topology topology, std::chrono::milliseconds timeout,
                           Tracer* tracer) {
  require(topology.world_size() == transport.world_size(), "the topology has {} ranks, the transport {}",
          topology.world_size(), transport.world_size());
  require(timeout.count() > 0, "the timeout must be positive, got {} ms", timeout.count());
  std::vector<int> world_ranks(static_cast<std::size_t>(topology.world_size()));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  state_ = std::make_unique<State>(&transport, std::move(topology), std::move(world_ranks), transport.rank(),
                                   0, timeout, TraceOptions{.tracer = tracer});
}

int Communicator::rank() const { return state_->rank; }
int Communicator::size() const { return state_->topology.world_size(); }
int Communicator::world_rank(int rank) const {
  return state_->world_ranks.at(static_cast<std::size_t>(rank));
}
const Topology& Communicator::topology() const { return state_->topology; }
Transport& Communicator::transport() const { return *state_->transport; }
std::chrono::milliseconds Communicator::timeout() const { return state_->timeout; }

Tracer* Communicator::tracer() const { return state_->trace.tracer; }

Communicator Communicator::split(std::span<const int> ranks, int channel, TraceOptions trace) const {
  require(channel >= 0 && channel < (1 << kChannelBits), "channel {} is not in 0..{}", channel,
          (1 << kChannelBits) - 1);
  std::vector<int> world_ranks;
  int previous = -1;
  for (const int rank : ranks) {
    require(rank > previous && rank < size(), "ranks of a group must ascend within 0..{}; got {} after {}",
            size() - 1, rank, previous);
    previous = rank;
    world_ranks.push_back(world_rank(rank));
  }
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  require(self != ranks.end(), "rank {} splits off a group it is not in", rank());
  require(channel != state_->channel || ranks.size() == 1,
          "channel {} is in use by the communicator that is split; take another", channel);
  if (trace.tracer == nullptr) trace.tracer = tracer();
  return Communicator(std::make_unique<State>(state_->transport, state_->topology.subset(ranks),
                                              std::move(world_ranks), static_cast<int>(self - ranks.begin()),
                                              channel, state_->timeout, std::move(trace)));
}

Communicator Communicator::split_all(int channel, TraceOptions trace) const {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return split(ranks, channel, std::move(trace));
}

Traffic Communicator::traffic() const {
  return {state_->inter_node_bytes, state_->intra_node_bytes, state_->messages};
}

}  // namespace moesaic
