#include <algorithm>

#include "moesaic/codec/bucket_fit.h"
#include "moesaic/codec/context_classes.h"
#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/sample.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

// The words of a sample, side by side: they are gone through several times.
struct Sample {
  std::vector<std::uint16_t> reference, current;
  std::vector<std::uint8_t> nibbles;  // of the previous differences, where there are

  Sample(std::span<const std::uint16_t> all_reference, std::span<const std::uint8_t> all_previous,
         std::span<const std::uint16_t> all_current) {
    std::vector<Run> runs;
    std::size_t words = 0;
    for_each_sampled_run(all_current.size(), [&](std::size_t begin, std::size_t end) {
      runs.push_back({begin, end - begin});
      words += end - begin;
    });
    reference.resize(words);
    current.resize(words);
    nibbles.resize(all_previous.empty() ? 0 : words);
    // Nothing of it is in a cache, and no two runs lie on one page.
    const auto fetch = [&](const Run& run) {
      for (std::size_t i = run.begin; i < run.begin + run.words; i += kLineWords) {
        __builtin_prefetch(&all_reference[i]);
        __builtin_prefetch(&all_current[i]);
      }
      if (!all_previous.empty()) __builtin_prefetch(&all_previous[run.begin / 2]);
    };
    std::size_t at = 0;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (r + kRunsAhead < runs.size()) fetch(runs[r + kRunsAhead]);
      const Run& run = runs[r];
      std::copy_n(all_reference.begin() + run.begin, run.words, reference.begin() + at);
      std::copy_n(all_current.begin() + run.begin, run.words, current.begin() + at);
      for (std::size_t i = 0; i < run.words && !all_previous.empty(); ++i) {
        nibbles[at + i] = static_cast<std::uint8_t>(nibble_at(all_previous, run.begin + i));
      }
      at += run.words;
    }
  }
  std::size_t size() const { return current.size(); }

 private:
  struct Run {
    std::size_t begin, words;
  };
  static constexpr std::size_t kRunsAhead = 8, kLineWords = 32;
};

// The highest exponent with a mass of its own (above 1 in 2000); it gets the last step.
int top_exponent(const Sample& sample) {
  std::array<std::uint32_t, 256> seen{};
  for (const std::uint16_t word : sample.reference) ++seen[word >> 7 & 255];
  int top = 255;
  for (std::uint32_t above = seen[255]; top > 0 && above <= sample.size() / 2000; above += seen[--top]) {
  }
  return top;
}

void require_words(Predictor predictor, std::size_t reference, std::size_t previous, std::size_t current) {
  const std::size_t wanted = predictor == Predictor::kMomentum ? previous_bytes(current) : 0;
  require(reference == current, "difference tables: got {} words against a reference of {}", current,
          reference);
  require(previous == wanted, "difference tables: got {} bytes of previous differences, expected {}",
          previous, wanted);
}

// Calls count(context, step) for each word of a sample.
template <typename Count>
void count_sample(const DifferenceTables& tables, const Sample& sample, const Count& count) {
  const std::size_t n = sample.size();
  std::vector<std::uint8_t> steps(n);
  if (tables.predictor() == Predictor::kMomentum) {
    for (std::size_t i = 0; i < n; ++i) {
      steps[i] = static_cast<std::uint8_t>(
          step_of(coded_value(sample.current[i], sample.reference[i], sample.nibbles[i])));
    }
    for (std::size_t i = 0; i < n; ++i)
      count(tables.context_of(sample.reference[i], sample.nibbles[i]), steps[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      steps[i] = static_cast<std::uint8_t>(step_of(coded_value(sample.current[i], sample.reference[i], 0)));
    }
    for (std::size_t i = 0; i < n; ++i) count(tables.context_of(sample.reference[i], 0), steps[i]);
  }
}

}  // namespace

// Measures a message: what its words are counted by, and then the best code for those counts.
struct DifferenceTables::Measured {
  DifferenceTables tables;
  std::vector<StepCounts> contexts;
  std::size_t sampled;

  Measured(Predictor predictor, const Sample& sample, int top) : sampled(sample.size()) {
    tables.predictor_ = predictor;
    tables.first_exponent_ = std::max(top - tables.num_exponents() + 1, 0);
    contexts.resize(static_cast<std::size_t>(tables.num_contexts()));
    count_sample(tables, sample, [&](auto context, auto step) { ++contexts[context][step]; });
  }

  DifferenceTables fit() && {
    const std::size_t row_length = tables.predictor_ == Predictor::kMomentum ? kNumLevels : contexts.size();
    const auto classes =
        merge_contexts(contexts, row_length, BucketCode::kMaxClasses, tables.class_of_context_.data());
    double bits = 0;
    for (const StepCounts& counts : classes) {
      tables.code_.classes.push_back(fit_buckets(counts));
      bits += cost_in_bits(tables.code_.classes.back(), counts);
    }
    tables.bits_per_word_ = sampled == 0 ? 0 : bits / static_cast<double>(sampled);
    return std::move(tables);
  }
};

DifferenceTables DifferenceTables::measure(Predictor predictor, std::span<const std::uint16_t> reference,
                                           std::span<const std::uint8_t> previous,
                                           std::span<const std::uint16_t> current) {
  require_words(predictor, reference.size(), previous.size(), current.size());
  const Sample sample(reference, previous, current);
  return Measured(predictor, sample, top_exponent(sample)).fit();
}

DifferenceTables DifferenceTables::measure_best(std::span<const std::uint16_t> reference,
                                                std::span<const std::uint8_t> previous,
                                                std::span<const std::uint16_t> current) {
  require_words(Predictor::kMomentum, reference.size(), previous.size(), current.size());
  const Sample sample(reference, previous, current);
  const int top = top_exponent(sample);
  Measured by_momentum(Predictor::kMomentum, sample, top), by_reference(Predictor::kReference, sample, top);
  const bool momentum = estimated_bits(by_momentum.contexts) < estimated_bits(by_reference.contexts);
  return std::move(momentum ? by_momentum : by_reference).fit();
}

DifferenceTables::Price DifferenceTables::price(std::span<const std::uint16_t> reference,
                                                std::span<const std::uint8_t> previous,
                                                std::span<const std::uint16_t> current) const {
  require_words(predictor_, reference.size(), previous.size(), current.size());
  const Sample sample(reference, previous, current);
  std::vector<StepCounts> classes(code_.classes.size());
  count_sample(*this, sample, [&](auto context, auto step) { ++classes[class_of_context_[context]][step]; });
  Price price;
  if (sample.size() == 0) return price;
  const auto sampled = static_cast<double>(sample.size());
  for (std::size_t c = 0; c < classes.size(); ++c) {
    price.bits_per_word += cost_in_bits(code_.classes[c], classes[c]) / sampled;
    price.attainable += attainable_bits(code_.classes[c], classes[c]) / sampled;
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
