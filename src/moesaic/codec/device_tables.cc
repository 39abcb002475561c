#include "moesaic/codec/device_tables.h"

namespace moesaic::codec {
namespace {

DeviceTables::Class numbers_of(const BucketClass& from) {
  DeviceTables::Class to{};
  for (int bucket = 0; bucket <= BucketClass::kEscape; ++bucket) {
    const Slots slots = from.slots(bucket);
    to.base[bucket] = static_cast<std::uint16_t>(from.base(bucket));
    to.start[bucket] = static_cast<std::uint16_t>(slots.start);
    to.frequency[bucket] = static_cast<std::uint16_t>(slots.frequency);
    to.width_log2[bucket] = static_cast<std::uint8_t>(slots.width_log2);
  }
  return to;
}

}  // namespace

DeviceTables device_tables(const DifferenceTables* difference, const EntropyTables* entropy) {
  DeviceTables tables{};
  tables.crc = crc32c_tables();
  if (difference != nullptr) {
    tables.has_difference = true;
    tables.momentum = difference->predictor() == Predictor::kMomentum;
    tables.first_exponent = static_cast<std::uint8_t>(difference->first_exponent());
    tables.last_step = static_cast<std::uint8_t>(difference->num_exponents() - 1);
    std::ranges::copy(difference->class_of_context(), tables.class_of_context);
    std::ranges::transform(difference->code().classes, tables.classes, numbers_of);
  }
  if (entropy != nullptr) {
    tables.has_entropy = true;
    tables.entropy_first_exponent = static_cast<std::uint8_t>(entropy->first_exponent());
    std::ranges::copy(entropy->frequency(), tables.entropy_frequency);
    for (int s = 0; s < EntropyTables::kNumSymbols; ++s) {
      tables.entropy_start[s] = static_cast<std::uint16_t>(entropy->start(s));
    }
  }
  return tables;
}

}  // namespace moesaic::codec
