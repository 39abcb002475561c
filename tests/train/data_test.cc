#include "moesaic/train/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "moesaic/core/error.h"
#include "tests/temporary_directory.h"

namespace moesaic {
namespace {

class Data : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) {
    write_text_synced(folder_ / name, bytes);
    return (folder_ / name).string();
  }
  // Tokens first, first+1, ... as bytes.
  std::string counting(const std::string& name, int first, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(first + i);
    return put(name, bytes);
  }
  static std::string error_of(const DataConfig& config, std::int64_t vocab_size) {
    try {
      const Dataset dataset(config, vocab_size);
      std::vector<std::int64_t> windows(static_cast<std::size_t>(dataset.num_windows(Split::kTraining)));
      std::iota(windows.begin(), windows.end(), 0);
      dataset.read(Split::kTraining, windows);
      Sampler(dataset, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  // Ten training windows of 3 tokens.
  DataConfig ten_samples() {
    return {.files = {counting("a", 0, 16), counting("b", 100, 16)}, .held_out_fraction = 0.0, .seq_len = 3};
  }
  TemporaryDirectory folder_;
};

TEST_F(Data, TokensAreLittleEndianOfTheStatedWidth) {
  const std::string bytes("\x01\x02\x03\x00\xff\x00\x00\x00", 8);
  const auto tokens = [&](TokenFormat format, std::size_t count) {
    std::vector<std::int64_t> values(count);
    TokenSource(put("t", bytes), format, INT64_MAX).read(0, values);
    return values;
  };
  EXPECT_EQ(tokens(TokenFormat::kBytes, 8), (std::vector<std::int64_t>{1, 2, 3, 0, 255, 0, 0, 0}));
  EXPECT_EQ(tokens(TokenFormat::kUint8, 2), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(tokens(TokenFormat::kUint16, 4), (std::vector<std::int64_t>{0x201, 3, 255, 0}));
  EXPECT_EQ(tokens(TokenFormat::kUint32, 2), (std::vector<std::int64_t>{0x30201, 255}));
  EXPECT_THROW(tokens(TokenFormat::kUint32, 3), InvalidArgument);
}

TEST_F(Data, FilesThatCannotBeTokensAreNamed) {
  EXPECT_NE(error_of({}, 256).find("data.files is empty"), std::string::npos);
  EXPECT_NE(error_of({.files = {"/nowhere/t"}}, 256).find("cannot open /nowhere/t: No such file"),
            std::string::npos);
  EXPECT_NE(error_of({.files = {put("empty", "")}}, 256).find("empty is empty"), std::string::npos);
  EXPECT_NE(error_of({.files = {put("odd", "123")}, .format = TokenFormat::kUint16}, 1 << 16)
                .find("odd has 3 bytes, expected a multiple of 2"),
            std::string::npos);
  const DataConfig large = {
      .files = {put("large", "\x01\x02\x09\x03")}, .held_out_fraction = 0, .seq_len = 3};
  EXPECT_NE(error_of(large, 9).find("large: token 2 has id 9, expected below vocab_size (9)"),
            std::string::npos)
      << error_of(large, 9);
  EXPECT_EQ(error_of(large, 10), "no error");
  const DataConfig brief = {.files = {put("brief", "123")}, .held_out_fraction = 0, .seq_len = 3};
  EXPECT_NE(error_of(brief, 256).find("no window of data.seq_len + 1 = 4 tokens"), std::string::npos);
}

TEST_F(Data, WindowsCoverEachPartOnceAndTargetsAreShiftedByOne) {
  // 20 tokens: 15 to train (windows at 0, 4, 8; 12 lacks its target), 5 held out (window at 15).
  const Dataset dataset(
      {.files = {counting("a", 0, 20), counting("b", 50, 9)}, .held_out_fraction = 0.25, .seq_len = 4}, 256);
  ASSERT_EQ(dataset.num_windows(Split::kTraining), 3 + 1);  // b: 7 to train, 2 held out
  ASSERT_EQ(dataset.num_windows(Split::kHeldOut), 1);
  const std::vector<std::int64_t> windows = {3, 0, 2};
  const Batch batch = dataset.read(Split::kTraining, windows);
  EXPECT_EQ(batch.tokens, (std::vector<std::int64_t>{50, 51, 52, 53, 0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{51, 52, 53, 54, 1, 2, 3, 4, 9, 10, 11, 12}));
  const std::vector<std::int64_t> first = {0};
  EXPECT_EQ(dataset.read(Split::kHeldOut, first).tokens, (std::vector<std::int64_t>{15, 16, 17, 18}));
  const std::vector<std::int64_t> outside = {4};
  EXPECT_THROW(dataset.read(Split::kTraining, outside), InvalidArgument);
}

TEST_F(Data, RowsAreSplitContiguouslyTheFirstRanksGetOneMore) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < 3; ++rank) counts.push_back(rows_of_rank(8, rank, 3).count);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{3, 3, 2}));
  EXPECT_EQ(rows_of_rank(8, 2, 3).first, 6);
  EXPECT_EQ(rows_of_rank(2, 3, 4).count, 0);
  EXPECT_EQ(rows_of_rank(2, 3, 4).first, 2);
}

TEST_F(Data, EveryWindowComesOncePerEpochInAnotherOrderEach) {
  const Dataset dataset(ten_samples(), 256);
  ASSERT_EQ(dataset.num_windows(Split::kTraining), 10);
  const Sampler sampler(dataset, {.seed = 5}), other(dataset, {.seed = 6});
  std::set<std::vector<std::int64_t>> orders;
  for (const Sampler* each : {&sampler, &other}) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::int64_t> order;
      for (std::int64_t i = 0; i < 10; ++i) order.push_back(each->window_of(epoch * 10 + i));
      orders.insert(order);
      EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 10u);
    }
  }
  EXPECT_EQ(orders.size(), 6u);
}

