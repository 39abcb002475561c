// What a step's statistics count, and that a trial sends what it says.
#include "moesaic/codec/trial.h"

#include <gtest/gtest.h>

#include <cmath>

#include "moesaic/codec/difference.h"
#include "tests/codec/steps.h"

namespace moesaic::codec {
namespace {

// Of one value in four.
const double kQuarter = 0.25 * 2 + 0.75 * std::log2(4.0 / 3.0);

TEST(ChangeStatistics, CountsWordsAndExponentsThatChanged) {
  const Words before = {0x3f80, 0x3f80, 0x3fff, 0xbf80}, after = {0x3f80, 0x3f81, 0x4000, 0x3f80};
  ChangeStatistics statistics;
  statistics.add({{}, before, after});
  EXPECT_EQ(statistics.words(), 4);
  EXPECT_DOUBLE_EQ(statistics.words_changed(), 0.75);
  EXPECT_DOUBLE_EQ(statistics.exponents_changed(), 0.25);
}

TEST(ChangeStatistics, EntropyIsThatOfTheResidualsOfEachExponent) {
  // One exponent where one word in four moves, one where none does.
  const Words held = {0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x4000, 0x4000, 0x4000, 0x4000};
  Words sent = held;
  ++sent[2];
  ChangeStatistics statistics;
  statistics.add({{}, held, sent});
  EXPECT_NEAR(statistics.entropy_given_exponent(), kQuarter / 2, 1e-12);
  EXPECT_NEAR(statistics.entropy_given_previous(), kQuarter / 2, 1e-12);
}

TEST(ChangeStatistics, TheEntropyOfResidualsThatRepeatIsNoneGivenTheDifferenceBefore) {
  const Words before = {0x3f80, 0x3f80, 0x3f82, 0x3f80}, held = {0x3f81, 0x3f81, 0x3f81, 0x3f81},
              sent = {0x3f82, 0x3f82, 0x3f80, 0x3f82};
  ChangeStatistics statistics;
  statistics.add({before, held, sent});
  EXPECT_NEAR(statistics.entropy_given_exponent(), kQuarter, 1e-12);
  EXPECT_EQ(statistics.entropy_given_previous(), 0);
}

TEST(ChangeStatistics, NothingIsNoShareAndNoEntropy) {
  const ChangeStatistics statistics;
  EXPECT_EQ(statistics.words_changed(), 0);
  EXPECT_EQ(statistics.entropy_given_previous(), 0);
}

TEST(ChangeStatistics, SizesThatDifferAreRefused) {
  ChangeStatistics statistics;
  const Words two(2), three(3);
  EXPECT_THROW(statistics.add({{}, two, three}), InvalidArgument);
  EXPECT_THROW(statistics.add({two, three, three}), InvalidArgument);
}

class EveryMethod : public testing::TestWithParam<Method> {};

TEST_P(EveryMethod, SendsWhatItSays) {
  const Words before = weights(100'003, 1), held = stepped(before, 2), sent = stepped(held, 3);
  const Words small = weights(7, 4), smaller = stepped(small, 5);
  const std::vector<UnitStep> units = {{before, held, sent}, {{}, small, smaller}, {}};
  for (const int threads : {1, 3}) {
    Trial trial(GetParam(), units, threads);
    EXPECT_EQ(trial.check(), "");
    EXPECT_GT(trial.bits_per_word(), 0);
    EXPECT_LT(trial.bits_per_word(), 16.1);
  }
}

TEST_P(EveryMethod, MessagesAreThoseOfTheReferenceThatTheStepsBeforeLeave) {
  const Words before = weights(5000, 1), held = stepped(before, 2), sent = stepped(held, 3);
  Reference reference(needs(GetParam()), held.size());
  for (const Words* words : {&before, &held}) {
    Update update = encode(Method::kRaw, reference, *words).update;
    update.tables.clear();
    reference.commit(update, *words);
  }
  Trial trial(GetParam(), std::vector<UnitStep>{{before, held, sent}});
  trial.encode();
  const double bits = 8 * static_cast<double>(encode(GetParam(), reference, sent).bytes.size());
  EXPECT_DOUBLE_EQ(trial.bits_per_word(), bits / 5000);
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryMethod, testing::ValuesIn(kMethods),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Trial, MomentumPaysWhereStepsGoOnInTheirDirection) {
  const Words before = weights(50'000, 1);
  Words held = before, sent = before;
  for (std::size_t i = 0; i < before.size(); ++i) {
    held[i] = static_cast<std::uint16_t>(before[i] + i % 8);
    sent[i] = static_cast<std::uint16_t>(held[i] + i % 8);
  }
  const std::vector<UnitStep> units = {{before, held, sent}};
  Trial residual(Method::kResidual, units), momentum(Method::kMomentum, units);
  residual.encode();
  momentum.encode();
  EXPECT_LT(momentum.bits_per_word(), residual.bits_per_word() / 2);
}

TEST(Trial, KeptTablesAreNotSentAgain) {
  const Words before = weights(50'000, 1), held = stepped(before, 2), sent = stepped(held, 3);
  const std::vector<UnitStep> units = {{before, held, sent}};
  Trial trial(Method::kMomentum, units);
  trial.encode();
  const double anew = trial.bits_per_word();
  trial.keep_tables();
  EXPECT_EQ(trial.check(), "");
  EXPECT_LT(trial.bits_per_word(), anew);
  EXPECT_GT(trial.bits_per_word(), anew - 8.0 * DifferenceTables::kMaxBytes / 50'000);
}

TEST(OnThreads, RunsEveryPieceOnceAndThrowsWhatOneThrows) {
  for (const int threads : {1, 2, 8}) {
    std::vector<int> runs(5);
    on_threads(threads, runs.size(), [&](std::size_t i) { ++runs[i]; });
    EXPECT_EQ(runs, std::vector<int>(5, 1));
    EXPECT_THROW(on_threads(threads, 5, [](std::size_t i) { require(i != 3, "three"); }), InvalidArgument);
  }
}

}  // namespace
}  // namespace moesaic::codec
