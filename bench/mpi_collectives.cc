// Our collectives over MPI messages against MPI's own collectives of the same bytes, in turn in one MPI job,
// fp32 and int64. The two must give the same bytes on every rank. Both are started by the rank's main thread.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "bench/benchmarks.h"
#include "bench/payloads.h"
#include "bench/turns.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/core/buffer.h"

namespace moesaic::bench {
namespace {

constexpr std::chrono::milliseconds kTimeout{60'000};
constexpr int kRounds = 21;

using Op = std::function<void(Buffer& receive)>;

class Job {
 public:
  Job(Report& report, Transport& transport)
      : report_(report), world_(transport, Topology::one_node(transport.world_size()), kTimeout) {
    MPI_Comm_dup(MPI_COMM_WORLD, &native_);
  }
  ~Job() { MPI_Comm_free(&native_); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Communicator& world() { return world_; }
  MPI_Comm native() const { return native_; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }

  void compare(const std::string& name, std::int64_t moved_bytes, std::int64_t receive_bytes, const Op& ours,
               const Op& native) {
    const std::string full_name = "mpi " + name;
    Buffer received(receive_bytes), expected(receive_bytes);
    const auto same = [&] {
      std::memset(received.data(), 0xff, static_cast<std::size_t>(receive_bytes));
      ours(received);
      native(expected);
      int good = std::memcmp(received.data(), expected.data(), static_cast<std::size_t>(receive_bytes)) == 0;
      MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, native_);
      return good == 1;
    };
    const auto wrong = [&] {
      report_.fail(full_name, "moesaic", "time_us", "us",
                   "some rank has other bytes than by MPI's own collective");
    };
    if (!same()) return wrong();
    // The ranks must agree on it, so it does not follow from a clock.
    const std::int64_t calls =
        std::clamp<std::int64_t>((4 << 20) / std::max<std::int64_t>(1, moved_bytes), 1, 200);
    const auto repeated = [&](const Op& op, Buffer& receive) {
      return [&op, &receive, calls, this] {
        for (std::int64_t i = 0; i < calls; ++i) op(receive);
        MPI_Barrier(native_);
      };
    };
    const auto together = [this] { MPI_Barrier(native_); };
    std::vector<Contender> contenders = {{"moesaic", repeated(ours, received), together},
                                         {"mpi_native", repeated(native, expected), together}};
    take_turns(contenders, kRounds);
    if (!same()) return wrong();
    for (Contender& contender : contenders) {
      for (double& us : contender.us) us /= static_cast<double>(calls);
    }
    add_times(report_, full_name, "time_us", contenders);
    report_.add({full_name, "moesaic", "time_over_native", median_ratio(contenders[0], contenders[1]),
                 "ratio", true});
  }

 private:
  Report& report_;
  Communicator world_;
  MPI_Comm native_ = MPI_COMM_NULL;
};

// MPI's counts are 32-bit.
std::vector<int> narrow(const std::vector<std::int64_t>& counts) { return {counts.begin(), counts.end()}; }

std::vector<int> starts(const std::vector<int>& counts) {
  std::vector<int> begin(counts.size(), 0);
  for (std::size_t i = 1; i < counts.size(); ++i) begin[i] = begin[i - 1] + counts[i - 1];
  return begin;
}

// fp32 parts of this rank for rank 0, 1, ...
Buffer filled(int rank, const std::vector<std::int64_t>& parts) {
  Buffer buffer(4 * total(parts));
  float* at = buffer.as<float>();
  for (std::size_t to = 0; to < parts.size(); ++to) {
    for (std::int64_t i = 0; i < parts[to]; ++i) *at++ = payload(rank, static_cast<int>(to), i);
  }
  return buffer;
}

void all_gather(Job& job, std::int64_t mean) {
  const std::vector<std::int64_t> parts = uneven_parts(job.size(), mean);
  std::vector<std::int64_t> bytes = parts;
  for (std::int64_t& n : bytes) n *= 4;
  const std::vector<int> counts = narrow(parts), begin = starts(counts);
  const Buffer mine = filled(job.rank(), {parts[static_cast<std::size_t>(job.rank())]});
  const int count = counts[static_cast<std::size_t>(job.rank())];
  job.compare(
      fmt::format("all_gather_v W{} {} fp32", job.size(), mean), total(bytes), total(bytes),
      [&](Buffer& all) { all_gather_v(job.world(), mine.span(), bytes, all.span()); },
      [&](Buffer& all) {
        MPI_Allgatherv(mine.data(), count, MPI_FLOAT, all.data(), counts.data(), begin.data(), MPI_FLOAT,
                       job.native());
      });
}

void all_to_all(Job& job, std::int64_t mean) {
  const std::vector<std::int64_t> parts = uneven_parts(job.size(), mean);
  const std::int64_t own = parts[static_cast<std::size_t>(job.rank())];
  const std::vector<std::int64_t> inbound(parts.size(), own);
  std::vector<std::int64_t> send_bytes = parts, receive_bytes = inbound;
  for (std::int64_t& n : send_bytes) n *= 4;
  for (std::int64_t& n : receive_bytes) n *= 4;
  const std::vector<int> send_counts = narrow(parts), send_begin = starts(send_counts);
  const std::vector<int> receive_counts = narrow(inbound), receive_begin = starts(receive_counts);
  const Buffer send = filled(job.rank(), parts);
  job.compare(
      fmt::format("all_to_all_v W{} {} fp32", job.size(), mean), total(send_bytes), total(receive_bytes),
      [&](Buffer& receive) {
        all_to_all_v(job.world(), send.span(), send_bytes, receive.span(), receive_bytes);
      },
      [&](Buffer& receive) {
        MPI_Alltoallv(send.data(), send_counts.data(), send_begin.data(), MPI_FLOAT, receive.data(),
                      receive_counts.data(), receive_begin.data(), MPI_FLOAT, job.native());
      });
}

void reduce_scatter(Job& job, std::int64_t mean) {
  const std::vector<std::int64_t> parts = uneven_parts(job.size(), mean);
  const std::vector<int> counts = narrow(parts);
  const std::int64_t own = parts[static_cast<std::size_t>(job.rank())];
  const Buffer input = filled(job.rank(), parts);
  job.compare(
      fmt::format("reduce_scatter_v W{} {} fp32", job.size(), mean), input.bytes(), 4 * own,
      [&](Buffer& sum) {
        reduce_scatter_v(job.world(), input.span(), DType::kF32, parts,
                         {sum.as<float>(), static_cast<std::size_t>(own)});
      },
      [&](Buffer& sum) {
        MPI_Reduce_scatter(input.data(), sum.data(), counts.data(), MPI_FLOAT, MPI_SUM, job.native());
      });
}

void broadcasts(Job& job, std::int64_t mean) {
  Buffer source = filled(0, {mean});
  const auto from_root = [&](Buffer& buffer) {
    if (job.rank() == 0) std::memcpy(buffer.data(), source.data(), static_cast<std::size_t>(source.bytes()));
  };
  job.compare(
      fmt::format("broadcast W{} {} fp32", job.size(), mean), source.bytes(), source.bytes(),
      [&](Buffer& buffer) {
        from_root(buffer);
        broadcast(job.world(), buffer.span(), 0);
      },
      [&](Buffer& buffer) {
        from_root(buffer);
        MPI_Bcast(buffer.data(), static_cast<int>(mean), MPI_FLOAT, 0, job.native());
      });
}

void all_reduces(Job& job, std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::int64_t{job.rank()});
  const auto start = [&](Buffer& buffer) {
    std::memcpy(buffer.data(), values.data(), static_cast<std::size_t>(buffer.bytes()));
  };
  job.compare(
      fmt::format("all_reduce W{} {} int64", job.size(), count), 8 * count, 8 * count,
      [&](Buffer& buffer) {
        start(buffer);
        all_reduce(job.world(), std::span(buffer.as<std::int64_t>(), values.size()));
      },
      [&](Buffer& buffer) {
        start(buffer);
        MPI_Allreduce(MPI_IN_PLACE, buffer.data(), static_cast<int>(count), MPI_INT64_T, MPI_SUM,
                      job.native());
      });
}

}  // namespace

void collectives_under_mpi(Report& report, Transport& transport, const std::string& size) {
  Job job(report, transport);
  for (const std::int64_t mean : collective_sizes(size)) {
    all_gather(job, mean);
    reduce_scatter(job, mean);
    all_to_all(job, mean);
    broadcasts(job, mean);
  }
  all_reduces(job, 64);  // as the trainer's: losses, counts
}

}  // namespace moesaic::bench
