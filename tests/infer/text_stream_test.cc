#include "moesaic/infer/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moesaic::testing {
namespace {

// What is shown after each byte, and at the end.
std::vector<std::string> shown(const std::string& bytes) {
  TextStream stream;
  std::vector<std::string> parts;
  for (const char byte : bytes) parts.push_back(stream.add(static_cast<std::uint8_t>(byte)));
  parts.push_back(stream.finish());
  return parts;
}

std::string text_of(const std::string& bytes) {
  std::string text;
  for (const std::string& part : shown(bytes)) text += part;
  return text;
}

const std::string kBad = "\xEF\xBF\xBD";

TEST(TextStream, ShowsACharacterWhenItsLastByteHasCome) {
  EXPECT_EQ(shown("a\xC3\xA9"), (std::vector<std::string>{"a", "", "\xC3\xA9", ""}));
  EXPECT_EQ(shown("\xE2\x82\xAC"), (std::vector<std::string>{"", "", "\xE2\x82\xAC", ""}));
  EXPECT_EQ(shown("\xF0\x9F\x98\x80"), (std::vector<std::string>{"", "", "", "\xF0\x9F\x98\x80", ""}));
}

TEST(TextStream, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(text_of("a\x80z"), "a" + kBad + "z");
  EXPECT_EQ(text_of("\xFF\xC0\xC1\xF5"), kBad + kBad + kBad + kBad);
  EXPECT_EQ(text_of("\xE2\x82z"), kBad + "z");                        // cut short by another character
  EXPECT_EQ(text_of("\xE2\xC3\xA9"), kBad + "\xC3\xA9");              // ... by the first byte of one
  EXPECT_EQ(text_of("\xF0\x9F\x98"), kBad);                           // ... by the end
  EXPECT_EQ(text_of("\xE0\x80\x80"), kBad + kBad + kBad);             // overlong
  EXPECT_EQ(text_of("\xED\xA0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(text_of("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // past U+10FFFF
  // The example of the Unicode standard, section 3.9.
  EXPECT_EQ(text_of("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + kBad + kBad + kBad + "b" + kBad + "c" + kBad + kBad + "d");
}

TEST(TextStream, GoesOnAfterTheEnd) {
  TextStream stream;
  stream.add(0xF0);
  EXPECT_EQ(stream.finish(), kBad);
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.add('a'), "a");
}

}  // namespace
}  // namespace moesaic::testing
