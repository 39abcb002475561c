// communicator.h: a group of ranks that take part in collectives together.
//
// A Communicator is a view of a Transport: a list of world ranks, this rank's place in it, the group's
// Topology, a private range of tags and a timeout. Every member calls the same collectives in the same
// order on it; the n-th call of each member meets the n-th call of the others, whether it runs at once
// or in the background, so two operations may overlap without confusion. Different communicators
// (made by split) are independent of each other.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/comm/transport.h"
#include "moesaic/core/trace.h"

namespace moesaic {

// Bytes this rank handed to the transport, by destination: other nodes, other ranks of its node.
struct Traffic {
  std::int64_t inter_node_bytes = 0;
  std::int64_t intra_node_bytes = 0;
  std::int64_t messages = 0;
};

// How the operations of a group show in a trace.
struct TraceOptions {
  Tracer* tracer = nullptr;  // null: that of the communicator which is split
  Phase phase = Phase::kControl;
  std::string lane = "background";  // name of the thread that runs what is started in the background
};

class Communicator {
 public:
  // All ranks of `transport`, which must outlive this and everything split from it. So must `tracer`.
  Communicator(Transport& transport, Topology topology, std::chrono::milliseconds timeout,
               Tracer* tracer = nullptr);
  ~Communicator();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;

  int rank() const;  // in this group
  int size() const;
  int world_rank(int rank) const;
  const Topology& topology() const;  // of this group
  Transport& transport() const;
  std::chrono::milliseconds timeout() const;
  Tracer* tracer() const;  // null: nobody listens

  // A group of `ranks` (of this group, ascending, this rank among them). Sends nothing: members must
  // call with equal arguments, in the same order relative to other splits of this communicator by the
  // same ranks. `channel` (0..15) keeps the tags of groups that are alive together apart: two live
  // groups that share two ranks must differ in channel. InvalidArgument otherwise where visible.
  Communicator split(std::span<const int> ranks, int channel, TraceOptions trace = {}) const;
  // The same, of all its ranks.
  Communicator split_all(int channel, TraceOptions trace = {}) const;

  // What was sent through this communicator since it was made.
  Traffic traffic() const;

  struct State;
  State& state() const { return *state_; }

 private:
  explicit Communicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
