#include "moesaic/codec/reference.h"

namespace moesaic::codec::reference {
namespace {

unsigned previous_of(const DifferenceTables& tables, std::span<const std::uint8_t> previous, std::size_t i) {
  return tables.predictor() == Predictor::kMomentum ? nibble_at(previous, i) : 0;
}

const BucketClass& class_at(const DifferenceTables& tables, std::uint16_t reference, unsigned nibble) {
  return tables.code().classes[tables.class_of_context()[tables.context_of(reference, nibble)]];
}

}  // namespace

void encode_difference_group(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                             std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                             std::size_t begin, StreamWriter& writer) {
  for (std::size_t i = begin; i < std::min(begin + kLanes, current.size()); ++i) {
    const unsigned nibble = previous_of(tables, previous, i);
    const BucketClass& code = class_at(tables, reference[i], nibble);
    const std::uint16_t value = coded_value(current[i], reference[i], nibble);
    int bucket = 0;
    while (bucket < BucketClass::kEscape && value >= code.base(bucket + 1)) ++bucket;
    if (bucket == BucketClass::kEscape) {
      std::memcpy(writer.literals, &value, sizeof value);
      writer.literals += sizeof value;
      push(writer, i - begin, code.slots(bucket), 0);
    } else {
      push(writer, i - begin, code.slots(bucket), value - code.base(bucket));
    }
  }
}

std::size_t encode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                              std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                              std::span<std::uint8_t> out) {
  if (current.empty()) return 0;
  StreamWriter writer(out, current.size());
  for (std::size_t groups = (current.size() + kLanes - 1) / kLanes; groups > 0; --groups) {
    encode_difference_group(tables, reference, previous, current, (groups - 1) * kLanes, writer);
  }
  return writer.finish();
}

void decode_difference_group(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                             std::span<const std::uint8_t> previous, std::size_t begin, StreamReader& reader,
                             std::span<std::uint16_t> out) {
  for (std::size_t i = std::min(begin + kLanes, out.size()); i-- > begin;) {
    const unsigned nibble = previous_of(tables, previous, i);
    const BucketClass& code = class_at(tables, reference[i], nibble);
    int bucket = 0;
    while (bucket < BucketClass::kEscape && reader.lanes.low[i - begin] >= code.slots(bucket + 1).start)
      ++bucket;
    const std::uint32_t raw = pop(reader, i - begin, code.slots(bucket));
    auto value = static_cast<std::uint16_t>(code.base(bucket) + raw);
    if (bucket == BucketClass::kEscape) {
      reader.check_literals(sizeof value);
      reader.literals -= sizeof value;
      std::memcpy(&value, reader.literals, sizeof value);
    }
    out[i] = decoded_word(value, reference[i], nibble);
  }
}

void decode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                       std::span<const std::uint8_t> previous, std::span<const std::uint8_t> in,
                       std::span<std::uint16_t> out) {
  if (out.empty() && in.empty()) return;
  StreamReader reader(in, out.size());
  for (std::size_t begin = 0; begin < out.size(); begin += kLanes) {
    decode_difference_group(tables, reference, previous, begin, reader, out);
  }
  reader.finish();
}

void update_previous(std::span<const std::uint16_t> reference, std::span<const std::uint16_t> current,
                     std::span<std::uint8_t> previous) {
  for (std::size_t i = 0; i < current.size(); i += 2) {
    const unsigned even = nibble_of(difference_of(current[i], reference[i]));
    const unsigned odd =
        i + 1 < current.size() ? nibble_of(difference_of(current[i + 1], reference[i + 1])) : 0;
    previous[i / 2] = static_cast<std::uint8_t>(even | odd << 4);
  }
}

}  // namespace moesaic::codec::reference
