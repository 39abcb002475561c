#include "moesaic/cost/measure_links.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "moesaic/comm/executor.h"
#include "moesaic/comm/layout.h"
#include "moesaic/core/buffer.h"
#include "moesaic/cost/stopwatch.h"

namespace moesaic {
namespace {

constexpr std::int64_t kSmallMessage = 8;
constexpr std::int64_t kFirstMessage = 16 << 10;
constexpr std::int64_t kLongestMessage = 8 << 20;
constexpr std::int64_t kMostReceived = 32 << 20;  // by one rank at a time
constexpr int kSmallRounds = 2;                   // behind each other, for one time
constexpr int kFewestTimes = 3;

// Whom one rank sends to and hears from in one round.
struct Pattern {
  std::vector<int> to, from;
};

Pattern inside_pattern(const Topology& topology, int rank) {
  Pattern pattern;
  for (int peer = 0; peer < topology.world_size(); ++peer) {
    if (peer != rank && topology.node_of(peer) == topology.node_of(rank)) pattern.to.push_back(peer);
  }
  pattern.from = pattern.to;
  return pattern;
}

Pattern between_pattern(const Topology& topology, int rank) {
  Pattern pattern;
  const int node = topology.node_of(rank);
  for (int step = 1; step < topology.num_nodes(); ++step) {
    pattern.to.push_back(topology.counterpart(rank, (node + step) % topology.num_nodes()));
  }
  for (int peer = 0; peer < topology.world_size(); ++peer) {
    if (topology.node_of(peer) != node && topology.counterpart(peer, node) == rank)
      pattern.from.push_back(peer);
  }
  return pattern;
}

// The most that a rank (inside a node) or a node's card (between nodes) takes in or sends in a round.
struct Load {
  std::int64_t messages = 0;  // sent by one rank
  std::int64_t streams = 0;   // through the rank or the card
};

Load inside_load(const Topology& topology) {
  Load load;
  for (int node = 0; node < topology.num_nodes(); ++node) {
    load.messages = std::max<std::int64_t>(load.messages, std::ssize(topology.ranks_of(node)) - 1);
  }
  load.streams = load.messages;
  return load;
}

Load between_load(const Topology& topology) {
  Load load{.messages = topology.num_nodes() - 1};
  for (int node = 0; node < topology.num_nodes(); ++node) {
    const std::int64_t ranks = std::ssize(topology.ranks_of(node));
    load.streams = std::max({load.streams, ranks * load.messages, topology.world_size() - ranks});
  }
  return load;
}

class Rounds {
 public:
  Rounds(Communicator& world, Pattern pattern)
      : world_(world), pattern_(std::move(pattern)), send_(kLongestMessage), receive_(kMostReceived) {
    std::ranges::fill(send_.span(), std::byte{1});  // its pages are there before a clock runs
    std::ranges::fill(receive_.span(), std::byte{0});
  }

  // Seconds of one round of the slowest rank, over `rounds` of them.
  double time(std::int64_t message_bytes, int rounds) {
    Schedule schedule;
    for (const int peer : pattern_.to) {
      schedule.ops.push_back(send_op(peer, {BufferId::kInput, 0, message_bytes}));
    }
    for (std::size_t i = 0; i < pattern_.from.size(); ++i) {
      const auto begin = static_cast<std::int64_t>(i) * message_bytes;
      schedule.ops.push_back(receive_op(pattern_.from[i], {BufferId::kOutput, begin, message_bytes}));
    }
    (void)slowest(world_, 0);  // all begin together
    const Stopwatch watch;
    for (int round = 0; round < rounds; ++round) {
      execute(world_, "calibrate", schedule, {.input = send_.span(), .output = receive_.span()});
    }
    return slowest(world_, watch.seconds()) / rounds;
  }

  // The least of several times, as many as fit in `seconds`, at least kFewestTimes unless one alone takes
  // longer than that: what the link does when the machine leaves it alone.
  double least_time(std::int64_t message_bytes, int rounds, double seconds) {
    double least = std::numeric_limits<double>::infinity(), spent = 0;
    for (int times = 0; spent < seconds && (times < kFewestTimes || spent + least * rounds < seconds);
         ++times) {
      const double seconds_now = time(message_bytes, rounds);
      least = std::min(least, seconds_now);
      spent += seconds_now * rounds;
    }
    return least;
  }

 private:
  Communicator& world_;
  Pattern pattern_;
  Buffer send_, receive_;
};

Link measure(Communicator& world, Pattern pattern, Load load, std::int64_t most_senders, double budget_s) {
  Rounds rounds(world, std::move(pattern));
  (void)rounds.time(kSmallMessage, 1);  // makes connections
  const double small = rounds.least_time(kSmallMessage, kSmallRounds, budget_s / 6);

  // Long enough that what a round costs besides its bytes does not count, short enough for three of them.
  const std::int64_t longest =
      std::min(kLongestMessage, kMostReceived / std::max<std::int64_t>(most_senders, 1));
  const double wanted = budget_s / 4;
  std::int64_t bytes = std::min(kFirstMessage, longest);
  double round = rounds.time(bytes, 1);
  while (bytes < longest && round < wanted / 2) {
    const double growth = round > 0 ? std::clamp(wanted / round, 2.0, 8.0) : 8.0;
    bytes = std::min(longest, static_cast<std::int64_t>(static_cast<double>(bytes) * growth));
    round = rounds.time(bytes, 1);
  }
  const double large = rounds.least_time(bytes, 1, 3 * wanted);
  return {
      .seconds_per_message = small / static_cast<double>(load.messages),
      .seconds_per_byte = (large - std::min(small, large / 2)) / static_cast<double>(bytes * load.streams)};
}

}  // namespace

MeasuredLinks measure_links(Communicator& world, double budget_s) {
  const Topology& topology = world.topology();
  const Load inside = inside_load(topology), between = between_load(topology);
  MeasuredLinks links;
  links.between_measured = between.messages > 0;
  // Most of it where messages take longest.
  const bool both = inside.messages > 0 && between.messages > 0;
  if (inside.messages > 0) {
    links.inside = measure(world, inside_pattern(topology, world.rank()), inside, inside.messages,
                           both ? budget_s / 4 : budget_s);
  }
  if (between.messages > 0) {
    links.between = measure(world, between_pattern(topology, world.rank()), between, topology.world_size(),
                            both ? budget_s * 3 / 4 : budget_s);
  }
  if (inside.messages == 0) links.inside = links.between;
  if (between.messages == 0) links.between = links.inside;
  return links;
}

}  // namespace moesaic
