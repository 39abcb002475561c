#include "moesaic/nn/gate_exchange.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {
namespace {

using Experts = std::vector<std::vector<std::int32_t>>;  // of each token, ascending

Span span_of(Communicator& world, const char* name, int layer) {
  return Span(world.tracer(), {.phase = Phase::kCounts, .name = name, .index = layer});
}

std::vector<std::int64_t> gather_one(Communicator& world, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  const std::vector<std::int64_t> bytes(all.size(), sizeof(std::int64_t));
  all_gather_v(world, std::as_bytes(std::span(&mine, 1)), bytes, std::as_writable_bytes(std::span(all)));
  return all;
}

// The experts of tokens first..first+count of an assignment.
Experts experts_of(const Assignment& assignment, std::int64_t first, std::int64_t count) {
  Experts experts(static_cast<std::size_t>(count));
  for (std::size_t e = 0; e < assignment.size(); ++e) {
    for (const std::int64_t token : assignment[e]) {
      if (token >= first && token < first + count) {
        experts[static_cast<std::size_t>(token - first)].push_back(static_cast<std::int32_t>(e));
      }
    }
  }
  return experts;
}

Experts assign_all(Communicator& world, const GateOptions& options, const ValidTokens& mine) {
  const std::vector<std::int64_t> counts = gather_one(world, std::ssize(mine.token));
  std::vector<std::int64_t> bytes;
  for (const std::int64_t count : counts) {
    bytes.push_back(count * options.num_experts * std::int64_t{sizeof(float)});
  }
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<float> logits(static_cast<std::size_t>(total * options.num_experts));
  all_gather_v(world, std::as_bytes(std::span(mine.logits)), bytes,
               std::as_writable_bytes(std::span(logits)));
  const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::int64_t{0});
  return experts_of(assign(options, logits), first, std::ssize(mine.token));
}

// A random order of all tokens, cut into hands of nearly equal size, one for each rank.
class Deal {
 public:
  Deal(std::uint64_t key, std::vector<std::int64_t> counts, int rank)
      : key_(key), total_(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})) {
    const auto ranks = std::ssize(counts);
    const auto begin_of = [&](std::int64_t r) { return r * (total_ / ranks) + std::min(r, total_ % ranks); };
    first_ = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
    for (std::int64_t r = 0; r <= ranks; ++r) begins_.push_back(begin_of(r));
    receive_.resize(counts.size());
    send_.resize(counts.size());
    // From whom the tokens of this rank's hand come, in the order in which they arrive.
    std::int64_t token = 0;
    for (std::size_t source = 0; source < counts.size(); ++source) {
      for (std::int64_t end = token + counts[source]; token < end; ++token) {
        const std::int64_t position = position_of(token);
        const int to = holder_of(position);
        if (static_cast<int>(source) == rank) {
          ++send_[static_cast<std::size_t>(to)];
          to_.push_back(to);
        }
        if (to != rank) continue;
        ++receive_[source];
        places_.push_back(position - begins_[static_cast<std::size_t>(rank)]);
      }
    }
  }
  const std::vector<std::int64_t>& send() const { return send_; }        // [W] of this rank's tokens
  const std::vector<std::int64_t>& receive() const { return receive_; }  // [W] tokens of this rank's hand
  const std::vector<int>& to() const { return to_; }                     // of each of this rank's tokens
  const std::vector<std::int64_t>& places() const { return places_; }    // in the hand, as they arrive

 private:
  std::int64_t position_of(std::int64_t token) const { return random_permutation(key_, total_, token); }
  int holder_of(std::int64_t position) const {
    return static_cast<int>(std::upper_bound(begins_.begin(), begins_.end() - 1, position) -
                            begins_.begin()) -
           1;
  }

  std::uint64_t key_;
  std::int64_t total_, first_ = 0;
  std::vector<std::int64_t> begins_, send_, receive_, places_;
  std::vector<int> to_;
};

std::vector<std::int64_t> times(std::vector<std::int64_t> counts, std::int64_t factor) {
  for (std::int64_t& count : counts) count *= factor;
  return counts;
}

// Positions of this rank's tokens in a buffer ordered by the rank they go to.
std::vector<std::size_t> send_order(const Deal& deal) {
  std::vector<std::size_t> next(deal.send().size(), 0), order;
  for (std::size_t r = 1; r < next.size(); ++r) {
    next[r] = next[r - 1] + static_cast<std::size_t>(deal.send()[r - 1]);
  }
  for (const int to : deal.to()) order.push_back(next[static_cast<std::size_t>(to)]++);
  return order;
}

