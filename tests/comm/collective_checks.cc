#include "tests/comm/collective_checks.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/rng.h"

namespace moesaic {
namespace {

using Counts = std::vector<std::int64_t>;

template <typename T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what) {
  if (got.size() != expected.size()) throw std::runtime_error(what + ": sizes differ");
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
      throw std::runtime_error(
          fmt::format("{}: element {} of {} differs from the oracle", what, i, got.size()));
    }
  }
}

std::size_t sum(const Counts& counts) {
  return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
}

// Counts per rank that exercise zeros, unevenness and more than one block of the sum.
std::vector<Counts> count_patterns(int world_size) {
  const auto n = static_cast<std::size_t>(world_size);
  Counts uneven(n), one_rank(n, 0);
  for (std::size_t r = 0; r < n; ++r) uneven[r] = static_cast<std::int64_t>((r * 3 + 1) % 5) * 7;
  one_rank[n - 1] = 11;
  return {Counts(n, 5), uneven, one_rank, Counts(n, 0), Counts(n, 4099)};
}

// Element i of what `rank` contributes: magnitudes differ widely, so that another order gives other bits.
float real_value(int rank, std::size_t i) {
  const auto index = static_cast<std::uint64_t>(i) * 64 + static_cast<std::uint64_t>(rank);
  return std::ldexp(random_uniform(1, index) - 0.5f, static_cast<int>(random_bits(2, index) % 12));
}
// Small integers: every sum is exact.
float integer_value(int rank, std::size_t i) {
  return static_cast<float>((rank * 31 + static_cast<int>(i)) % 17 - 8);
}

float widen(float value) { return value; }
float widen(BF16 value) { return to_float(value); }
template <typename T>
T narrow(float value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(value);
  } else {
    return value;
  }
}

// Contract 1, as it reads: ranks of a node ascending in fp32, rounded to the wire; nodes ascending in fp32.
template <typename Wire, typename Value>
float ordered_sum_oracle(const Topology& topology, Value value, std::size_t i) {
  float total = 0;
  for (int node = 0; node < topology.num_nodes(); ++node) {
    float of_node = 0;
    for (const int rank : topology.ranks_of(node)) {
      const float part = widen(narrow<Wire>(value(rank, i)));
      of_node = rank == topology.ranks_of(node)[0] ? part : of_node + part;
    }
    const float rounded = widen(narrow<Wire>(of_node));
    total = node == 0 ? rounded : total + rounded;
  }
  return total;
}

void check_barrier(Communicator& world) {
  for (int i = 0; i < 20; ++i) barrier(world);
}

void check_broadcast(Communicator& world) {
  for (int root = 0; root < world.size(); ++root) {
    for (const std::size_t n : {0u, 1u, 1000u}) {
      std::vector<float> expected(n);
      for (std::size_t i = 0; i < n; ++i) expected[i] = real_value(root, i);
      std::vector<float> buffer = world.rank() == root ? expected : std::vector<float>(n, -1.0f);
      broadcast(world, std::as_writable_bytes(std::span(buffer)), root);
      expect_equal(buffer, expected, fmt::format("broadcast from {}", root));
    }
  }
}

void check_all_gather(Communicator& world) {
  for (const Counts& counts : count_patterns(world.size())) {
    std::vector<float> mine, expected;
    Counts bytes;
    for (int r = 0; r < world.size(); ++r) {
      const std::int64_t count = counts[static_cast<std::size_t>(r)];
      bytes.push_back(count * 4);
      for (std::int64_t i = 0; i < count; ++i) {
        expected.push_back(real_value(r, static_cast<std::size_t>(i)));
        if (r == world.rank()) mine.push_back(expected.back());
      }
    }
    std::vector<float> all(sum(counts), -1.0f);
    all_gather_v(world, std::as_bytes(std::span(mine)), bytes, std::as_writable_bytes(std::span(all)));
    expect_equal(all, expected, "all_gather_v");
  }
}

