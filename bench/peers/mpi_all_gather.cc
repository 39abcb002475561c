// bench_mpi_all_gather ITERATIONS BYTES...: MPI_Allgatherv of BYTES from every rank, for each BYTES one JSON
// line of rank 0: "bytes_per_rank", "ranks", "seconds" (median over ITERATIONS of the slowest rank's time,
// after warm-up) and "nic_received_bytes" (per iteration, of the host that received most; 0 where there is no
// eth0). Every byte is checked, also after the timing. Which algorithm and which message sizes Open MPI uses
// is set in its environment; bench/all_gather_peers.h tries them.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/nic_bytes.h"

namespace {

using moesaic::bench::nic_bytes_of_this_host;

constexpr int kWarmUp = 2;

char byte_of(int rank, int i) { return static_cast<char>(rank * 31 + i * 7 + i / 251); }

bool all_there(const std::vector<char>& all, int ranks, int bytes) {
  for (int rank = 0; rank < ranks; ++rank) {
    const char* part = all.data() + static_cast<std::size_t>(rank) * static_cast<std::size_t>(bytes);
    for (int i = 0; i < bytes; ++i) {
      if (part[i] != byte_of(rank, i)) return false;
    }
  }
  return true;
}

template <typename T>
T largest(T mine, MPI_Datatype type) {
  T all{};
  MPI_Allreduce(&mine, &all, 1, type, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

bool measure(int rank, int ranks, int bytes, int iterations) {
  std::vector<char> mine(static_cast<std::size_t>(bytes));
  for (int i = 0; i < bytes; ++i) mine[static_cast<std::size_t>(i)] = byte_of(rank, i);
  std::vector<char> all(mine.size() * static_cast<std::size_t>(ranks));
  const std::vector<int> counts(static_cast<std::size_t>(ranks), bytes);
  std::vector<int> begins;
  for (int i = 0; i < ranks; ++i) begins.push_back(i * bytes);

  std::vector<double> seconds;
  std::int64_t received = 0;
  for (int i = 0; i < kWarmUp + iterations; ++i) {
    std::memset(all.data(), 0, all.size());
    MPI_Barrier(MPI_COMM_WORLD);
    if (i == kWarmUp) received = nic_bytes_of_this_host().received;
    const double begin = MPI_Wtime();
    MPI_Allgatherv(mine.data(), bytes, MPI_CHAR, all.data(), counts.data(), begins.data(), MPI_CHAR,
                   MPI_COMM_WORLD);
    const double slowest = largest(MPI_Wtime() - begin, MPI_DOUBLE);
    if (i >= kWarmUp) seconds.push_back(slowest);
  }
  received = largest((nic_bytes_of_this_host().received - received) / iterations, MPI_INT64_T);
  const bool good = largest(all_there(all, ranks, bytes) ? 0 : 1, MPI_INT) == 0;
  std::nth_element(seconds.begin(), seconds.begin() + iterations / 2, seconds.end());
  if (rank == 0 && good) {
    std::printf("{\"bytes_per_rank\": %d, \"ranks\": %d, \"seconds\": %.9f, \"nic_received_bytes\": %lld}\n",
                bytes, ranks, seconds[static_cast<std::size_t>(iterations / 2)],
                static_cast<long long>(received));
  } else if (rank == 0) {
    std::printf("{\"error\": \"MPI_Allgatherv of %d bytes gave wrong bytes\"}\n", bytes);
  }
  std::fflush(stdout);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int iterations = argc > 2 ? std::atoi(argv[1]) : 0;
  bool good = iterations > 0;
  for (int i = 2; i < argc; ++i) {
    const long long bytes = std::atoll(argv[i]);
    good = good && bytes > 0 && bytes * ranks < (1LL << 31);  // MPI counts bytes in an int
  }
  if (!good && rank == 0) {
    std::printf("{\"error\": \"expected ITERATIONS BYTES..., above 0, and ranks x BYTES below 2^31\"}\n");
    std::fflush(stdout);
  }
  for (int i = 2; i < argc && good; ++i) good = measure(rank, ranks, std::atoi(argv[i]), iterations);
  MPI_Finalize();
  return good ? 0 : 1;
}