Experts assign_shuffled(Communicator& world, const GateOptions& options, const GateInput& input,
                        const ValidTokens& mine) {
  const std::uint64_t key = random_bits(random_key(input.seed, "shuffle of tokens"), input.lane);
  const Deal deal(key, gather_one(world, std::ssize(mine.token)), world.rank());
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const std::vector<std::size_t> order = send_order(deal);
  std::vector<float> sent(mine.logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::copy_n(mine.logits.begin() + static_cast<std::ptrdiff_t>(i * num_experts), num_experts,
                sent.begin() + static_cast<std::ptrdiff_t>(order[i] * num_experts));
  }
  const std::int64_t row_bytes = options.num_experts * std::int64_t{sizeof(float)};
  const std::vector<std::int64_t>& places = deal.places();
  std::vector<float> arrived(places.size() * num_experts), hand(arrived.size());
  all_to_all_v(world, std::as_bytes(std::span(sent)), times(deal.send(), row_bytes),
               std::as_writable_bytes(std::span(arrived)), times(deal.receive(), row_bytes));
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::copy_n(arrived.begin() + static_cast<std::ptrdiff_t>(i * num_experts), num_experts,
                hand.begin() + places[i] * static_cast<std::ptrdiff_t>(num_experts));
  }

  const Experts assigned = experts_of(assign(options, hand), 0, std::ssize(places));
  std::vector<std::int32_t> answers, returned(order.size());
  for (const std::int64_t place : places) answers.push_back(assigned[static_cast<std::size_t>(place)].at(0));
  all_to_all_v(world, std::as_bytes(std::span(answers)), times(deal.receive(), sizeof(std::int32_t)),
               std::as_writable_bytes(std::span(returned)), times(deal.send(), sizeof(std::int32_t)));
  Experts experts;
  for (const std::size_t at : order) experts.push_back({returned[at]});
  return experts;
}

}  // namespace

Gathered gather_counts(Communicator& world, int layer, const Choices& choices,
                       const std::vector<double>& probability) {
  const Span span = span_of(world, "router counts", layer);
  const std::size_t num_counts = choices.counts.size(), num_experts = probability.size();
  const std::size_t part = num_counts + 3 + num_experts;
  std::vector<std::int64_t> mine = choices.counts;
  mine.push_back(choices.valid_tokens);
  mine.push_back(choices.first_non_finite);
  mine.push_back(choices.num_tokens);
  for (const double p : probability) mine.push_back(std::bit_cast<std::int64_t>(p));

  const auto num_ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> all(part * num_ranks);
  const std::vector<std::int64_t> bytes(num_ranks, static_cast<std::int64_t>(part * sizeof(std::int64_t)));
  all_gather_v(world, std::as_bytes(std::span(mine)), bytes, std::as_writable_bytes(std::span(all)));

  Gathered gathered;
  gathered.chosen.assign(num_experts, 0);
  gathered.first_chosen.assign(num_experts, 0);
  gathered.probability.assign(num_experts, 0.0);
  for (std::size_t r = 0; r < num_ranks; ++r) {
    const auto theirs = std::span(all).subspan(r * part, part);
    gathered.counts.insert(gathered.counts.end(), theirs.begin(),
                           theirs.begin() + static_cast<std::ptrdiff_t>(num_counts));
    for (std::size_t i = 0; i < num_counts; ++i) gathered.chosen[i % num_experts] += theirs[i];
    for (std::size_t e = 0; e < num_experts; ++e) {
      gathered.first_chosen[e] += theirs[e];
      gathered.probability[e] += std::bit_cast<double>(theirs[num_counts + 3 + e]);
    }
    gathered.valid += theirs[num_counts];
    gathered.tokens_of_rank.push_back(theirs[num_counts + 2]);
    if (theirs[num_counts + 1] >= 0 && gathered.non_finite_rank < 0) {
      gathered.non_finite_rank = static_cast<int>(r);
      gathered.non_finite_token = theirs[num_counts + 1];
    }
  }
  return gathered;
}

Choices choose_across(Communicator& world, int layer, Gathering how, const GateOptions& options,
                      const GateInput& input) {
  ValidTokens mine = valid_tokens(options, input);
  const Span span = span_of(world, "router scores", layer);
  Experts experts;
  switch (how) {
    case Gathering::kNone:
      throw InvalidArgument("gate: choose_across is for gates that look at tokens together");
    case Gathering::kOwnRank:
      experts = experts_of(assign(options, mine.logits), 0, std::ssize(mine.token));
      break;
    case Gathering::kAllRanks:
      experts = assign_all(world, options, mine);
      break;
    case Gathering::kShuffled:
      experts = assign_shuffled(world, options, input, mine);
      break;
  }
  return choose_together(options, std::move(mine), experts);
}

ScoredChoices gather_scores(Communicator& world, int layer, const GateOptions& options,
                            std::span<const float> logits, const Choices& choices,
                            const std::vector<std::int64_t>& tokens_of_rank) {
  ScoredChoices scored;
  scored.num_choices = choices.num_choices;
  std::vector<float> mine = choice_scores(options, logits, choices);
  if (options.capacity_scope == CapacityScope::kRank) {
    scored.tokens_of_rank = {choices.num_tokens};
    scored.expert_ids = choices.expert_ids;
    scored.scores = std::move(mine);
    return scored;
  }
  const Span span = span_of(world, "router scores", layer);
  scored.tokens_of_rank = tokens_of_rank;
  const std::vector<std::int64_t> bytes = times(tokens_of_rank, choices.num_choices * 4);
  const std::int64_t total = std::accumulate(tokens_of_rank.begin(), tokens_of_rank.end(), std::int64_t{0});
  scored.expert_ids.resize(static_cast<std::size_t>(total * choices.num_choices));
  scored.scores.resize(scored.expert_ids.size());
  all_gather_v(world, std::as_bytes(std::span(choices.expert_ids)), bytes,
               std::as_writable_bytes(std::span(scored.expert_ids)));
  all_gather_v(world, std::as_bytes(std::span(mine)), bytes,
               std::as_writable_bytes(std::span(scored.scores)));
  return scored;
}

}  // namespace moesaic
