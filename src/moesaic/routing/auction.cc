#include "moesaic/routing/auction.h"

#include <algorithm>

namespace moesaic {
namespace {

constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

class Auction {
 public:
  Auction(std::span<const float> scores, std::size_t num_experts)
      : scores_(scores),
        experts_(num_experts),
        tokens_(scores.size() / num_experts),
        step_(auction_step(scores)),
        price_(tokens_, 0.0),
        holder_(tokens_, kNobody),
        held_(experts_, 0) {}

  // False when every expert has all its tokens.
  bool round() {
    bids_.assign(tokens_, {0.0, kNobody});
    bool anyone = false;
    for (std::size_t e = 0; e < experts_; ++e) {
      if (held_[e] == places(e)) continue;
      anyone = true;
      bid(e);
    }
    for (std::size_t t = 0; anyone && t < tokens_; ++t) {
      if (bids_[t].expert == kNobody) continue;
      hand_over(t, bids_[t].expert);
      price_[t] += bids_[t].amount;
    }
    return anyone;
  }

  // Tokens without an expert, in order, to the free place they like best.
  void complete() {
    for (std::size_t t = 0; t < tokens_; ++t) {
      if (holder_[t] != kNobody) continue;
      std::size_t best = kNobody;
      for (std::size_t e = 0; e < experts_; ++e) {
        if (held_[e] == places(e)) continue;
        if (best == kNobody || score(t, e) > score(t, best)) best = e;
      }
      hand_over(t, best);
    }
  }

  std::vector<std::vector<std::int64_t>> result() const {
    std::vector<std::vector<std::int64_t>> tokens(experts_);
    for (std::size_t t = 0; t < tokens_; ++t) tokens[holder_[t]].push_back(static_cast<std::int64_t>(t));
    return tokens;
  }

 private:
  struct Bid {
    double amount;
    std::size_t expert;
  };
  struct Offer {
    double value;
    std::size_t token;
  };

  std::size_t places(std::size_t e) const { return tokens_ / experts_ + (e < tokens_ % experts_ ? 1 : 0); }
  double score(std::size_t t, std::size_t e) const { return scores_[t * experts_ + e]; }
  double value(std::size_t t, std::size_t e) const { return score(t, e) - price_[t]; }

  void hand_over(std::size_t t, std::size_t e) {
    if (holder_[t] != kNobody) --held_[holder_[t]];
    holder_[t] = e;
    ++held_[e];
  }

  // For the tokens that e lacks: the best of those it does not hold, against the best it would leave.
  void bid(std::size_t e) {
    others_.clear();
    for (std::size_t t = 0; t < tokens_; ++t) {
      if (holder_[t] != e) others_.push_back({value(t, e), t});
    }
    const std::size_t lacks = places(e) - held_[e];
    // With places for all, nothing is left, and the least it values stands for what is.
    const std::size_t next = std::min(lacks, others_.size() - 1);
    std::nth_element(others_.begin(), others_.begin() + static_cast<std::ptrdiff_t>(next), others_.end(),
                     [](const Offer& a, const Offer& b) {
                       return a.value > b.value || (a.value == b.value && a.token < b.token);
                     });
    const double left = others_[next].value;
    for (std::size_t i = 0; i < lacks; ++i) {
      const double amount = others_[i].value - left + step_;
      Bid& highest = bids_[others_[i].token];
      if (highest.expert == kNobody || amount > highest.amount) highest = {amount, e};
    }
  }

  std::span<const float> scores_;
  std::size_t experts_, tokens_;
  double step_;
  std::vector<double> price_;
  std::vector<std::size_t> holder_;  // [T]
  std::vector<std::size_t> held_;    // [E] how many
  std::vector<Bid> bids_;
  std::vector<Offer> others_;
};

}  // namespace

double auction_step(std::span<const float> scores) {
  if (scores.empty()) return 1e-4;
  const auto [least, most] = std::ranges::minmax(scores);
  return std::max((static_cast<double>(most) - least) / 50.0, 1e-4);
}

std::vector<std::vector<std::int64_t>> auction(std::span<const float> scores, std::int64_t num_experts,
                                               int most_rounds) {
  Auction market(scores, static_cast<std::size_t>(num_experts));
  if (scores.empty()) return market.result();
  for (int i = 0; i < most_rounds && market.round(); ++i) {
  }
  market.complete();
  return market.result();
}

}  // namespace moesaic
