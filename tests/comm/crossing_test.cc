// The collectives that share what crossed between nodes: who carries for whom, bytes, order, and that no
// timing of the messages hangs them or changes a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moesaic/comm/algorithms.h"
#include "moesaic/core/bf16.h"
#include "tests/comm/simulated_ranks.h"
#include "tests/comm/thrown.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

using Counts = std::vector<std::int64_t>;
using Bytes = SimulatedRanks::Bytes;

std::vector<Topology> many_topologies() {
  std::vector<Topology> topologies;
  for (const int world_size : {1, 2, 3, 4, 7}) {
    for (Topology& topology : topologies_of(world_size)) topologies.push_back(std::move(topology));
  }
  const std::vector<std::vector<int>> uneven = {{0, 0, 0, 0, 1},
                                                {0, 1, 1, 1, 1},
                                                {1, 0, 1, 1, 2, 1, 0},
                                                {0, 0, 0, 1, 2, 2, 3, 3, 3, 3},
                                                {3, 2, 1, 0, 3, 2, 1, 3, 2, 3}};
  for (const auto& nodes : uneven) topologies.push_back(Topology::from_nodes(nodes));
  topologies.push_back(Topology::uniform(8, 2));
  topologies.push_back(Topology::uniform(8, 4));
  topologies.push_back(Topology::uniform(12, 3));
  return topologies;
}

// Two nodes so uneven that a rank of the small one carries for more ranks than a pair has slots.
Topology lopsided(int large) {
  std::vector<int> node_of_rank(static_cast<std::size_t>(large), 1);
  node_of_rank.insert(node_of_rank.begin() + 3, 2, 0);
  return Topology::from_nodes(node_of_rank);
}

Counts uneven_counts(int world_size) {
  Counts counts;
  for (int r = 0; r < world_size; ++r) counts.push_back((r * 3 + 1) % 5);
  return counts;
}

struct Crossing {
  std::int64_t messages = 0, bytes = 0, bytes_between_nodes = 0;
  auto operator<=>(const Crossing&) const = default;
};
std::ostream& operator<<(std::ostream& to, const Crossing& c) {
  return to << c.messages << " messages, " << c.bytes << " bytes, between nodes " << c.bytes_between_nodes;
}

Crossing sent(const Topology& topology, const std::vector<Schedule>& schedules) {
  Crossing all;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    for (const Op& op : schedules[static_cast<std::size_t>(rank)].ops) {
      if (op.kind != OpKind::kSend) continue;
      ++all.messages;
      all.bytes += op.source.bytes;
      if (topology.node_of(op.peer) != topology.node_of(rank)) all.bytes_between_nodes += op.source.bytes;
    }
  }
  return all;
}

std::vector<Schedule> gathers(const Topology& topology, const Counts& bytes, const Counts& offsets = {}) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    schedules.push_back(all_gather_v_schedule(topology, rank, bytes, offsets));
  }
  return schedules;
}

std::vector<Schedule> reduces(const Topology& topology, DType wire, const Counts& elements) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    schedules.push_back(reduce_scatter_v_schedule(topology, rank, wire, elements));
  }
  return schedules;
}

TEST(Counterparts, SpreadOverTheNodeAndAreEachOthersOnEqualNodes) {
  const Topology even = Topology::from_nodes({0, 1, 0, 1, 2, 2});
  EXPECT_EQ(even.counterpart(0, 1), 1);
  EXPECT_EQ(even.counterpart(2, 1), 3);
  EXPECT_EQ(even.counterpart(3, 0), 2);
  EXPECT_EQ(even.stands_for(3), (std::vector<int>{2, 5}));
  const Topology uneven = Topology::from_nodes({0, 0, 0, 0, 0, 1, 1});
  EXPECT_EQ(uneven.stands_for(5), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(uneven.stands_for(6), (std::vector<int>{1, 3}));
  EXPECT_EQ(uneven.stands_for(4), std::vector<int>{});
  EXPECT_EQ(uneven.peers_after(2), (std::vector<int>{3, 4, 0, 1}));
}

TEST(AllGatherSchedule, APartEntersEveryOtherNodeOnce) {
  for (const Topology& topology : many_topologies()) {
    SCOPED_TRACE(describe(topology));
    const std::int64_t w = topology.world_size();
    const Counts bytes = uneven_counts(topology.world_size());
    const std::int64_t total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    EXPECT_EQ(sent(topology, gathers(topology, bytes)),
              (Crossing{w * (w - 1), total * (w - 1), total * (topology.num_nodes() - 1)}));
  }
}

TEST(ReduceScatterSchedule, APartLeavesEveryOtherNodeOnce) {
  for (const Topology& topology : many_topologies()) {
    SCOPED_TRACE(describe(topology));
    const std::int64_t w = topology.world_size();
    const Counts elements = uneven_counts(topology.world_size());
    const std::int64_t total = 2 * std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
    EXPECT_EQ(sent(topology, reduces(topology, DType::kBF16, elements)),
              (Crossing{w * (w - 1), total * (w - 1), total * (topology.num_nodes() - 1)}));
  }
}

void expect_gathered(const Topology& topology, std::uint64_t seed) {
  SCOPED_TRACE(describe(topology));
  const Counts bytes = uneven_counts(topology.world_size());
  // The parts lie in falling order, so that back to back is not what comes out.
  Counts offsets(bytes.size());
  std::int64_t end = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  Bytes expected(static_cast<std::size_t>(end));
  std::vector<Bytes> inputs;
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    offsets[r] = end -= bytes[r];
    inputs.emplace_back(static_cast<std::size_t>(bytes[r]), static_cast<std::byte>(r + 1));
    std::copy(inputs[r].begin(), inputs[r].end(), expected.begin() + end);
  }
  std::vector<Bytes> outputs(bytes.size(), Bytes(expected.size()));
  SimulatedRanks(gathers(topology, bytes, offsets), inputs, outputs, seed).run();
  for (const Bytes& output : outputs) EXPECT_EQ(output, expected);
}

