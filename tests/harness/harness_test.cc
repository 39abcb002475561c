#include "bench/harness.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moesaic::bench {
namespace {

Case counting_case(int& runs, int& baseline_runs) {
  return {.name = "sum 8",
          .work = {.bytes = 64, .flops = 8},
          .run = [&runs] { ++runs; },
          .baseline = "plain",
          .run_baseline = [&baseline_runs] { ++baseline_runs; },
          .check = [] { return std::string(); }};
}

TEST(Harness, SummarizesByNearestRank) {
  const Timing t = summarize({5, 1, 2, 4, 3, 6, 7, 8, 9, 11, 10});
  EXPECT_EQ(t.min, 1);
  EXPECT_EQ(t.median, 6);
  EXPECT_EQ(t.p90, 10);
}

TEST(Harness, TimesOursAndTheBaselineAndGivesTheirRatio) {
  int runs = 0, baseline_runs = 0;
  Report report("demo", 3);
  report.measure(counting_case(runs, baseline_runs));
  EXPECT_TRUE(report.all_verified());
  EXPECT_GT(runs, 20);
  EXPECT_GT(baseline_runs, 20);

  const nlohmann::json json = report.json();
  EXPECT_EQ(json["name"], "demo");
  EXPECT_EQ(json["machine"]["threads"], 3);
  double ours = NAN, baseline = NAN, ratio = NAN;
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row.size(), 6u);
    EXPECT_EQ(row["case"], "sum 8");
    EXPECT_EQ(row["verified"], true);
    if (row["metric"] == "time_us") (row["variant"] == "moesaic" ? ours : baseline) = row["value"];
    if (row["metric"] == "time_over_floor") ratio = row["value"];
  }
  EXPECT_DOUBLE_EQ(ratio, ours / baseline);
}

TEST(Harness, AFailedCheckGetsNoTime) {
  int runs = 0, baseline_runs = 0;
  Case wrong = counting_case(runs, baseline_runs);
  wrong.check = [] { return std::string("element 3 is 4, expected 5"); };
  Report report("demo", 1);
  testing::internal::CaptureStdout();
  report.measure(wrong);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("element 3 is 4, expected 5"), std::string::npos);
  EXPECT_FALSE(report.all_verified());
  EXPECT_EQ(runs + baseline_runs, 0);
  const nlohmann::json json = report.json();
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_TRUE(json["rows"][0]["value"].is_null());
  EXPECT_EQ(json["rows"][0]["verified"], false);
}

TEST(Harness, AResultThatBreaksWhileItIsTimedGetsNoTime) {
  int runs = 0, baseline_runs = 0;
  Case wrong = counting_case(runs, baseline_runs);
  wrong.check = [&runs] { return runs == 0 ? std::string() : std::string("wrong since it was timed"); };
  Report report("demo", 1);
  report.measure(wrong);
  EXPECT_FALSE(report.all_verified());
  EXPECT_EQ(report.json()["rows"].size(), 1u);
}

TEST(Harness, AFigureThatIsNotVerifiedLosesItsValue) {
  Report report("demo", 1);
  report.add({"4x2 1gbit 512", "moesaic", "nic_bytes", 42, "bytes", true});
  EXPECT_TRUE(report.all_verified());
  report.add({"4x2 1gbit 512", "moesaic", "nic_bytes", 42, "bytes", false});
  EXPECT_FALSE(report.all_verified());
  EXPECT_EQ(report.json()["rows"][0]["value"], 42);
  EXPECT_TRUE(report.json()["rows"][1]["value"].is_null());
}

TEST(Harness, AnAbsentPeerHasARowThatSaysWhyAndIsNotOurFault) {
  Report report("demo", 1);
  report.absent("W2 256", "deepspeed", "No module named 'deepspeed'");
  report.add({"W2 256", "moesaic", "time_us", 42, "us", true, "quickly"});
  EXPECT_TRUE(report.all_verified());
  const nlohmann::json rows = report.json()["rows"];
  EXPECT_TRUE(rows[0]["value"].is_null());
  EXPECT_EQ(rows[0]["verified"], false);
  EXPECT_EQ(rows[0]["note"], "absent: No module named 'deepspeed'");
  EXPECT_EQ(rows[1]["note"], "quickly");

  Report other("demo", 1);
  other.add_all(report.json());
  EXPECT_EQ(other.json()["rows"][1], rows[1]);
}

}  // namespace
}  // namespace moesaic::bench