void check_all_to_all(Communicator& world) {
  // Rank a has (a*3 + b*5) % 4 rows for rank b, times a scale: zeros in many places, everywhere with scale 0.
  for (const std::int64_t scale : {0, 1, 700}) {
    const auto rows = [&](int a, int b) { return (a * 3 + b * 5) % 4 * scale; };
    std::vector<std::int32_t> send, expected;
    Counts send_bytes, receive_bytes;
    for (int peer = 0; peer < world.size(); ++peer) {
      send_bytes.push_back(rows(world.rank(), peer) * 4);
      receive_bytes.push_back(rows(peer, world.rank()) * 4);
      for (std::int64_t i = 0; i < rows(world.rank(), peer); ++i) {
        send.push_back(static_cast<std::int32_t>(i * 100 + world.rank() * 10 + peer));
      }
      for (std::int64_t i = 0; i < rows(peer, world.rank()); ++i) {
        expected.push_back(static_cast<std::int32_t>(i * 100 + peer * 10 + world.rank()));
      }
    }
    std::vector<std::int32_t> received(expected.size(), -1);
    all_to_all_v(world, std::as_bytes(std::span(send)), send_bytes,
                 std::as_writable_bytes(std::span(received)), receive_bytes);
    expect_equal(received, expected, "all_to_all_v");
  }
}

// Parts of several slices, of none, of a slice exactly (fp32) or of one more element than two (bf16).
Counts sliced_counts(int world_size) {
  const std::array<std::int64_t, 4> pattern = {140'001, 0, 65'536, 262'145};
  Counts counts;
  for (int r = 0; r < world_size; ++r)
    counts.push_back(pattern[static_cast<std::size_t>(r) % pattern.size()]);
  return counts;
}

template <typename Wire, typename Value>
void check_reduce_scatter_of(Communicator& world, DType wire, Value value, const std::string& what,
                             const std::vector<Counts>& patterns) {
  for (const Counts& counts : patterns) {
    std::vector<Wire> input(sum(counts));
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = narrow<Wire>(value(world.rank(), i));
    const auto first = static_cast<std::size_t>(
        std::accumulate(counts.begin(), counts.begin() + world.rank(), std::int64_t{0}));
    std::vector<float> expected(static_cast<std::size_t>(counts[static_cast<std::size_t>(world.rank())]));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = ordered_sum_oracle<Wire>(world.topology(), value, first + i);
    }
    std::vector<float> output(expected.size(), -1.0f);
    reduce_scatter_v(world, std::as_bytes(std::span(input)), wire, counts, output);
    expect_equal(output, expected, what);
  }
}

void check_reduce_scatter(Communicator& world) {
  const std::vector<Counts> small = count_patterns(world.size()), sliced = {sliced_counts(world.size())};
  check_reduce_scatter_of<float>(world, DType::kF32, integer_value, "reduce_scatter_v fp32 integers", small);
  check_reduce_scatter_of<float>(world, DType::kF32, real_value, "reduce_scatter_v fp32", small);
  check_reduce_scatter_of<BF16>(world, DType::kBF16, integer_value, "reduce_scatter_v bf16 integers", small);
  check_reduce_scatter_of<BF16>(world, DType::kBF16, real_value, "reduce_scatter_v bf16", small);
  check_reduce_scatter_of<float>(world, DType::kF32, integer_value, "reduce_scatter_v fp32 in slices",
                                 sliced);
  check_reduce_scatter_of<BF16>(world, DType::kBF16, integer_value, "reduce_scatter_v bf16 in slices",
                                sliced);
}

