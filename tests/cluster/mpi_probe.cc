// mpi_probe: what a rank of an MPI job sees of its host, and how fast two ranks reach each other.
//
//   mpi_probe where              every rank prints its host, and with whom it shares memory and /dev/shm
//   mpi_probe send A B BYTES     rank A sends BYTES to rank B, in messages of 1 MiB; B prints the seconds
//   mpi_probe die RANK           rank RANK kills itself, the others wait for a message that never comes
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

void where(int rank) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  MPI_Comm with_shared_memory;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &with_shared_memory);
  const std::string prefix = "mpi_probe_rank_";
  std::ofstream("/dev/shm/" + prefix + std::to_string(rank)) << rank;
  MPI_Barrier(MPI_COMM_WORLD);
  const auto files = std::filesystem::directory_iterator("/dev/shm");
  const auto seen = std::count_if(begin(files), end(files), [&](const auto& entry) {
    return entry.path().filename().string().starts_with(prefix);
  });
  std::printf("{\"rank\": %d, \"host\": \"%s\", \"share_memory\": %d, \"share_files\": %d}\n", rank, host,
              size_of(with_shared_memory), static_cast<int>(seen));
  std::fflush(stdout);
}

void send(int rank, int from, int to, long bytes) {
  constexpr long kMessage = 1 << 20;
  std::vector<char> buffer(kMessage);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (long left = bytes; left > 0; left -= kMessage) {
    const int count = static_cast<int>(std::min(left, kMessage));
    if (rank == from) MPI_Send(buffer.data(), count, MPI_CHAR, to, 0, MPI_COMM_WORLD);
    if (rank == to) MPI_Recv(buffer.data(), count, MPI_CHAR, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  if (rank == to) {
    const double seconds = MPI_Wtime() - begin;
    std::printf("{\"bytes\": %ld, \"seconds\": %.6f, \"mbit_per_s\": %.1f}\n", bytes, seconds,
                8e-6 * static_cast<double>(bytes) / seconds);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (words.size() == 1 && words[0] == "where") {
    where(rank);
  } else if (words.size() == 4 && words[0] == "send") {
    send(rank, std::stoi(words[1]), std::stoi(words[2]), std::stol(words[3]));
  } else if (words.size() == 2 && words[0] == "die") {
    if (rank == std::stoi(words[1])) std::raise(SIGKILL);
    MPI_Recv(nullptr, 0, MPI_CHAR, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    std::fprintf(stderr, "usage: mpi_probe where | send A B BYTES | die RANK\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Finalize();
  return 0;
}
