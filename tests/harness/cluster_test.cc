#include "bench/cluster.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "moesaic/core/error.h"
#include "tests/harness/needs_cluster.h"

namespace moesaic::bench {
namespace {

// Namespaces of the clusters that process `pid` has made.
int namespaces_of(pid_t pid) {
  int count = 0;
  if (!std::filesystem::exists("/run/netns")) return 0;
  for (const auto& entry : std::filesystem::directory_iterator("/run/netns")) {
    count += entry.path().filename().string().starts_with("moesaic-bench_" + std::to_string(pid) + "_");
  }
  return count;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class BenchCluster : public NeedsCluster {};

TEST_F(BenchCluster, GivesWhatRanksPrintAndTheBytesOfEachHost) {
  {
    Cluster cluster(3, "1gbit");
    EXPECT_EQ(namespaces_of(getpid()), 4);  // the hosts and the bridge
    const JobOptions options{.launcher = Launcher::kTorch, .timeout_s = 30, .environment = {"EXTRA=x y"}};
    const std::string probe = MOESAIC_SOURCE_DIR "/tests/cluster/socket_probe.py";

    const JobResult where = cluster.run({MOESAIC_PYTHON, probe, "where"}, options);
    ASSERT_EQ(where.lines.size(), 3u);
    for (const nlohmann::json& line : where.lines) EXPECT_EQ(line["EXTRA"], "x y");

    const JobResult moved = cluster.run({MOESAIC_PYTHON, probe, "to_first", "1000000", "2"}, options);
    ASSERT_EQ(moved.lines.size(), 1u);
    ASSERT_EQ(moved.nic.size(), 3u);
    EXPECT_GT(moved.nic[2].sent, 1'000'000);
    EXPECT_LT(moved.nic[2].sent, 1'040'000);
    EXPECT_EQ(moved.nic[0].received, moved.nic[2].sent);
    EXPECT_EQ(moved.nic[1].sent + moved.nic[1].received, 0);
  }
  EXPECT_EQ(namespaces_of(getpid()), 0);
}

TEST_F(BenchCluster, AJobThatFailsOrHangsIsAnError) {
  Cluster cluster(2, "1gbit");
  const JobOptions torch{.ranks_per_host = 2, .launcher = Launcher::kTorch, .timeout_s = 30};
  EXPECT_EQ(error_of([&] { cluster.run({"false"}, torch); }), "cluster run ended with status 1");
  JobOptions hurried = torch;
  hurried.timeout_s = 0.5;
  EXPECT_EQ(error_of([&] { cluster.run({"sleep", "60"}, hurried); }), "cluster run ended with status 124");
  EXPECT_EQ(error_of([&] {
              cluster.run({"echo", R"({"error": "no such size"})"}, torch);
            }),
            "cluster run: no such size");
}

TEST_F(BenchCluster, SaysWhyItCannotBe) {
  EXPECT_NE(error_of([] { Cluster(2, "fast"); }).find("bad rate 'fast'"), std::string::npos);
  EXPECT_NE(error_of([] { Cluster(0, "1gbit"); }).find("--hosts 0: expected 1 to 64"), std::string::npos);
  Cluster cluster(1, "1gbit");
  EXPECT_EQ(error_of([&] { cluster.set_rate("fast"); }), "cluster rate ended with status 2");
  EXPECT_EQ(error_of([&] { cluster.set_rate("100mbit"); }), "no error");
}

TEST_F(BenchCluster, GoesWithItsProcessHoweverThatEnds) {
  for (const int signal : {SIGINT, SIGKILL}) {
    const pid_t child = fork();
    if (child == 0) {
      const Cluster cluster(2, "1gbit");
      pause();
      _exit(0);
    }
    const auto wait_for = [&](int namespaces) {
      for (int i = 0; i < 3000 && namespaces_of(child) != namespaces; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return namespaces_of(child);
    };
    EXPECT_EQ(wait_for(3), 3);
    kill(child, signal);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(wait_for(0), 0);
  }
}

}  // namespace
}  // namespace moesaic::bench