void check_all_reduce(Communicator& world) {
  for (const std::size_t n : {0u, 1u, 37u, 5000u}) {
    std::vector<float> singles(n), single_sums(n);
    std::vector<double> doubles(n), double_sums(n);
    std::vector<std::int64_t> integers(n), integer_sums(n);
    const auto exact = [](int rank, std::size_t i) {
      return (std::int64_t{1} << 55) + static_cast<std::int64_t>(i) * 1000 -
             rank;  // not a sum that fp64 could hold
    };
    const auto precise = [](int rank, std::size_t i) { return real_value(rank, i) / 3.0; };
    for (std::size_t i = 0; i < n; ++i) {
      singles[i] = real_value(world.rank(), i);
      doubles[i] = precise(world.rank(), i);
      integers[i] = exact(world.rank(), i);
      single_sums[i] = ordered_sum_oracle<float>(world.topology(), real_value, i);
      double_sums[i] = precise(0, i);
      for (int r = 1; r < world.size(); ++r) double_sums[i] += precise(r, i);
      for (int r = 0; r < world.size(); ++r) integer_sums[i] += exact(r, i);
    }
    all_reduce(world, std::span(singles));
    all_reduce(world, std::span(doubles));
    all_reduce(world, std::span(integers));
    expect_equal(singles, single_sums, "all_reduce fp32");
    expect_equal(doubles, double_sums, "all_reduce fp64");
    expect_equal(integers, integer_sums, "all_reduce int64");
  }
}

// Two operations under way in the background while others run in front; waited for in the other order.
void check_overlap(Communicator& world) {
  const auto n = static_cast<std::size_t>(world.size());
  const Counts bytes(n, 4000), elements(n, 1000);
  for (int round = 0; round < 5; ++round) {
    const std::vector<std::int32_t> mine(1000, world.rank() * 10 + round);
    std::vector<std::int32_t> all(1000 * n);
    const std::vector<float> input(1000 * n, static_cast<float>(world.rank() + round));
    std::vector<float> output(1000);
    Pending gather = start_all_gather_v(world, std::as_bytes(std::span(mine)), bytes,
                                        std::as_writable_bytes(std::span(all)));
    Pending reduce =
        start_reduce_scatter_v(world, std::as_bytes(std::span(input)), DType::kF32, elements, output);
    check_all_to_all(world);
    std::vector<std::int64_t> count{world.rank()};
    all_reduce(world, std::span(count));
    reduce.wait();
    gather.wait();
    gather.wait();  // over already: nothing happens
    const int sum_of_ranks = world.size() * (world.size() - 1) / 2;
    std::vector<std::int32_t> gathered;
    for (int r = 0; r < world.size(); ++r) gathered.insert(gathered.end(), 1000, r * 10 + round);
    expect_equal(all, gathered, "all_gather_v in the background");
    expect_equal(output, std::vector<float>(1000, static_cast<float>(sum_of_ranks + world.size() * round)),
                 "reduce_scatter_v in the background");
    expect_equal(count, {sum_of_ranks}, "all_reduce beside two others");
  }
}

// Large messages arrive while every rank computes and calls nothing: what overlap stands on. 2 MiB a rank is
// past any eager limit, so each needs its receiver's answer.
void check_progress_while_computing(Communicator& world) {
  const auto n = static_cast<std::size_t>(world.size());
  const std::size_t count = std::size_t{1} << 19;
  const std::vector<std::int32_t> mine(count, world.rank() + 1);
  std::vector<std::int32_t> all(count * n);
  Pending gather = start_all_gather_v(world, std::as_bytes(std::span(mine)),
                                      Counts(n, static_cast<std::int64_t>(count) * 4),
                                      std::as_writable_bytes(std::span(all)));
  double work = 1.0;
  const auto give_up = Clock::now() + std::chrono::seconds(60);
  while (!gather.done() && Clock::now() < give_up) {
    for (int i = 0; i < 1000; ++i) work = work * 1.0000001 + 1e-9;
  }
  const bool arrived = gather.done();
  gather.wait();
  expect_equal<std::int64_t>({arrived, work > 0}, {1, 1}, "the gather was done without a wait");
  for (std::size_t r = 0; r < n; ++r) {
    expect_equal<std::int32_t>({all[r * count], all[r * count + count - 1]},
                               {static_cast<std::int32_t>(r + 1), static_cast<std::int32_t>(r + 1)},
                               "gathered");
  }
}

