#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/reference.h"

namespace moesaic::codec::reference {

void encode_entropy_group(const EntropyTables& tables, std::span<const std::uint16_t> words,
                          std::size_t begin, std::uint8_t* plane, StreamWriter& writer) {
  for (std::size_t i = begin; i < std::min(begin + kLanes, words.size()); ++i) {
    plane[i] = static_cast<std::uint8_t>((words[i] >> 8 & 0x80) | (words[i] & 0x7f));
    const int symbol = tables.symbol_of(words[i]);
    if (symbol == EntropyTables::kEscape) *writer.literals++ = static_cast<std::uint8_t>(words[i] >> 7);
    push(writer, i - begin, {tables.start(symbol), tables.frequency()[symbol], 0}, 0);
  }
}

std::size_t encode_entropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                           std::span<std::uint8_t> out) {
  if (words.empty()) return 0;
  StreamWriter writer(out.subspan(words.size()), words.size());
  for (std::size_t groups = (words.size() + kLanes - 1) / kLanes; groups > 0; --groups) {
    encode_entropy_group(tables, words, (groups - 1) * kLanes, out.data(), writer);
  }
  return words.size() + writer.finish();
}

void decode_entropy_group(const EntropyTables& tables, const std::uint8_t* plane, std::size_t begin,
                          StreamReader& reader, std::span<std::uint16_t> out) {
  for (std::size_t i = std::min(begin + kLanes, out.size()); i-- > begin;) {
    int symbol = 0;
    while (symbol < EntropyTables::kEscape && reader.lanes.low[i - begin] >= tables.start(symbol + 1))
      ++symbol;
    pop(reader, i - begin, {tables.start(symbol), tables.frequency()[symbol], 0});
    int exponent = tables.exponent_of(symbol);
    if (symbol == EntropyTables::kEscape) {
      reader.check_literals(1);
      exponent = *--reader.literals;
    }
    out[i] = static_cast<std::uint16_t>((plane[i] & 0x80) << 8 | exponent << 7 | (plane[i] & 0x7f));
  }
}

void decode_entropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                    std::span<std::uint16_t> out) {
  if (out.empty() && in.empty()) return;
  check_bytes(in.size() >= out.size(), "entropy stream: got {} bytes, expected {} or more", in.size(),
              out.size());
  StreamReader reader(in.subspan(out.size()), out.size());
  for (std::size_t begin = 0; begin < out.size(); begin += kLanes) {
    decode_entropy_group(tables, in.data(), begin, reader, out);
  }
  reader.finish();
}

}  // namespace moesaic::codec::reference
