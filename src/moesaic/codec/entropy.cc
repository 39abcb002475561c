#include "moesaic/codec/entropy.h"

#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/reference.h"

namespace moesaic::codec {

std::size_t entropy_bound(std::size_t words) {
  return words == 0 ? 0 : words + StreamWriter::bound(words, 1);
}

std::size_t encode_entropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                           std::span<std::uint8_t> out) {
  require(words.size() <= kMaxStreamWords, "entropy stream: got {} words, expected {} at most", words.size(),
          kMaxStreamWords);
  require(out.size() >= entropy_bound(words.size()), "entropy stream: got room for {} bytes, expected {}",
          out.size(), entropy_bound(words.size()));
  return reference::encode_entropy(tables, words, out);
}

void decode_entropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                    std::span<std::uint16_t> out) {
  require(out.size() <= kMaxStreamWords, "entropy stream: got {} words, expected {} at most", out.size(),
          kMaxStreamWords);
  check_bytes(!out.empty() || in.empty(), "entropy stream: got {} bytes for no words", in.size());
  reference::decode_entropy(tables, in, out);
}

}  // namespace moesaic::codec