// Groups that share ranks are alive together: exchange groups, co-owners, a background channel of all, nested
// ones.
void check_groups(Communicator& world) {
  std::vector<int> everyone, alike, neighbours;
  for (int r = 0; r < world.size(); ++r) {
    everyone.push_back(r);
    if (r % 2 == world.rank() % 2) alike.push_back(r);
    if (r / 2 == world.rank() / 2) neighbours.push_back(r);
  }
  Communicator exchange = world.split(alike, 1);
  Communicator owners = world.split(neighbours, 2);
  Communicator background = world.split(everyone, 3);
  std::vector<int> first_two{0};
  if (exchange.size() > 1) first_two.push_back(1);
  const bool nested = exchange.rank() < 2;

  const Counts bytes(static_cast<std::size_t>(world.size()), 4);
  const std::int32_t mine = world.rank();
  std::vector<std::int32_t> all(bytes.size(), -1);
  Pending gather = start_all_gather_v(background, std::as_bytes(std::span(&mine, 1)), bytes,
                                      std::as_writable_bytes(std::span(all)));
  const auto expect_sum = [&](Communicator& group, const std::vector<int>& ranks, const char* what) {
    std::vector<std::int64_t> value{world.rank()};
    all_reduce(group, std::span(value));
    expect_equal(value, {std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0})}, what);
  };
  for (int i = 0; i < 5; ++i) {
    expect_sum(exchange, alike, "exchange group");
    expect_sum(owners, neighbours, "co-owners");
    if (nested) {
      Communicator pair = exchange.split(first_two, 4);
      std::vector<int> world_ranks;
      for (const int r : first_two) world_ranks.push_back(exchange.world_rank(r));
      expect_sum(pair, world_ranks, "group of a group");
      if (pair.topology().world_size() != pair.size())
        throw std::runtime_error("the group's topology is not its own");
    }
    expect_sum(world, everyone, "world");
  }
  gather.wait();
  expect_equal(all, std::vector<std::int32_t>(everyone.begin(), everyone.end()), "background group");
}

// What all ranks sent through a group of their own while `run` ran.
template <typename Run>
std::vector<std::int64_t> total_traffic(Communicator& world, Run run) {
  Communicator group = world.split_all(5);
  run(group);
  const Traffic traffic = group.traffic();
  std::vector<std::int64_t> total{traffic.intra_node_bytes, traffic.inter_node_bytes, traffic.messages};
  all_reduce(world, std::span(total));
  return total;
}

// A part crosses to (or, summed, from) each other node once.
void check_traffic(Communicator& world) {
  const Counts counts = count_patterns(world.size())[1];
  const auto total = static_cast<std::int64_t>(sum(counts));
  const std::int64_t w = world.size(), crossings = world.topology().num_nodes() - 1;
  const std::vector<std::byte> mine(static_cast<std::size_t>(counts[static_cast<std::size_t>(world.rank())]));
  std::vector<std::byte> all(sum(counts));
  const auto gather = [&](Communicator& group) { all_gather_v(group, mine, counts, all); };
  expect_equal(total_traffic(world, gather), {total * (w - 1 - crossings), total * crossings, w * (w - 1)},
               "traffic of all_gather_v");
  const std::vector<BF16> input(sum(counts));
  std::vector<float> output(mine.size());
  const auto reduce = [&](Communicator& group) {
    reduce_scatter_v(group, std::as_bytes(std::span(input)), DType::kBF16, counts, output);
  };
  expect_equal(total_traffic(world, reduce),
               {2 * total * (w - 1 - crossings), 2 * total * crossings, w * (w - 1)},
               "traffic of reduce_scatter_v");
}

}  // namespace

const std::vector<CollectiveCheck>& collective_checks() {
  static const std::vector<CollectiveCheck> checks{
      {"Barrier", check_barrier},
      {"Broadcast", check_broadcast},
      {"AllGather", check_all_gather},
      {"AllToAll", check_all_to_all},
      {"ReduceScatter", check_reduce_scatter},
      {"AllReduce", check_all_reduce},
      {"Overlap", check_overlap},
      {"ProgressWhileComputing", check_progress_while_computing},
      {"Groups", check_groups},
      {"Traffic", check_traffic},
  };
  return checks;
}

}  // namespace moesaic
