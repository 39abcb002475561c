#include "bench/all_gather_peers.h"

#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "tests/harness/needs_cluster.h"

namespace moesaic::bench {
namespace {

class AllGatherPeers : public NeedsCluster {};

// What the host must get at least: the parts of the other host's ranks. Open MPI's algorithms send some
// twice.
void expect_received(const AllGatherTime& time, std::int64_t least) {
  EXPECT_GT(time.seconds, 0);
  EXPECT_GE(time.nic_received_bytes, least);
  EXPECT_LT(time.nic_received_bytes, 3 * least + 20'000);
}

TEST_F(AllGatherPeers, OpenMpiGathersEverySizeAndItsFastestWayIsNamed) {
  Cluster cluster(2, "1gbit");
  const std::vector<AllGatherTime> best = best_mpi_all_gather(cluster, 2, {1000, 300'000}, 3);
  ASSERT_EQ(best.size(), 2u);
  for (const AllGatherTime& time : best) {
    EXPECT_NE(time.how.find(", "), std::string::npos) << time.how;
    expect_received(time, 2 * time.bytes_per_rank);
  }
  EXPECT_EQ(best[0].bytes_per_rank, 1000);
  EXPECT_EQ(best[1].bytes_per_rank, 300'000);
  EXPECT_THROW(best_mpi_all_gather(cluster, 2, {0}, 3), Error);
}

TEST_F(AllGatherPeers, GlooGathersEverySize) {
  Cluster cluster(2, "1gbit");
  const std::vector<AllGatherTime> times = gloo_all_gather(cluster, MOESAIC_PYTHON, 1, {1000, 300'000}, 3);
  ASSERT_EQ(times.size(), 2u);
  for (const AllGatherTime& time : times) expect_received(time, time.bytes_per_rank);
  EXPECT_THROW(gloo_all_gather(cluster, MOESAIC_PYTHON, 1, {0}, 3), Error);
}

}  // namespace
}  // namespace moesaic::bench
