#include "moesaic/codec/rans.h"

#include "moesaic/codec/corrupt.h"

namespace moesaic::codec {

StreamWriter::StreamWriter(std::span<std::uint8_t> out, std::size_t words)
    : halves(out.data() + sizeof(std::uint32_t)),
      literals(halves + 2 * words + kSlack),
      out_(out.data()),
      first_literal_(literals) {}

std::size_t StreamWriter::finish() {
  std::uint8_t* const halves_begin = out_ + sizeof(std::uint32_t);
  const auto num_halves = static_cast<std::uint32_t>((halves - halves_begin) / 2);
  const auto literal_bytes = static_cast<std::size_t>(literals - first_literal_);
  std::memcpy(out_, &num_halves, sizeof num_halves);
  std::memmove(halves, first_literal_, literal_bytes);
  std::uint8_t* const states = halves + literal_bytes;
  std::memcpy(states, lanes.low.data(), sizeof lanes.low);
  std::memcpy(states + sizeof lanes.low, lanes.high.data(), sizeof lanes.high);
  return static_cast<std::size_t>(states + sizeof(Lanes) - out_);
}

StreamReader::StreamReader(std::span<const std::uint8_t> in, std::size_t words) {
  constexpr std::size_t kFrame = sizeof(std::uint32_t) + sizeof(Lanes);
  check_bytes(in.size() >= kFrame, "coded stream: got {} bytes, expected at least {}", in.size(), kFrame);
  std::uint32_t num_halves;
  std::memcpy(&num_halves, in.data(), sizeof num_halves);
  check_bytes(num_halves <= words && 2 * std::size_t{num_halves} <= in.size() - kFrame,
              "coded stream: it says {} halves of states, expected at most {} words in {} bytes", num_halves,
              words, in.size() - kFrame);
  halves_begin = in.data() + sizeof num_halves;
  halves = literals_begin = halves_begin + 2 * std::size_t{num_halves};
  literals = in.data() + in.size() - sizeof(Lanes);
  std::memcpy(lanes.low.data(), literals, sizeof lanes.low);
  std::memcpy(lanes.high.data(), literals + sizeof lanes.low, sizeof lanes.high);
}

void StreamReader::check_halves(std::size_t bytes) const {
  const auto left = static_cast<std::size_t>(halves - halves_begin);
  check_bytes(bytes <= left, "coded stream: {} bytes of states left, expected {} or more", left, bytes);
}

void StreamReader::check_literals(std::size_t bytes) const {
  const auto left = static_cast<std::size_t>(literals - literals_begin);
  check_bytes(bytes <= left, "coded stream: {} bytes of literals left, expected {} or more", left, bytes);
}

void StreamReader::finish() const {
  check_bytes(halves == halves_begin && literals == literals_begin,
              "coded stream: {} bytes of states and {} of literals left over, expected none",
              halves - halves_begin, literals - literals_begin);
  check_bytes(lanes == Lanes(), "coded stream: the lanes do not end where an encoder starts");
}

}  // namespace moesaic::codec
