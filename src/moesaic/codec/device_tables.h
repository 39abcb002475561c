// device_tables.h: the coders' tables as plain numbers in one block, to be copied to a device.
#pragma once

#include <cstdint>

#include "moesaic/codec/bucket_code.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/entropy.h"
#include "moesaic/core/crc32c_device.h"

namespace moesaic::codec {

struct DeviceTables {
  struct Class {
    std::uint16_t base[BucketClass::kEscape + 1];  // first value of a bucket, or of the escape
    std::uint16_t start[BucketClass::kEscape + 1];
    std::uint16_t frequency[BucketClass::kEscape + 1];
    std::uint8_t width_log2[BucketClass::kEscape + 1];
  };

  // Of difference.h, where there are any.
  bool has_difference;
  bool momentum;
  std::uint8_t first_exponent;
  std::uint8_t last_step;  // of the exponent
  std::uint8_t class_of_context[DifferenceTables::kNumContexts];
  Class classes[BucketCode::kMaxClasses];

  // Of entropy.h, where there are any.
  bool has_entropy;
  std::uint8_t entropy_first_exponent;
  std::uint16_t entropy_start[EntropyTables::kNumSymbols];
  std::uint16_t entropy_frequency[EntropyTables::kNumSymbols];

  Crc32cTables crc;
};

// Either may be null.
DeviceTables device_tables(const DifferenceTables* difference, const EntropyTables* entropy);

}  // namespace moesaic::codec
