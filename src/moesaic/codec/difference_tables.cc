#include <algorithm>

#include "moesaic/codec/bucket_fit.h"
#include "moesaic/codec/context_classes.h"
#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/sample.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

// The highest exponent with a mass of its own (above 1 in 2000) gets the last step.
int first_exponent_for(std::span<const std::uint16_t> reference, int num_exponents) {
  std::array<std::uint32_t, 256> seen{};
  std::uint32_t total = 0;
  for_each_sampled_run(reference.size(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) ++seen[reference[i] >> 7 & 255];
    total += static_cast<std::uint32_t>(end - begin);
  });
  int top = 255;
  for (std::uint32_t above = seen[255]; top > 0 && above <= total / 2000; above += seen[--top]) {
  }
  return std::max(top - num_exponents + 1, 0);
}

void require_words(Predictor predictor, std::size_t reference, std::size_t previous, std::size_t current) {
  const std::size_t wanted = predictor == Predictor::kMomentum ? previous_bytes(current) : 0;
  require(reference == current, "difference tables: got {} words against a reference of {}", current,
          reference);
  require(previous == wanted, "difference tables: got {} bytes of previous differences, expected {}",
          previous, wanted);
}

// Calls count(context, step) for each word of a sample; returns how many words that was.
template <typename Count>
std::uint64_t count_sample(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                           std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                           const Count& count) {
  const bool momentum = tables.predictor() == Predictor::kMomentum;
  std::uint64_t sampled = 0;
  for_each_sampled_run(current.size(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const unsigned nibble = momentum ? nibble_at(previous, i) : 0;
      const std::uint16_t value = coded_value(current[i], reference[i], nibble);
      count(tables.context_of(reference[i], nibble), step_of(value));
    }
    sampled += end - begin;
  });
  return sampled;
}

}  // namespace

DifferenceTables DifferenceTables::measure(Predictor predictor, std::span<const std::uint16_t> reference,
                                           std::span<const std::uint8_t> previous,
                                           std::span<const std::uint16_t> current) {
  require_words(predictor, reference.size(), previous.size(), current.size());
  DifferenceTables tables;
  tables.predictor_ = predictor;
  tables.first_exponent_ = first_exponent_for(reference, tables.num_exponents());
  std::vector<StepCounts> contexts(static_cast<std::size_t>(tables.num_contexts()));
  const std::uint64_t sampled = count_sample(tables, reference, previous, current,
                                             [&](auto context, auto step) { ++contexts[context][step]; });
  const auto classes = merge_contexts(contexts, BucketCode::kMaxClasses, tables.class_of_context_.data());
  double bits = 0;
  for (const StepCounts& counts : classes) {
    tables.code_.classes.push_back(fit_buckets(counts));
    bits += cost_in_bits(tables.code_.classes.back(), counts);
  }
  tables.bits_per_word_ = sampled == 0 ? 0 : bits / static_cast<double>(sampled);
  return tables;
}

DifferenceTables::Price DifferenceTables::price(std::span<const std::uint16_t> reference,
                                                std::span<const std::uint8_t> previous,
                                                std::span<const std::uint16_t> current) const {
  require_words(predictor_, reference.size(), previous.size(), current.size());
  std::vector<StepCounts> classes(code_.classes.size());
  const std::uint64_t sampled =
      count_sample(*this, reference, previous, current,
                   [&](auto context, auto step) { ++classes[class_of_context_[context]][step]; });
  Price price;
  if (sampled == 0) return price;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    price.bits_per_word += cost_in_bits(code_.classes[c], classes[c]) / static_cast<double>(sampled);
    price.attainable += attainable_bits(code_.classes[c], classes[c]) / static_cast<double>(sampled);
  }
  return price;
}

// predictor, first exponent | classes of contexts, two to a byte | code
void DifferenceTables::append_to(std::vector<std::uint8_t>& out) const {
  out.push_back(static_cast<std::uint8_t>(predictor_));
  out.push_back(static_cast<std::uint8_t>(first_exponent_));
  for (int c = 0; c < num_contexts(); c += 2) {
    out.push_back(static_cast<std::uint8_t>(class_of_context_[c] | class_of_context_[c + 1] << 4));
  }
  code_.append_to(out);
}

DifferenceTables DifferenceTables::read(std::span<const std::uint8_t> bytes) {
  check_bytes(bytes.size() >= 2, "difference tables: got {} bytes, expected at least 2", bytes.size());
  check_bytes(bytes[0] <= 1, "difference tables: got predictor {}, expected 0 or 1", bytes[0]);
  DifferenceTables tables;
  tables.predictor_ = static_cast<Predictor>(bytes[0]);
  tables.first_exponent_ = bytes[1];
  const auto class_bytes = static_cast<std::size_t>(tables.num_contexts()) / 2;
  check_bytes(bytes.size() >= 2 + class_bytes, "difference tables: got {} bytes, expected more than {}",
              bytes.size(), 2 + class_bytes);
  tables.code_ = BucketCode::read(bytes.subspan(2 + class_bytes));
  for (int c = 0; c < tables.num_contexts(); ++c) {
    tables.class_of_context_[c] = bytes[2 + c / 2] >> (c % 2 * 4) & 15;
    check_bytes(tables.class_of_context_[c] < tables.code_.classes.size(),
                "difference tables: got class {}, expected less than {}", tables.class_of_context_[c],
                tables.code_.classes.size());
  }
  return tables;
}

}  // namespace moesaic::codec
