// Collectives among ranks that are threads (inproc), against memcpy by as many threads of as many bytes as
// each rank receives (reduce_scatter_v: reads). Under MPI: mpi_collectives.cc. Ours and memcpy are started by
// the same team of threads, so both pay its wake-up, which dominates the small size. Payloads are small
// integers: sums are exact, order shows in the others.
#include "moesaic/comm/collectives.h"

#include <fmt/format.h>

#include <cstring>

#include "bench/benchmarks.h"
#include "bench/mpi_job.h"
#include "bench/payloads.h"
#include "bench/team.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/buffer.h"

namespace moesaic::bench {
namespace {

constexpr std::chrono::milliseconds kTimeout{60'000};
constexpr int kMaxRanks = 4;

struct World {
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Communicator> ranks;
  Team team;

  explicit World(int size) : transports(make_inproc_transports(size)), team(size) {
    for (auto& transport : transports) ranks.emplace_back(*transport, Topology::one_node(size), kTimeout);
  }
  int size() const { return static_cast<int>(ranks.size()); }
};

std::vector<std::int64_t> in_bytes(std::vector<std::int64_t> elements, DType dtype) {
  for (std::int64_t& n : elements) n *= size_of(dtype);
  return elements;
}

void append(Buffer& buffer, DType dtype, std::int64_t& at, float value) {
  if (dtype == DType::kF32) {
    buffer.as<float>()[at++] = value;
  } else {
    buffer.as<BF16>()[at++] = to_bf16(value);
  }
}

// One rank's memory.
struct Side {
  Buffer send, receive, expected, copied;
};

// Measures call(rank), which fills every side's `receive`; the baseline copies `baseline_bytes` on every
// thread.
void measure(Report& report, World& world, const std::string& name, std::int64_t baseline_bytes,
             std::vector<Side>& sides, const std::function<void(int rank)>& call) {
  Buffer source(baseline_bytes);
  std::memset(source.data(), 1, static_cast<std::size_t>(baseline_bytes));
  for (Side& side : sides) side.copied = Buffer(baseline_bytes);
  const std::function<void(int)> copy = [&](int rank) {
    std::memcpy(sides[rank].copied.data(), source.data(), static_cast<std::size_t>(baseline_bytes));
  };
  report.measure({.name = "inproc " + name,
                  .work = {.bytes = 2.0 * static_cast<double>(baseline_bytes) * world.size()},
                  .run = [&] { world.team.run(call); },
                  .baseline = "memcpy",
                  .run_baseline = [&] { world.team.run(copy); },
                  .check = [&]() -> std::string {
                    for (Side& side : sides) {
                      std::memset(side.receive.data(), 0xff, static_cast<std::size_t>(side.receive.bytes()));
                    }
                    world.team.run(call);
                    for (int rank = 0; rank < world.size(); ++rank) {
                      const Side& side = sides[rank];
                      if (std::memcmp(side.receive.data(), side.expected.data(),
                                      static_cast<std::size_t>(side.expected.bytes())) != 0) {
                        return fmt::format("rank {} received other bytes than were sent to it", rank);
                      }
                    }
                    return "";
                  }});
}

void all_gather(Report& report, World& world, DType dtype, std::int64_t mean) {
  const int W = world.size();
  const std::vector<std::int64_t> parts = uneven_parts(W, mean);
  const std::vector<std::int64_t> bytes = in_bytes(parts, dtype);
  std::vector<Side> sides(W);
  for (int rank = 0; rank < W; ++rank) {
    Side& side = sides[rank];
    side = {Buffer(bytes[rank]), Buffer(total(bytes)), Buffer(total(bytes)), {}};
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < parts[rank]; ++i) append(side.send, dtype, at, payload(rank, 0, i));
    at = 0;
    for (int from = 0; from < W; ++from) {
      for (std::int64_t i = 0; i < parts[from]; ++i) append(side.expected, dtype, at, payload(from, 0, i));
    }
  }
  measure(report, world, fmt::format("all_gather_v W{} {} {}", W, mean, name_of(dtype)), total(bytes), sides,
          [&](int rank) {
            all_gather_v(world.ranks[rank], sides[rank].send.span(), bytes, sides[rank].receive.span());
          });
}

void all_to_all(Report& report, World& world, DType dtype, std::int64_t mean) {
  const int W = world.size();
  const std::vector<std::int64_t> parts = uneven_parts(W, mean);  // what everyone sends to rank r
  const std::vector<std::int64_t> send_bytes = in_bytes(parts, dtype);
  std::vector<Side> sides(W);
  for (int rank = 0; rank < W; ++rank) {
    Side& side = sides[rank];
    side = {Buffer(total(send_bytes)), Buffer(W * send_bytes[rank]), Buffer(W * send_bytes[rank]), {}};
    std::int64_t at = 0;
    for (int to = 0; to < W; ++to) {
      for (std::int64_t i = 0; i < parts[to]; ++i) append(side.send, dtype, at, payload(rank, to, i));
    }
    at = 0;
    for (int from = 0; from < W; ++from) {
      for (std::int64_t i = 0; i < parts[rank]; ++i) append(side.expected, dtype, at, payload(from, rank, i));
    }
  }
  measure(report, world, fmt::format("all_to_all_v W{} {} {}", W, mean, name_of(dtype)), total(send_bytes),
          sides, [&](int rank) {
            const std::vector<std::int64_t> receive_bytes(W, send_bytes[rank]);
            all_to_all_v(world.ranks[rank], sides[rank].send.span(), send_bytes, sides[rank].receive.span(),
                         receive_bytes);
          });
}

void reduce_scatter(Report& report, World& world, DType wire, std::int64_t mean) {
  const int W = world.size();
  const std::vector<std::int64_t> parts = uneven_parts(W, mean);
  const std::int64_t input_bytes = total(parts) * size_of(wire);
  std::vector<Side> sides(W);
  for (int rank = 0; rank < W; ++rank) {
    Side& side = sides[rank];
    side = {Buffer(input_bytes), Buffer(4 * parts[rank]), Buffer(4 * parts[rank]), {}};
    std::int64_t at = 0;
    for (int to = 0; to < W; ++to) {
      for (std::int64_t i = 0; i < parts[to]; ++i) append(side.send, wire, at, payload(rank, to, i));
    }
    for (std::int64_t i = 0; i < parts[rank]; ++i) {
      float sum = 0;
      for (int from = 0; from < W; ++from) sum += payload(from, rank, i);
      side.expected.as<float>()[i] = sum;
    }
  }
  measure(report, world, fmt::format("reduce_scatter_v W{} {} {}", W, mean, name_of(wire)), input_bytes,
          sides, [&](int rank) {
            reduce_scatter_v(world.ranks[rank], sides[rank].send.span(), wire, parts,
                             std::span<float>(sides[rank].receive.as<float>(), parts[rank]));
          });
}

void run_collectives(Report& report, const std::string& size) {
  for (const int world_size : {2, kMaxRanks}) {
    World world(world_size);
    for (const std::int64_t mean : collective_sizes(size)) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        all_gather(report, world, dtype, mean);
        reduce_scatter(report, world, dtype, mean);
        all_to_all(report, world, dtype, mean);
      }
    }
  }
  // Two ranks only: MPI's own collectives spin, and more ranks than cores would time the scheduler.
  add_rows_of_mpi_job(report, 2, "collectives", size);
}

}  // namespace

std::vector<std::int64_t> collective_sizes(const std::string& size) {
  if (size == "tiny") return {1 << 6};
  return {1 << 12, 1 << 17, 1 << 21};
}

Benchmark collectives() {
  return {.name = "collectives",
          .about = "inproc collectives (2 and 4 ranks) against memcpy, those over MPI (2) against MPI's own",
          .threads = kMaxRanks,
          .sizes = {"standard", "tiny"},
          .run = run_collectives};
}

}  // namespace moesaic::bench
