#include "moesaic/train/data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
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
  // Ten training windows of 3 tokens.
  DataConfig ten_samples() {
    return {.files = {counting("a", 0, 16), counting("b", 100, 16)}, .held_out_fraction = 0.0, .seq_len = 3};
  }
  TemporaryDirectory folder_;
};

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

// Files of 8, 4 and 16 windows, weights 1, 2 and 1.
DataConfig weighted(std::vector<std::string> files) {
  return {.files = std::move(files), .weights = {1, 2, 1}, .held_out_fraction = 0, .seq_len = 2};
}

TEST_F(Data, WeightedFilesAreDrawnInTheirSharesEachInItsOwnEpochs) {
  const Dataset dataset(weighted({counting("a", 0, 17), counting("b", 50, 9), counting("c", 100, 33)}), 256);
  const Sampler sampler(dataset, {.seed = 5});
  std::vector<std::vector<std::int64_t>> drawn(3);
  for (std::int64_t i = 0; i < 64; ++i) {
    const std::int64_t window = sampler.window_of(i);
    drawn[window < 8 ? 0 : window < 12 ? 1 : 2].push_back(window);
    const double n = static_cast<double>(i + 1);
    EXPECT_LT(std::abs(static_cast<double>(drawn[0].size()) - n / 4), 1);
    EXPECT_LT(std::abs(static_cast<double>(drawn[1].size()) - n / 2), 1);
    EXPECT_LT(std::abs(static_cast<double>(drawn[2].size()) - n / 4), 1);
  }
  const std::vector<std::size_t> windows = {8, 4, 16};
  for (std::size_t file = 0; file < 3; ++file) {
    std::set<std::vector<std::int64_t>> orders;
    for (std::size_t first = 0; first < drawn[file].size(); first += windows[file]) {
      const std::vector<std::int64_t> epoch(
          drawn[file].begin() + static_cast<std::ptrdiff_t>(first),
          drawn[file].begin() + static_cast<std::ptrdiff_t>(first + windows[file]));
      EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), windows[file])
          << "an epoch of a file has each of its windows once";
      orders.insert(epoch);
    }
    EXPECT_EQ(orders.size(), drawn[file].size() / windows[file]) << "and each epoch another order";
  }
}

TEST_F(Data, WeightedFilesResumeAnywhereOnAnyNumberOfRanks) {
  const Dataset dataset(weighted({counting("a", 0, 17), counting("b", 50, 9), counting("c", 100, 33)}), 256);
  const auto read = [&](std::int64_t from, std::int64_t to, int ranks, std::vector<std::int64_t>& tokens) {
    const Sampler sampler(dataset, {.seed = 3, .sequences = 5, .first_step = from, .first_sample = from * 5});
    for (std::int64_t step = from; step < to; ++step) {
      for (int rank = 0; rank < ranks; ++rank) {
        const Batch batch = sampler.batch(step, 0, rank, ranks);
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
      }
    }
  };
  std::vector<std::int64_t> straight, resumed;
  read(0, 20, 1, straight);
  read(0, 7, 2, resumed);
  read(7, 8, 3, resumed);
  read(8, 20, 7, resumed);
  EXPECT_EQ(resumed, straight);
}

TEST_F(Data, AFileOfWeightZeroIsOnlyHeldOut) {
  const Dataset dataset({.files = {counting("a", 0, 40), counting("b", 100, 40)},
                         .weights = {0, 0.5},
                         .held_out_fraction = 0.5,
                         .seq_len = 4},
                        256);
  const Sampler sampler(dataset, {});
  const FileWindows b = dataset.files(Split::kTraining)[1];
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_GE(sampler.window_of(i), b.first);
  EXPECT_EQ(dataset.files(Split::kHeldOut).size(), 2u);
}

TEST_F(Data, AWeightedFileNeedsAWindow) {
  const Dataset dataset({.files = {counting("a", 0, 40), counting("b", 100, 4)},
                         .weights = {1, 2},
                         .held_out_fraction = 0,
                         .seq_len = 4},
                        256);
  try {
    const Sampler sampler(dataset, {});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "data.weights gives file 2 of data.files the weight 2, but its training part has no window "
                 "of data.seq_len + 1 = 5 tokens");
  }
}

// Four files with 4, 4, 8 and 4 batches left, read by four ranks over three epochs of the shortest: files run
// out at different times, and no rank ever has less to read than its part of the step.
TEST_F(Data, FilesThatRunOutAtDifferentTimesLeaveNoRankWithout) {
  const Dataset dataset(
      {.files = {counting("a", 0, 9), counting("b", 50, 9), counting("c", 100, 17), counting("d", 150, 9)},
       .weights = {1, 1, 1, 1},
       .held_out_fraction = 0,
       .seq_len = 2},
      256);
  const Sampler sampler(dataset, {.sequences = 4});
  std::vector<std::size_t> seen(256, 0);
  for (std::int64_t step = 0; step < 24; ++step) {
    for (int rank = 0; rank < 4; ++rank) {
      const Batch batch = sampler.batch(step, 0, rank, 4);
      ASSERT_EQ(batch.num_sequences, 1);
      ++seen[static_cast<std::size_t>(batch.tokens[0])];
    }
  }
  EXPECT_EQ(seen[0], 6u);    // 24 draws over 4 windows
  EXPECT_EQ(seen[100], 3u);  // 24 draws over 8
}

}  // namespace
}  // namespace moesaic
