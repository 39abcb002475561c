// write_seeds DIR: what each fuzzer starts from: DIR/<method>/seed-NN, DIR/round_trip/seed-NN,
// DIR/gradient/seed-NN.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tests/codec/fuzz/gradient_target.h"

namespace {

void write(const std::filesystem::path& folder, const std::vector<moesaic::codec::fuzz::Input>& inputs) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const auto& input : inputs) {
    std::ofstream file(folder / fmt::format("seed-{:02}", number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_seeds DIR\n";
    return 2;
  }
  using namespace moesaic::codec;
  const std::filesystem::path folder = argv[1];
  for (const Method method : kMethods) write(folder / name_of(method), fuzz::decode_seeds(method));
  write(folder / "round_trip", fuzz::round_trip_seeds());
  write(folder / "gradient", fuzz::gradient_seeds());
}
