// needs_cluster.h: a fixture whose tests are skipped where this machine cannot make network namespaces.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace moesaic::bench {

class NeedsCluster : public testing::Test {
 protected:
  void SetUp() override {
    const std::string command =
        MOESAIC_PYTHON " " MOESAIC_SOURCE_DIR "/tools/cluster up --hosts 1 --rate 1gbit --hold";
    const std::string name = " --name test_able_" + std::to_string(getpid());
    const int status = std::system((command + name + " </dev/null").c_str());
    if (WEXITSTATUS(status) == 3) GTEST_SKIP() << "this machine cannot (the reason is above)";
    ASSERT_EQ(status, 0);
  }
};

}  // namespace moesaic::bench
