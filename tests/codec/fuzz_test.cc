// The fuzzer's target without the fuzzer: over the committed corpus, its seeds, and seeded damage to both.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/codec/ends.h"
#include "tests/codec/fuzz/gradient_target.h"

namespace moesaic::codec {
namespace {

using fuzz::Input;

// The seeds of a fuzzer and its committed corpus.
std::vector<Input> with_corpus(std::vector<Input> inputs, std::string_view name) {
  const auto folder = std::filesystem::path(MOESAIC_SOURCE_DIR) / "tests/codec/fuzz/corpus" / name;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// One to four changes: a bit, a byte, a piece cut out, a piece of another input put in.
Input damaged(const Input& input, const Input& other, std::uint64_t key) {
  Input out = input;
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t n) {
    return n == 0 ? 0 : static_cast<std::size_t>(random_bits(key, draw++) % n);
  };
  for (std::size_t changes = 1 + below(4); changes > 0 && !out.empty(); --changes) {
    const std::size_t at = below(out.size());
    const auto place = out.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end_of_piece =
        place + static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(32, out.size() - at)));
    switch (below(4)) {
      case 0:
        out[at] ^= static_cast<std::uint8_t>(1 << below(8));
        break;
      case 1:
        out[at] = static_cast<std::uint8_t>(below(256));
        break;
      case 2:
        out.erase(place, end_of_piece);
        break;
      default:
        const std::size_t from = below(other.size());
        const std::size_t length = below(std::min<std::size_t>(32, other.size() - from));
        out.insert(place, other.begin() + static_cast<std::ptrdiff_t>(from),
                   other.begin() + static_cast<std::ptrdiff_t>(from + length));
    }
  }
  return out;
}

class Fuzz : public testing::TestWithParam<Method> {};
INSTANTIATE_TEST_SUITE_P(Methods, Fuzz, testing::ValuesIn(kMethods),
                         [](const auto& method) { return std::string(name_of(method.param)); });

// Runs every input and `copies` damaged ones.
template <typename Run>
void run_all(const std::vector<Input>& inputs, std::string_view name, std::uint64_t copies, const Run& run) {
  for (const Input& input : inputs) run(input);
  const std::uint64_t key = random_key(1, name);
  for (std::uint64_t i = 0; i < copies; ++i) {
    const Input& input = inputs[random_bits(key, i) % inputs.size()];
    const Input& other = inputs[random_bits(key, i, 1) % inputs.size()];
    run(damaged(input, other, random_bits(key, i, 2)));
  }
}

TEST_P(Fuzz, DecodesTheCorpusAndItsDamagedCopiesOrSaysCorruptData) {
  const std::string_view name = name_of(GetParam());
  run_all(with_corpus(fuzz::decode_seeds(GetParam()), name), name, 20000,
          [](const Input& input) { fuzz::decode(GetParam(), input); });
}

TEST(FuzzRoundTrip, OfTheCorpusAndItsDamagedCopiesComeBack) {
  run_all(with_corpus(fuzz::round_trip_seeds(), "round_trip"), "round_trip", 4000, fuzz::round_trip);
}

TEST(FuzzGradient, OfTheCorpusAndItsDamagedCopiesComeBackOrSayCorruptData) {
  run_all(with_corpus(fuzz::gradient_seeds(), "gradient"), "gradient", 20000, fuzz::gradient);
}

TEST(FuzzGradient, TheSeedsAreSoundMessages) {
  for (const Input& input : fuzz::gradient_seeds()) {
    if (input[0] & fuzz::kRoundTrip) continue;
    const auto message = std::as_bytes(std::span(input).subspan(2));
    Bytes bytes(message.begin(), message.end());
    const std::size_t words = fuzz::kGradientSizes[input[1]];
    decode_words(bytes, words);
    const Bytes before = bytes;
    fuzz::repair_gradient(words, bytes);
    EXPECT_EQ(bytes, before);  // nothing to repair
  }
}

// The target would find nothing if no message came through.
TEST_P(Fuzz, TheSeedsAreSoundMessages) {
  std::size_t sound = 0;
  for (const Input& input : fuzz::decode_seeds(GetParam())) {
    const Reference& reference = fuzz::trained(GetParam(), fuzz::kSizes[input[1]]);
    const auto message = std::as_bytes(std::span(input).subspan(2));
    Bytes bytes(message.begin(), message.end());
    decode(reference, bytes);
    const Bytes before = bytes;
    fuzz::repair(reference, false, bytes);
    EXPECT_EQ(bytes, before);  // nothing to repair
    ++sound;
  }
  EXPECT_EQ(sound, 84u);
}

}  // namespace
}  // namespace moesaic::codec
