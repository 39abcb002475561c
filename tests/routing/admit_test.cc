// Capacity: the distributed admit() against one list of all tokens that takes slots one after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/gate.h"

namespace moesaic {
namespace {

using Ids = std::vector<std::int32_t>;
using Split = std::vector<std::int64_t>;  // tokens per rank

// The formula: all tokens of all ranks in one list, first choices before second ones; a choice takes the next
// free slot of its expert or is dropped.
Ids admit_sequentially(const Ids& wanted, std::int64_t top_k, std::int64_t num_experts,
                       std::int64_t capacity) {
  Ids kept(wanted.size(), -1);
  std::vector<std::int64_t> taken(static_cast<std::size_t>(num_experts), 0);
  const auto step = static_cast<std::size_t>(top_k);
  for (std::size_t k = 0; k < step; ++k) {
    for (std::size_t i = k; i < wanted.size(); i += step) {
      if (wanted[i] < 0) continue;
      auto& used = taken[static_cast<std::size_t>(wanted[i])];
      if (capacity >= 0 && used == capacity) continue;
      ++used;
      kept[i] = wanted[i];
    }
  }
  return kept;
}

struct World {
  std::vector<Choices> choices;        // per rank
  std::vector<std::int64_t> gathered;  // [W,K,E]
  std::int64_t valid_tokens = 0;
  int size() const { return static_cast<int>(choices.size()); }
};

World spread(const GateOptions& options, const std::vector<float>& logits,
             const std::vector<std::uint8_t>& mask, const Split& split) {
  World world;
  std::size_t begin = 0;
  for (const std::int64_t tokens : split) {
    const auto n = static_cast<std::size_t>(tokens), experts = static_cast<std::size_t>(options.num_experts);
    world.choices.push_back(
        choose(options, {.logits = std::span(logits).subspan(begin * experts, n * experts),
                         .mask = std::span(mask).subspan(begin, n)}));
    begin += n;
    const auto& mine = world.choices.back();
    world.gathered.insert(world.gathered.end(), mine.counts.begin(), mine.counts.end());
    world.valid_tokens += mine.valid_tokens;
  }
  return world;
}

struct Case {
  std::int64_t num_tokens, num_experts, top_k;
  double capacity_factor;
  std::int64_t min_capacity;
  double skew;  // added to expert 0's logits
};

GateOptions gate_of(const Case& c) {
  GateOptions options;
  options.num_experts = c.num_experts;
  options.top_k = c.top_k;
  options.capacity_factor = c.capacity_factor;
  options.min_capacity = c.min_capacity;
  return options;
}

const std::vector<Case> kCases{
    {24, 4, 1, 1.0, 0, 0.0}, {24, 4, 2, 1.0, 0, 0.0}, {24, 4, 2, 0.5, 0, 3.0}, {24, 6, 3, 1.25, 0, 1.0},
    {24, 6, 6, 1.0, 0, 0.0}, {24, 5, 2, 0.1, 4, 2.0}, {24, 4, 2, 0.0, 0, 5.0}, {24, 1, 1, 0.5, 0, 0.0},
};
const std::vector<Split> kSplits{{24},
                                 {12, 12},
                                 {0, 24},
                                 {24, 0},
                                 {1, 0, 23},
                                 {6, 6, 6, 6},
                                 {0, 10, 0, 14},
                                 {3, 4, 5, 0, 5, 6, 1},
                                 {0, 0, 0, 24, 0, 0, 0}};

std::vector<float> logits_of(const Case& c) {
  std::vector<float> logits(static_cast<std::size_t>(c.num_tokens * c.num_experts));
  const auto key = random_key(11, "logits");
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = random_normal(key, i) +
                (i % static_cast<std::size_t>(c.num_experts) == 0 ? static_cast<float>(c.skew) : 0.0f);
  }
  logits[7 * static_cast<std::size_t>(c.num_experts)] = INFINITY;  // token 7 gets no expert
  return logits;
}

std::vector<std::uint8_t> mask_of(const Case& c) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(c.num_tokens), 1);
  mask[3] = mask[13] = mask[23] = 0;
  return mask;
}

