// mixture.h: which source each sample of a run comes from, so that every prefix holds the sources in their
// shares.
//
// After n samples each source has been drawn n * share times, give or take less than one, for every n. The
// sequence depends on the weights alone and any place in it is found at once, so a run resumes anywhere.
//
// Weights become whole numbers: as they are where they have at most six decimals and add up to at most a
// million in the last of them (0.7 and 0.3 are 7 and 3), else in millionths of their sum, at least one each.
// Their sum is the period. Within it, the j-th draw of a source with share m of M may fall on
// floor(j*M/m) .. ceil((j+1)*M/m) - 1; of those that may, the one due first is taken. That never misses a
// date (earliest deadline first with unit jobs; Baruah et al., "Proportionate progress", Algorithmica 1996).
//
// Local. Cost: period * sources once, then O(1). Memory: 8 bytes per place of the period.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

class Mixture {
 public:
  // InvalidArgument when a weight is negative or not finite, or none is above 0.
  explicit Mixture(std::span<const double> weights);

  struct Place {
    std::size_t source;
    std::int64_t nth;  // how many samples of `source` came before
  };
  Place at(std::int64_t sample) const;

  // Draws of each source in one period; 0 where the weight is 0.
  std::span<const std::int64_t> shares() const { return shares_; }
  std::int64_t period() const { return static_cast<std::int64_t>(places_.size()); }

 private:
  struct InPeriod {
    std::uint32_t source, nth;
  };
  std::vector<std::int64_t> shares_;
  std::vector<InPeriod> places_;
};

}  // namespace moesaic
