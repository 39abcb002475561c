#include "moesaic/codec/reference_state.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/planes.h"
#include "moesaic/core/crc32c.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

std::size_t memory_of(Keeps keeps, std::size_t words) {
  switch (keeps) {
    case Keeps::kNothing:
      return 0;
    case Keeps::kExponents:
      return words;
    case Keeps::kWords:
      return words * 2;
    case Keeps::kWordsAndDifferences:
      return words * 2 + previous_bytes(words);
  }
  throw InvalidArgument(fmt::format("codec: got keeps {}, expected 0 to 3", static_cast<int>(keeps)));
}

}  // namespace

std::uint64_t hash_after(std::uint64_t held, std::uint64_t epoch, std::span<const std::uint32_t> words_crcs) {
  const std::uint64_t before[] = {held, epoch};
  const std::uint64_t seed = XXH3_64bits(before, sizeof before);
  return XXH3_64bits_withSeed(words_crcs.data(), words_crcs.size_bytes(), seed);
}

Reference::Reference(Keeps keeps, std::size_t words)
    : keeps_(keeps), size_(words), memory_(static_cast<std::int64_t>(memory_of(keeps, words))) {}

std::span<const std::uint16_t> Reference::words() const {
  if (keeps_ < Keeps::kWords) return {};
  return {memory_.as<std::uint16_t>(), size_};
}

std::span<const std::uint8_t> Reference::exponents() const {
  if (keeps_ != Keeps::kExponents) return {};
  return {memory_.as<std::uint8_t>(), size_};
}

std::span<const std::uint8_t> Reference::differences() const {
  if (keeps_ != Keeps::kWordsAndDifferences) return {};
  return {memory_.as<std::uint8_t>() + size_ * 2, previous_bytes(size_)};
}

std::size_t Reference::bytes() const { return static_cast<std::size_t>(memory_.bytes()) + tables_.size(); }

void Reference::commit(const Update& update, std::span<const std::uint16_t> words) {
  require(words.size() == size_, "codec reference: commit of {} words, expected {}", words.size(), size_);
  require(update.key || valid_, "codec reference: commit of a message that is no key, but nothing is held");
  require(update.key || update.epoch == epoch_,
          "codec reference: commit of a message against epoch {}, but epoch {} is held", update.epoch,
          epoch_);
  if (keeps_ == Keeps::kExponents) take_exponents(words, memory_.as<std::uint8_t>());
  if (keeps_ == Keeps::kWordsAndDifferences) {
    const auto differences = std::span(memory_.as<std::uint8_t>() + size_ * 2, previous_bytes(size_));
    if (update.key) {
      std::ranges::fill(differences, std::uint8_t{0});
    } else {
      update_previous(this->words(), words, differences);
    }
  }
  if (keeps_ >= Keeps::kWords && size_ > 0) std::memcpy(memory_.data(), words.data(), words.size_bytes());
  valid_ = true;
  epoch_ = update.epoch + 1;
  hash_ = update.hash;
  tables_ = update.tables;
  chunk_words_ = update.chunk_words;
  if (keeps_ >= Keeps::kWords) words_crcs_ = update.words_crcs;
}

void Reference::copy_words(std::span<std::uint16_t> to) const {
  require(keeps_ >= Keeps::kWords && to.size() == size_,
          "codec reference: a copy of {} words of a reference that keeps {} bytes of each of {}", to.size(),
          bytes_per_word(keeps_), size_);
  check_bytes(valid_, "nothing is held");
  require(size_ == 0 || !words_crcs_.empty(), "codec reference: a copy of words committed without checksums");
  std::size_t begin = 0;
  for (std::size_t chunk = 0; begin < size_; ++chunk) {
    const std::size_t n = std::min(chunk_words_, size_ - begin);
    // Of the copy, which is still in the cache: so the copying is checked, too.
    std::memcpy(to.data() + begin, words().data() + begin, n * sizeof(std::uint16_t));
    const std::uint32_t crc = crc32c(std::as_bytes(to.subspan(begin, n)));
    check_bytes(crc == words_crcs_[chunk],
                "chunk {} of the words that are held has checksum {:#010x}, expected {:#010x}", chunk, crc,
                words_crcs_[chunk]);
    begin += n;
  }
}

void Reference::reset() {
  valid_ = false;
  epoch_ = 0;
  hash_ = 0;
  tables_.clear();
  words_crcs_.clear();
}

}  // namespace moesaic::codec