TEST(Admit, AgreesWithOneSequentialListForEverySplitOverRanks) {
  for (const auto& c : kCases) {
    const auto options = gate_of(c);
    const auto logits = logits_of(c);
    const auto mask = mask_of(c);
    const auto whole = spread(options, logits, mask, {c.num_tokens});
    const auto capacity = expert_capacity(options, whole.valid_tokens);
    const auto expected = admit_sequentially(whole.choices[0].expert_ids, c.top_k, c.num_experts, capacity);
    const auto lost = [&](const Ids& ids) { return std::count(ids.begin(), ids.end(), -1); };
    for (const auto& split : kSplits) {
      const auto world = spread(options, logits, mask, split);
      Ids got;
      std::int64_t dropped = 0, masked = 0, non_finite = 0;
      std::vector<std::int64_t> kept(static_cast<std::size_t>(c.num_experts), 0);
      for (int r = 0; r < world.size(); ++r) {
        const auto plan = admit(options, world.choices[static_cast<std::size_t>(r)], world.gathered,
                                world.valid_tokens, r, world.size());
        got.insert(got.end(), plan.expert_ids.begin(), plan.expert_ids.end());
        dropped += plan.dropped_capacity;
        masked += plan.masked;
        non_finite += plan.dropped_non_finite;
        for (std::size_t e = 0; e < kept.size(); ++e) kept[e] += plan.kept[e];
        EXPECT_EQ(plan.weights, std::vector<float>(plan.expert_ids.size(), 0.0f));
      }
      EXPECT_EQ(got, expected);
      EXPECT_EQ(dropped, lost(expected) - lost(whole.choices[0].expert_ids));
      EXPECT_EQ(masked, 3 * c.top_k);
      EXPECT_EQ(non_finite, c.top_k);
      for (std::size_t e = 0; e < kept.size(); ++e) {
        EXPECT_EQ(kept[e], std::count(expected.begin(), expected.end(), static_cast<std::int32_t>(e)));
        if (capacity >= 0) {
          EXPECT_LE(kept[e], capacity);
        }
      }
    }
  }
}

TEST(Admit, SlotsWithinAnExpertNeverCollideAndKeptOnesFillItFromZero) {
  for (const auto& c : kCases) {
    const auto options = gate_of(c);
    for (const auto& split : kSplits) {
      const auto world = spread(options, logits_of(c), mask_of(c), split);
      const auto capacity = expert_capacity(options, world.valid_tokens);
      std::vector<std::set<std::int64_t>> slots_of(static_cast<std::size_t>(c.num_experts));
      for (int r = 0; r < world.size(); ++r) {
        const auto& choices = world.choices[static_cast<std::size_t>(r)];
        const auto plan = admit(options, choices, world.gathered, world.valid_tokens, r, world.size());
        const auto slots = slots_wanted(options, choices, world.gathered, r, world.size());
        for (std::size_t i = 0; i < slots.size(); ++i) {
          if (plan.expert_ids[i] < 0) continue;
          if (capacity >= 0) {
            EXPECT_LT(slots[i], capacity);
          }
          const bool fresh = slots_of[static_cast<std::size_t>(plan.expert_ids[i])].insert(slots[i]).second;
          EXPECT_TRUE(fresh) << "slot " << slots[i] << " of expert " << plan.expert_ids[i] << " given twice";
        }
      }
      for (const auto& slots : slots_of) {
        if (!slots.empty()) {
          EXPECT_EQ(*slots.rbegin() + 1, static_cast<std::int64_t>(slots.size()));
        }
      }
    }
  }
}

TEST(Admit, SecondChoicesOfTheMeasuredCollisionCaseKeepTheirOwnSlots) {
  // T=1024, E=16, k=2, capacity 1.0: slots counted from the second choice's own count overwrite 60 to 95 of
  // 2048.
  Case c{1024, 16, 2, 1.0, 0, 0.0};
  const auto options = gate_of(c);
  const auto world = spread(options, logits_of(c), mask_of(c), {1024});
  const auto plan = admit(options, world.choices[0], world.gathered, world.valid_tokens, 0, 1);
  const auto slots = slots_wanted(options, world.choices[0], world.gathered, 0, 1);
  std::set<std::pair<std::int32_t, std::int64_t>> used;
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (plan.expert_ids[i] < 0) continue;
    ++kept;
    used.insert({plan.expert_ids[i], slots[i]});
  }
  EXPECT_EQ(static_cast<std::int64_t>(used.size()), kept);
  EXPECT_GT(plan.dropped_capacity, 0);
}

TEST(Admit, FiveTokensForOneExpertOfFourKeepTheFirstFour) {
  auto options = gate_of({5, 4, 1, 1.0, 4, 0.0});
  options.name = "switch";
  std::vector<float> logits(5 * 4, 0.0f);
  for (std::size_t t = 0; t < 5; ++t) logits[t * 4] = 9.0f;
  for (const auto& split : {Split{5}, Split{2, 3}, Split{0, 4, 1}}) {
    const auto world = spread(options, logits, std::vector<std::uint8_t>(5, 1), split);
    Ids ids;
    std::int64_t dropped = 0;
    for (int r = 0; r < world.size(); ++r) {
      const auto plan =
          admit(options, world.choices[static_cast<std::size_t>(r)], world.gathered, 5, r, world.size());
      ids.insert(ids.end(), plan.expert_ids.begin(), plan.expert_ids.end());
      dropped += plan.dropped_capacity;
    }
    EXPECT_EQ(ids, (Ids{0, 0, 0, 0, -1}));
    EXPECT_EQ(dropped, 1);
  }
}