TEST(AllGatherSchedule, IsCompleteWhateverMessageIsFirst) {
  for (const Topology& topology : many_topologies()) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) expect_gathered(topology, seed);
  }
}

TEST(AllGatherSchedule, CarriesMorePartsThanThereAreSlots) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) expect_gathered(lopsided(135), seed);
}

template <typename T>
T value_of(std::size_t rank, std::size_t i) {
  const auto index = static_cast<std::uint64_t>(i * 64 + rank);
  const float value =
      std::ldexp(random_uniform(1, index) - 0.5f, static_cast<int>(random_bits(2, index) % 12));
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(value);
  } else {
    return value;
  }
}

template <typename T>
void expect_reduced(const Topology& topology, DType wire, const Counts& elements, std::uint64_t num_seeds) {
  SCOPED_TRACE(describe(topology));
  const std::int64_t total = std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
  std::vector<Bytes> inputs, outputs, expected;
  for (std::size_t r = 0; r < elements.size(); ++r) {
    Bytes& input = inputs.emplace_back(static_cast<std::size_t>(total) * sizeof(T));
    for (std::size_t i = 0; i < static_cast<std::size_t>(total); ++i) {
      const T value = value_of<T>(r, i);
      std::memcpy(&input[i * sizeof(T)], &value, sizeof(T));
    }
  }
  std::size_t begin = 0;
  for (const std::int64_t count : elements) {
    outputs.emplace_back(static_cast<std::size_t>(count) * sizeof(float));
    expected.emplace_back(static_cast<std::size_t>(count) * sizeof(float));
    std::vector<std::vector<const std::byte*>> parts;
    for (int node = 0; node < topology.num_nodes(); ++node) {
      auto& of_node = parts.emplace_back();
      for (const int r : topology.ranks_of(node)) {
        of_node.push_back(inputs[static_cast<std::size_t>(r)].data() + begin * sizeof(T));
      }
    }
    reference::ordered_sum(wire, parts, count, DType::kF32, expected.back().data());
    begin += static_cast<std::size_t>(count);
  }
  const std::vector<Schedule> schedules = reduces(topology, wire, elements);
  for (std::uint64_t seed = 0; seed < num_seeds; ++seed) {
    SimulatedRanks(schedules, inputs, outputs, seed).run();
    EXPECT_TRUE(outputs == expected) << "seed " << seed;
  }
}

TEST(ReduceScatterSchedule, HasTheBitsOfTheOneOrderWhateverMessageIsFirst) {
  for (const Topology& topology : many_topologies()) {
    expect_reduced<BF16>(topology, DType::kBF16, uneven_counts(topology.world_size()), 20);
    expect_reduced<float>(topology, DType::kF32, uneven_counts(topology.world_size()), 20);
  }
}

TEST(ReduceScatterSchedule, CarriesForMoreOwnersThanThereAreSlots) {
  expect_reduced<BF16>(lopsided(71), DType::kBF16, uneven_counts(73), 3);
}

// Parts of up to seven slices, one owner with none and one with a single element more than a slice: banks are
// used again, and a carrier's owners come to their ends at different times.
TEST(ReduceScatterSchedule, SlicesFollowEachOtherThroughTheBanks) {
  const std::vector<Topology> topologies = {Topology::uniform(4, 2), Topology::from_nodes({0, 0, 1, 1, 1, 1}),
                                            Topology::from_nodes({0, 1, 2, 0, 1})};
  for (const Topology& topology : topologies) {
    Counts elements = {900'000, 131'073, 0, 262'144, 400'000, 131'072};
    elements.resize(static_cast<std::size_t>(topology.world_size()));
    expect_reduced<BF16>(topology, DType::kBF16, elements, 4);
  }
}

}  // namespace
}  // namespace moesaic
