#include "moesaic/cost/training_weights.h"

#include <cmath>

#include "moesaic/core/bf16.h"
#include "moesaic/core/rng.h"

namespace moesaic {
namespace {

constexpr float kDeviation = 0.02f;  // of the weights
constexpr float kDrift = 1.55e-4f;   // of a weight's steady step
constexpr float kNoise = 0.215e-4f;  // of what a step adds to it

constexpr float kGradient = 1e-5f;
constexpr float kScaleSpread = 1;  // of the logarithms of rows' and columns' scales

// One list of normals serves for all three, read from different places: each word gets values that have
// nothing to do with each other.
constexpr std::size_t kDriftShift = 7'919;
constexpr std::size_t kNoiseShift = 104'729;

}  // namespace

TrainingWeights::TrainingWeights(std::size_t words, std::uint64_t seed) : normal_(words) {
  const std::uint64_t key = random_key(seed, "training weights");
  for (std::size_t i = 0; i < words; ++i) normal_[i] = random_normal(key, i);
}

void TrainingWeights::after(int steps, std::vector<std::uint16_t>& words) const {
  const auto drifted = kDrift * static_cast<float>(steps);
  const std::size_t noise_at = kNoiseShift * static_cast<std::size_t>(steps);
  words.resize(size());
  for (std::size_t i = 0; i < size(); ++i) {
    words[i] =
        to_bf16(kDeviation * normal(i, 0) + drifted * normal(i, kDriftShift) + kNoise * normal(i, noise_at))
            .bits;
  }
}

std::vector<std::uint16_t> training_gradient(std::size_t rows, std::size_t cols, std::uint64_t seed) {
  const std::uint64_t key = random_key(seed, "training gradient");
  std::vector<float> scales(rows + cols);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = std::exp(kScaleSpread * random_normal(key, i));
  std::vector<std::uint16_t> words(rows * cols);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const float scale = kGradient * scales[i / cols] * scales[rows + i % cols];
    words[i] = to_bf16(scale * random_normal(key, scales.size() + i)).bits;
  }
  return words;
}

}  // namespace moesaic
