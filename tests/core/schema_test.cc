#include "moesaic/core/schema.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {
namespace {

enum class Colour { kRed, kGreen };

struct Values {
  std::int64_t count = 3;
  double rate = 0.5;
  bool on = false;
  std::string text = "a";
  std::vector<std::string> list = {"x"};
  Colour colour = Colour::kGreen;
  double any = 0.0;
  std::vector<double> shares = {1.5};
};

Schema schema_of(Values& v) {
  return {{"first",
           "Numbers.",
           {{.key = "count", .target = &v.count, .doc = "how many", .unit = "rows", .min = 1, .max = 9},
            {.key = "rate", .target = &v.rate, .doc = "a | b", .min = 0, .max = 1, .above_min = true},
            {.key = "any", .target = &v.any, .doc = "anything"},
            {.key = "shares", .target = &v.shares, .doc = "of each", .min = 0}}},
          {"second",
           "Words.",
           {{.key = "on", .target = &v.on, .doc = "switch"},
            {.key = "text", .target = &v.text, .doc = "free"},
            {.key = "list", .target = ListTarget{&v.list, true}, .doc = "several", .allowed = {"x", "y"}},
            {.key = "colour",
             .target = enum_target(&v.colour, {{"red", Colour::kRed}, {"green", Colour::kGreen}}),
             .doc = "paint"}}}};
}

std::string error_of(std::string_view toml) {
  Values values;
  try {
    apply_toml(schema_of(values), toml, "run.toml");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_set(std::string_view assignment) {
  Values values;
  try {
    apply_override(schema_of(values), assignment);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Schema, SetsWhatTheFileMentionsAndKeepsTheRest) {
  Values v;
  apply_toml(schema_of(v), "[first]\ncount = 7\n[second]\ncolour = \"red\"\nlist = [\"y\", \"x\"]\n",
             "run.toml");
  EXPECT_EQ(v.count, 7);
  EXPECT_EQ(v.rate, 0.5);
  EXPECT_EQ(v.colour, Colour::kRed);
  EXPECT_EQ(v.list, (std::vector<std::string>{"y", "x"}));
  apply_toml(schema_of(v), "[first]\nrate = 1\n[second]\nlist = \"y\"", "run.toml");
  EXPECT_EQ(v.rate, 1.0);
  EXPECT_EQ(v.list, std::vector<std::string>{"y"});
}

TEST(Schema, ErrorsNameFileLineKeyValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of("[first]\n\ncuont = 3"),
            "run.toml:3: unknown key first.cuont; did you mean first.count?");
  EXPECT_EQ(error_of("[second]\ncount = 3"),
            "run.toml:2: unknown key second.count; did you mean first.count?");
  EXPECT_EQ(error_of("[frist]\n"), "run.toml:1: unknown section [frist]; did you mean [first]?");
  EXPECT_EQ(error_of("rate = 0.1"),
            "run.toml:1: key rate (float 0.1) is outside any section; did you mean first.rate?");
  EXPECT_EQ(error_of("first = 2"),
            "run.toml:1: key first (integer 2) is outside any section; first is a section: write [first]");
  EXPECT_EQ(error_of("[first]\ncount = 10"),
            "run.toml:2: first.count is integer 10; expected integer >= 1 and <= 9");
  EXPECT_EQ(error_of("[first]\ncount = 2.0"),
            "run.toml:2: first.count is float 2.0; expected integer >= 1 and <= 9");
  EXPECT_EQ(error_of("[first]\nrate = 0.0"),
            "run.toml:2: first.rate is float 0.0; expected float > 0 and <= 1");
  EXPECT_EQ(error_of("[first]\nany = nan"), "run.toml:2: first.any is float nan; expected finite float");
  EXPECT_EQ(error_of("[first.rate]\nx = 1"),
            "run.toml:1: first.rate is a table; expected float > 0 and <= 1");
  EXPECT_EQ(error_of("[second]\non = \"yes\""), "run.toml:2: second.on is string \"yes\"; expected boolean");
  EXPECT_EQ(error_of("[second]\ncolour = \"blue\""),
            "run.toml:2: second.colour is string \"blue\"; expected string one of \"red\", \"green\"");
  EXPECT_EQ(error_of("[second]\nlist = [\"x\", \"z\"]"),
            "run.toml:2: second.list is array [string \"x\", string \"z\"]; expected string or array of "
            "strings one of "
            "\"x\", \"y\"");
  EXPECT_NE(error_of("[second]\nlist = [1]"), "no error");
}

TEST(Schema, ListsOfNumbersAreCheckedElementByElement) {
  Values v;
  apply_toml(schema_of(v), "[first]\nshares = [1, 0.25, 1e-3]", "run.toml");
  EXPECT_EQ(v.shares, (std::vector<double>{1, 0.25, 1e-3}));
  EXPECT_NE(render_toml(schema_of(v)).find("shares = [1.0, 0.25, 0.001]\n"), std::string::npos);
  apply_override(schema_of(v), "first.shares=[]");
  EXPECT_TRUE(v.shares.empty());
  EXPECT_EQ(error_of("[first]\nshares = [1, -1]"),
            "run.toml:2: first.shares is array [integer 1, integer -1]; expected array of floats >= 0");
  EXPECT_NE(error_of("[first]\nshares = 3").find("expected array of floats >= 0"), std::string::npos);
  EXPECT_NE(error_of("[first]\nshares = [\"x\"]").find("expected array of floats >= 0"), std::string::npos);
  EXPECT_NE(error_of("[first]\nshares = [inf]"), "no error");
  EXPECT_NE(error_of_set("first.shares=3").find("expected array of floats >= 0"), std::string::npos);
}

TEST(Schema, DuplicateKeysAndSyntaxErrorsNameTheLine) {
  const std::string duplicate = error_of("[first]\ncount = 1\ncount = 2");
  EXPECT_EQ(duplicate.find("run.toml:3: "), 0u) << duplicate;
  EXPECT_NE(duplicate.find("count"), std::string::npos) << duplicate;
  const std::string syntax = error_of("[first]\ncount = 1\nrate 2");
  EXPECT_EQ(syntax.find("run.toml:3: "), 0u) << syntax;
}

TEST(Schema, OverridesTakeBareWordsAndSayWhereTheyCameFrom) {
  Values v;
  for (const char* assignment : {"first.count=9", "first.rate=1e-3", "second.on=true", "second.colour=red",
                                 "second.list=[\"y\"]", "second.text=a=b \"c\""}) {
    apply_override(schema_of(v), assignment);
  }
  EXPECT_EQ(v.count, 9);
  EXPECT_EQ(v.rate, 1e-3);
  EXPECT_TRUE(v.on);
  EXPECT_EQ(v.colour, Colour::kRed);
  EXPECT_EQ(v.list, std::vector<std::string>{"y"});
  EXPECT_EQ(v.text, "a=b \"c\"");
  apply_override(schema_of(v), "second.text=\"quoted\"");
  EXPECT_EQ(v.text, "quoted");

  EXPECT_EQ(error_of_set("first.cont=3"),
            "--set first.cont=3: unknown key first.cont; did you mean first.count?");
  EXPECT_EQ(error_of_set("frst.count=3"),
            "--set frst.count=3: unknown section [frst]; did you mean [first]?");
  EXPECT_EQ(error_of_set("first.count"), "--set first.count: expected section.key=value");
  EXPECT_EQ(error_of_set("count=3"), "--set count=3: expected section.key=value");
  EXPECT_EQ(error_of_set("first.count=many").find("--set first.count=many: "), 0u)
      << error_of_set("first.count=many");
  EXPECT_NE(error_of_set("first.count="), "no error");
  EXPECT_EQ(error_of_set("first.count=1\nrate=2"), "--set first.count=1\nrate=2: expected one value");
  EXPECT_EQ(error_of_set("first.count=0"),
            "--set first.count=0: first.count is integer 0; expected integer >= 1 and <= 9");
  EXPECT_NE(error_of_set("second.text=\xff"), "no error");
}

TEST(Schema, RenderedDoublesReadBackToTheSameBits) {
  const std::uint64_t key = random_key(1, "doubles");
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Values v, back;
    v.any = std::bit_cast<double>(random_bits(key, i));
    if (!std::isfinite(v.any)) continue;
    apply_toml(schema_of(back), render_toml(schema_of(v)), "rendered");
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back.any), std::bit_cast<std::uint64_t>(v.any))
        << render_toml(schema_of(v));
  }
  for (const double value : {0.1, -0.0, 1e22, 5e-324, 1.7976931348623157e308, 3.0}) {
    Values v, back;
    v.any = value;
    apply_toml(schema_of(back), render_toml(schema_of(v)), "rendered");
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back.any), std::bit_cast<std::uint64_t>(value));
  }
}

TEST(Schema, RenderedTextReadsBackWhateverItHolds) {
  Values v, back;
  v.text = "tab\t quote\" slash\\ line\n bell\x07 del\x7f é";
  v.list = {};
  apply_toml(schema_of(back), render_toml(schema_of(v)), "rendered");
  EXPECT_EQ(back.text, v.text);
  EXPECT_TRUE(back.list.empty());
}

TEST(Schema, TheReferencePageTellsTypeDefaultAllowedMeaningAndUnit) {
  Values v;
  const std::string page = render_reference(schema_of(v));
  EXPECT_NE(page.find("## [first]\n\nNumbers.\n"), std::string::npos) << page;
  EXPECT_NE(page.find("| `count` | integer | `3` | >= 1 and <= 9 | how many (rows) |"), std::string::npos)
      << page;
  EXPECT_NE(page.find("a \\| b"), std::string::npos) << page;
  EXPECT_NE(page.find("| `colour` | string | `\"green\"` | one of \"red\", \"green\" | paint |"),
            std::string::npos)
      << page;
}

}  // namespace
}  // namespace moesaic