TEST(Admit, CapacityAboveTheTokensClampsAndDropsNothing) {
  const auto options = gate_of({3, 2, 2, 2.0, 0, 0.0});
  const auto world = spread(options, {1, 0, 1, 0, 1, 0}, {1, 1, 1}, {3});
  EXPECT_EQ(expert_capacity(options, 3), 3);
  const auto plan = admit(options, world.choices[0], world.gathered, 3, 0, 1);
  EXPECT_EQ(plan.expert_ids, (Ids{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(plan.dropped_capacity, 0);
}

TEST(Admit, AllFirstChoicesComeBeforeAnySecondChoiceEvenOfAnEarlierRank) {
  // Rank 0's second choice and rank 1's first choice want expert 1, which takes one row.
  auto options = gate_of({2, 3, 2, 0.5, 0, 0.0});
  const auto world = spread(options, {2, 1, 0, /**/ 0, 2, 1}, {1, 1}, {1, 1});
  EXPECT_EQ(expert_capacity(options, 2), 1);
  EXPECT_EQ(admit(options, world.choices[0], world.gathered, 2, 0, 2).expert_ids, (Ids{0, -1}));
  EXPECT_EQ(admit(options, world.choices[1], world.gathered, 2, 1, 2).expert_ids, (Ids{1, 2}));
}

TEST(Admit, RankScopeDropsAsIfEachRankWereAlone) {
  auto options = gate_of({24, 4, 2, 0.75, 0, 2.0});
  options.capacity_scope = CapacityScope::kRank;
  const Case c{24, 4, 2, 0.75, 0, 2.0};
  const auto world = spread(options, logits_of(c), mask_of(c), {10, 0, 14});
  for (int r = 0; r < world.size(); ++r) {
    const auto& choices = world.choices[static_cast<std::size_t>(r)];
    const auto plan = admit(options, choices, world.gathered, choices.valid_tokens, r, world.size());
    EXPECT_EQ(plan.expert_ids,
              admit_sequentially(choices.expert_ids, 2, 4, expert_capacity(options, choices.valid_tokens)));
  }
}

TEST(Admit, DroplessNeedsNoCountsOfOthers) {
  const auto options = gate_of({4, 3, 2, 0.0, 0, 0.0});
  const auto choices = choose(options, {.logits = std::vector<float>{1, 0, 2, /**/ 0, 1, 2}});
  const auto plan = admit(options, choices, {}, 0, 0, 4);
  EXPECT_EQ(plan.expert_ids, choices.expert_ids);
  EXPECT_EQ(plan.kept, (std::vector<std::int64_t>{1, 1, 2}));
}

TEST(Admit, LargeCountsStayExact) {
  // 40,840 tokens of an earlier rank: bf16 would make them 40,960, fp32 loses the last of 2^24 + 1.
  for (const std::int64_t earlier :
       {std::int64_t{40840}, (std::int64_t{1} << 24) + 1, std::int64_t{1} << 40}) {
    auto options = gate_of({1, 2, 1, 1.0, 0, 0.0});
    const auto choices = choose(options, {.logits = std::vector<float>{1, 0}});
    const std::vector<std::int64_t> gathered{earlier, 0, /**/ 1, 0};
    EXPECT_EQ(slots_wanted(options, choices, gathered, 1, 2), (std::vector<std::int64_t>{earlier}));
  }
}

TEST(Admit, RefusesCountsThatContradictTheChoices) {
  const auto options = gate_of({2, 2, 1, 1.0, 0, 0.0});
  const auto choices = choose(options, {.logits = std::vector<float>{1, 0, 0, 1}});
  EXPECT_THROW(admit(options, choices, std::vector<std::int64_t>{1, 1}, 2, 0, 2), InvalidArgument);  // size
  EXPECT_THROW(admit(options, choices, std::vector<std::int64_t>{2, 0}, 2, 0, 1),
               InvalidArgument);  // content
  EXPECT_THROW(admit(options, choices, std::vector<std::int64_t>{1, 1}, 3, 0, 1), InvalidArgument);  // tokens
  EXPECT_THROW(admit(options, choices, std::vector<std::int64_t>{1, 1}, 2, 1, 1), InvalidArgument);  // rank
  EXPECT_NO_THROW(admit(options, choices, std::vector<std::int64_t>{1, 1}, 2, 0, 1));
}

}  // namespace
}  // namespace moesaic
