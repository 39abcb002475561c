#include "moesaic/codec/bucket_code.h"

#include "moesaic/codec/corrupt.h"

namespace moesaic::codec {
namespace {

BucketClass read_class(const std::uint8_t* bytes) {
  BucketClass result;
  std::uint32_t end = 0, taken = 0;
  for (int b = 0; b < BucketClass::kNumBuckets; ++b) {
    const std::uint32_t width_log2 = bytes[b / 2] >> (b % 2 * 4) & 15;
    std::uint16_t frequency;
    std::memcpy(&frequency, bytes + BucketClass::kNumBuckets / 2 + 2 * b, sizeof frequency);
    check_bytes(width_log2 <= BucketClass::kMaxWidthLog2,
                "code tables: got a bucket of 2^{}, expected 2^{} at most", width_log2,
                BucketClass::kMaxWidthLog2);
    end += 1u << width_log2;
    check_bytes(step_of(end) <= kLastStep && first_of_step(step_of(end)) == end,
                "code tables: got a bucket that ends at {}, expected below 128, or a multiple of 16 up to {}",
                end, first_of_step(kLastStep));
    check_bytes(frequency >= 1, "code tables: got a frequency of 0, expected 1 or more");
    taken += std::uint32_t{frequency} << width_log2;  // at most 4 * 2^26
    result.width_log2[b] = static_cast<std::uint8_t>(width_log2);
    result.frequency[b] = frequency;
  }
  check_bytes(taken < 65536, "code tables: got frequencies that sum to {}, expected less than 65536", taken);
  return result;
}

}  // namespace

void BucketCode::append_to(std::vector<std::uint8_t>& out) const {
  out.push_back(static_cast<std::uint8_t>(classes.size()));
  for (const BucketClass& c : classes) {
    for (int b = 0; b < BucketClass::kNumBuckets; b += 2) {
      out.push_back(static_cast<std::uint8_t>(c.width_log2[b] | c.width_log2[b + 1] << 4));
    }
    for (const std::uint16_t frequency : c.frequency) {
      out.push_back(static_cast<std::uint8_t>(frequency));
      out.push_back(static_cast<std::uint8_t>(frequency >> 8));
    }
  }
}

BucketCode BucketCode::read(std::span<const std::uint8_t> bytes) {
  check_bytes(!bytes.empty(), "code tables: got no bytes, expected a number of classes");
  const std::size_t num_classes = bytes[0];
  check_bytes(num_classes >= 1 && num_classes <= kMaxClasses, "code tables: got {} classes, expected 1 to {}",
              num_classes, kMaxClasses);
  check_bytes(bytes.size() == 1 + num_classes * kBytesPerClass,
              "code tables: got {} bytes for {} classes, expected {}", bytes.size(), num_classes,
              1 + num_classes * kBytesPerClass);
  BucketCode code;
  for (std::size_t c = 0; c < num_classes; ++c) {
    code.classes.push_back(read_class(bytes.data() + 1 + c * kBytesPerClass));
  }
  return code;
}

}  // namespace moesaic::codec
