// gradient_scales.h: what the exponents of a gradient's words are likely to be: a scale per row and column.
//
// Local. The gradient of a matrix is a sum of outer products, so its magnitudes follow its rows and columns.
// A piece is cut where matrices begin. Of each cut the scales are: its mean exponent, and where it has
// enough rows or columns to pay for them, what each row and then each column adds to it; all in quarters of
// an octave, from a sample of the words that are not zero.
//
// As bytes: u32 number of pieces | of each piece u64 words, u32 rows, u32 columns, u64 offset | of each cut
// u16 mean, 0: all its sampled words are zero, and it has no scales | i8 of each row | i8 of each column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesaic::codec {

// Words that lie one after the other in a stack of matrices [rows, cols], row by row, from element `offset`
// of the stack on. They may begin and end inside a row. Matrices of less than kFewestWords share their scales
// (a vector is one row); a stack of experts has the rows of one expert, for experts differ.
struct GradientPiece {
  std::uint64_t words = 0;
  std::uint32_t rows = 1;
  std::uint32_t cols = 1;
  std::uint64_t offset = 0;
};

class GradientScales {
 public:
  static constexpr std::uint64_t kFewestWords = 4096;  // of a matrix that gets scales
  static constexpr std::uint64_t kFewestScaled = 64;   // words of a row, or rows, that a scale stands for

  // `words` are those of the pieces, one after the other.
  static GradientScales measure(std::span<const GradientPiece> pieces, std::span<const std::uint16_t> words);

  // What append_to() adds is no longer than bytes_bound(). read() takes them from the front of `bytes` and
  // moves it on; CorruptData on anything invalid, and where the pieces do not have `words` words.
  static std::size_t bytes_bound(std::span<const GradientPiece> pieces);
  void append_to(std::vector<std::uint8_t>& out) const;
  static GradientScales read(std::span<const std::uint8_t>& bytes, std::size_t words);

  // Of the words from number `begin` on, exponents told against their prediction (exponent_shift.h), and
  // back.
  void shift(std::size_t begin, std::span<const std::uint16_t> from, std::uint16_t* to) const;
  void unshift(std::size_t begin, std::span<const std::uint16_t> from, std::uint16_t* to) const;

 private:
  // Words of one matrix, or of a run of small ones, which counts as one row.
  struct Cut {
    std::size_t begin, words;
    std::uint64_t cols, phase;  // of a row; column of the first word
    std::int16_t mean = 0;
    std::vector<std::int16_t> row;     // empty where rows have no scales
    std::vector<std::int16_t> column;  // the same

    std::uint64_t rows() const { return (phase + words + cols - 1) / cols; }
    bool scales_rows() const { return rows() > 1 && cols >= kFewestScaled; }
    bool scales_columns() const { return rows() >= kFewestScaled; }
  };

  static std::vector<Cut> cuts_of(std::span<const GradientPiece> pieces);
  static void measure(Cut& cut, std::span<const std::uint16_t> words);
  template <typename Run>
  void for_each_run(std::size_t begin, std::size_t words, const Run& run) const;

  std::vector<GradientPiece> pieces_;
  std::vector<Cut> cuts_;
};

}  // namespace moesaic::codec
