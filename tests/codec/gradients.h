// gradients.h: words with the magnitudes of a gradient, and whole gradient messages.
#pragma once

#include <cmath>

#include "moesaic/codec/gradient.h"
#include "tests/codec/steps.h"

namespace moesaic::codec {

// Normals whose deviation is a row's times a column's, each spread over some octaves; every matrix of the
// stack with others of its own. Matrices whose number is a multiple of `dead_every` (0: none) are all zero.
inline Words gradients(const GradientPiece& piece, std::uint64_t seed, std::uint64_t dead_every = 0) {
  const std::uint64_t key = random_key(seed, "gradient"), matrix = std::uint64_t{piece.rows} * piece.cols;
  const auto scale = [&](std::uint64_t i, std::uint64_t which) {
    return std::exp2(2 * random_normal(key, i, which));
  };
  Words words(piece.words);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint64_t at = piece.offset + i, number = at / matrix;
    if (dead_every > 0 && number % dead_every == 0) continue;
    const float row = scale(at / piece.cols, 1), column = scale(number * piece.cols + at % piece.cols, 2);
    words[i] = to_bf16(1e-4f * row * column * random_normal(key, at, 3)).bits;
  }
  return words;
}

inline Bytes encode(GradientWire wire, const Words& words, const std::vector<GradientPiece>& pieces,
                    const GradientOptions& options = {}) {
  Bytes bytes(gradient_bound(pieces, options));
  bytes.resize(encode_gradient(wire, words, pieces, options, bytes).bytes);
  return bytes;
}

inline Words decode_words(const Bytes& message, std::size_t words, std::uint64_t unit = 0) {
  Words out(words, 0xabcd);
  decode_gradient(message, unit, out);
  return out;
}

}  // namespace moesaic::codec
