// training_weights.h: words that change from step to step as a model's do under Adam at the peak of its
// learning rate: for measuring coders without a model.
//
// Local. Normal weights; every step moves each by its own drift and a little noise, so that a difference
// tells much of the next. How large, was chosen so that the methods take about as many bits as on a recorded
// trace (residual 3.6, momentum 2.7, exponent_reuse 9.0, entropy 10.6 a word).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesaic {

class TrainingWeights {
 public:
  TrainingWeights(std::size_t words, std::uint64_t seed);

  std::size_t size() const { return normal_.size(); }
  // bf16 bits after `steps` steps. Cost: a pass over the words.
  void after(int steps, std::vector<std::uint16_t>& words) const;

 private:
  float normal(std::size_t i, std::size_t shift) const { return normal_[(i + shift) % normal_.size()]; }

  std::vector<float> normal_;
};

// A matrix [rows, cols] of bf16 words that vary as a gradient does: each by the scales of its row and of its
// column, which tell its exponent but for some 2.4 bits.
std::vector<std::uint16_t> training_gradient(std::size_t rows, std::size_t cols, std::uint64_t seed);

}  // namespace moesaic
