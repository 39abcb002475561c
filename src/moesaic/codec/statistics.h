// statistics.h: what a step did to the weights of some units, and what an ideal coder would make of that.
//
// Local, one pass over the words. Entropies are of the counts themselves, in bits a word: no code whose
// tables know no more than the stated context does better, whatever its tables cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic::codec {

// The words of one unit at three steps in a row.
struct UnitStep {
  std::span<const std::uint16_t> before;  // empty: not known, previous differences count as 0
  std::span<const std::uint16_t> reference;
  std::span<const std::uint16_t> current;
};

class ChangeStatistics {
 public:
  ChangeStatistics();

  // Adds the unit's words. InvalidArgument where the sizes differ.
  void add(const UnitStep& unit);

  std::int64_t words() const { return words_; }
  // Shares of all words, 0 to 1; 0 of nothing.
  double words_changed() const;
  double exponents_changed() const;

  // H(residual | exponent): of the zigzagged difference (order.h) given the reference's exponent. Differences
  // of 2,047 and more count as one value.
  double entropy_given_exponent() const;
  // H(residual | exponent, previous difference): given also the sign (-, 0, +) of the previous difference and
  // the number of bits, up to 7, of its magnitude.
  double entropy_given_previous() const;

 private:
  using Counts = std::vector<std::uint64_t>;  // by value; empty where the context was never met
  std::int64_t words_ = 0, words_changed_ = 0, exponents_changed_ = 0;
  std::vector<Counts> counts_;  // by context: the exponent, then what is known of the previous difference
};

}  // namespace moesaic::codec
