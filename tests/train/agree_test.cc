#include "moesaic/train/agree.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "moesaic/core/error.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

// What agree() threw on each of three ranks of which ranks 1 and 2 fail: rank 2 always with InvalidArgument.
template <typename ErrorClass>
std::vector<std::string> thrown_where_rank_1_throws(const ErrorClass& error) {
  std::mutex mutex;
  std::vector<std::string> thrown;
  run_world(Topology::one_node(3), [&](Communicator& world) {
    Failure failure;
    attempt(failure, [&] {
      if (world.rank() == 1) throw error;
      require(world.rank() != 2, "the argument of rank 2");
    });
    try {
      agree(world, failure);
    } catch (const ErrorClass& same) {
      const std::lock_guard lock(mutex);
      thrown.emplace_back(same.what());
    }
  });
  return thrown;
}

TEST(Agree, EveryRankThrowsTheErrorOfTheLowestOneThatFailedInItsClass) {
  const std::vector<std::string> expected(3, "rank 1: it was so");
  EXPECT_EQ(thrown_where_rank_1_throws(IoError("it was so")), expected);
  EXPECT_EQ(thrown_where_rank_1_throws(CorruptData("it was so")), expected);
  EXPECT_EQ(thrown_where_rank_1_throws(InvalidArgument("it was so")), expected);
}

TEST(Agree, AFailureOfTheFileSystemIsAnIoError) {
  EXPECT_THROW(run_world(Topology::one_node(2),
                         [](Communicator& world) {
                           Failure failure;
                           attempt(failure, [] {
                             throw std::filesystem::filesystem_error(
                                 "no", std::make_error_code(std::errc::permission_denied));
                           });
                           agree(world, failure);
                         }),
               IoError);
}

TEST(Agree, NothingIsAttemptedAfterAFailureAndNothingThrownWithoutOne) {
  run_world(Topology::one_node(2), [](Communicator& world) {
    Failure failure;
    attempt(failure, [] {});
    agree(world, failure);
    attempt(failure, [] { throw IoError("the first"); });
    attempt(failure, [] { FAIL() << "attempted"; });
    EXPECT_EQ(failure.text, "the first");
  });
}

}  // namespace
}  // namespace moesaic