// 10 samples, batch 2, 3 epochs = 15 steps: stopped at step 7, resumed, stopped at 11, resumed on two ranks.
TEST_F(Data, ResumedTwiceAndOnMoreRanksTheSequenceIsTheSame) {
  const Dataset dataset(ten_samples(), 256);
  const auto run = [&](std::int64_t from, std::int64_t to, std::int64_t first_sample, int world_size,
                       std::vector<std::int64_t>& tokens) {
    const Sampler sampler(dataset,
                          {.seed = 3, .sequences = 2, .first_step = from, .first_sample = first_sample});
    for (std::int64_t step = from; step < to; ++step) {
      for (int rank = 0; rank < world_size; ++rank) {
        const Batch batch = sampler.batch(step, 0, rank, world_size);
        EXPECT_EQ(batch.num_sequences, 2 / world_size);
        EXPECT_EQ(batch.first_sequence, world_size == 1 ? 0 : rank);
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
      }
    }
    return sampler.next_sample(to);
  };
  std::vector<std::int64_t> straight, resumed;
  EXPECT_EQ(run(0, 15, 0, 1, straight), 30);
  std::int64_t position = run(0, 7, 0, 1, resumed);
  position = run(7, 11, position, 1, resumed);
  run(11, 15, position, 2, resumed);
  EXPECT_EQ(resumed, straight);
}

TEST_F(Data, MicroStepsOfAllRanksTogetherReadTheSamplesOfTheStep) {
  const Dataset dataset(ten_samples(), 256);
  const Sampler sampler(dataset, {.seed = 3, .sequences = 4, .accumulation = 2});
  std::vector<std::int64_t> expected, got;
  for (std::int64_t i = 8; i < 16; ++i) {  // step 1
    const std::vector<std::int64_t> window = {sampler.window_of(i)};
    const Batch one = dataset.read(Split::kTraining, window);
    expected.insert(expected.end(), one.tokens.begin(), one.tokens.end());
  }
  for (std::int64_t micro = 0; micro < 2; ++micro) {
    for (int rank = 0; rank < 3; ++rank) {
      const Batch batch = sampler.batch(1, micro, rank, 3);
      got.insert(got.end(), batch.tokens.begin(), batch.tokens.end());
    }
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(sampler.batch(0, 0, 4, 5).num_sequences, 0) << "a rank without samples still gets a batch";
}

TEST_F(Data, FilesSayWhichWindowsAreTheirs) {
  const Dataset dataset({.files = {counting("a", 0, 100), counting("b", 0, 8), counting("c", 0, 50)},
                         .held_out_fraction = 0.5,
                         .seq_len = 5},
                        256);
  const auto files = dataset.files(Split::kHeldOut);
  ASSERT_EQ(files.size(), 2u);  // b holds out four tokens: no window
  EXPECT_EQ(files[0].name, "a");
  EXPECT_EQ(files[0].first, 0);
  EXPECT_EQ(files[0].count, 9);
  EXPECT_EQ(files[1].name, "c");
  EXPECT_EQ(files[1].first, 9);
  EXPECT_EQ(files[1].count, dataset.num_windows(Split::kHeldOut) - 9);
}

}  // namespace
}  // namespace moesaic
