#include "moesaic/codec/difference_lookups.h"

namespace moesaic::codec {

DifferenceLookups::DifferenceLookups(const DifferenceTables& tables)
    : first_exponent(static_cast<std::uint8_t>(tables.first_exponent())) {
  std::copy(tables.class_of_context().begin(), tables.class_of_context().end(), class_of_context);
  const std::vector<BucketClass>& classes = tables.code().classes;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    for (std::size_t s = 0; s < kNumSymbols; ++s) {
      const auto symbol = static_cast<int>(s);
      const Slots slots = classes[c].slots(symbol);
      const std::uint32_t base = symbol == BucketClass::kEscape ? 0 : classes[c].base(symbol);
      base_low[s][c] = static_cast<std::uint8_t>(base);
      base_high[s][c] = static_cast<std::uint8_t>(base >> 8);
      const auto place = static_cast<std::uint16_t>(slots.start - base);
      place_low[s][c] = static_cast<std::uint8_t>(place);
      place_high[s][c] = static_cast<std::uint8_t>(place >> 8);
      start_low[s][c] = static_cast<std::uint8_t>(slots.start);
      start_high[s][c] = static_cast<std::uint8_t>(slots.start >> 8);
      biased_start_high[s][c] = start_high[s][c] ^ 0x80;
      frequency_low[s][c] = static_cast<std::uint8_t>(slots.frequency);
      frequency_high[s][c] = static_cast<std::uint8_t>(slots.frequency >> 8);
      width_log2[s][c] = static_cast<std::uint8_t>(slots.width_log2);
      if (s > 0) first_step[s - 1][c] = static_cast<std::uint8_t>(step_of(classes[c].base(symbol)) ^ 0x80);
      max_frequency = std::max(max_frequency, slots.frequency);
    }
  }
}

}  // namespace moesaic::codec
