#include "moesaic/train/token_source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <limits>
#include <string>

#include "moesaic/core/error.h"
#include "tests/temporary_directory.h"

namespace moesaic {
namespace {

constexpr std::int64_t kAnyVocabulary = std::numeric_limits<std::int64_t>::max();

class Tokens : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) {
    write_text_synced(folder_ / name, bytes);
    return (folder_ / name).string();
  }
  // A .npy file as NumPy writes it: format 1.0, the data on a multiple of 64 bytes.
  std::string put_npy(const std::string& descr, const std::string& shape, const std::string& data,
                      const std::string& order = "False") {
    std::string header =
        "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
    header.resize(117, ' ');
    return put("t.npy", "\x93NUMPY" + std::string("\x01\x00\x76\x00", 4) + header + "\n" + data);
  }
  static std::vector<std::int64_t> all(const std::string& file, TokenFormat format,
                                       std::int64_t vocab_size = kAnyVocabulary) {
    const TokenSource source(file, format, vocab_size);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(source.num_tokens()));
    source.read(0, tokens);
    return tokens;
  }
  template <typename ErrorClass = InvalidArgument>
  static std::string error_of(const std::string& file, TokenFormat format,
                              std::int64_t vocab_size = kAnyVocabulary) {
    try {
      all(file, format, vocab_size);
    } catch (const ErrorClass& error) {
      return error.what();
    }
    return "no such error";
  }
  static void expect_in(const std::string& message, const std::string& words) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  TemporaryDirectory folder_;
};

using Values = std::vector<std::int64_t>;

TEST_F(Tokens, RawFilesAreLittleEndianOfTheStatedWidth) {
  const std::string file = put("t", std::string("\x01\x02\x03\x00\xff\x00\x00\x00", 8));
  EXPECT_EQ(all(file, TokenFormat::kBytes), (Values{1, 2, 3, 0, 255, 0, 0, 0}));
  EXPECT_EQ(all(file, TokenFormat::kUint8), (Values{1, 2, 3, 0, 255, 0, 0, 0}));
  EXPECT_EQ(all(file, TokenFormat::kUint16), (Values{0x201, 3, 255, 0}));
  EXPECT_EQ(all(file, TokenFormat::kUint32), (Values{0x30201, 255}));
}

TEST_F(Tokens, NpyFilesSayTheirTypeThemselves) {
  EXPECT_EQ(all(put_npy("|u1", "(3,)", "\x01\x02\xff"), TokenFormat::kNpy), (Values{1, 2, 255}));
  EXPECT_EQ(all(put_npy("<u2", "(2,)", "\x01\x02\xff\xff"), TokenFormat::kNpy), (Values{0x201, 65535}));
  EXPECT_EQ(all(put_npy("<u4", "(1,)", "\xff\xff\xff\xff"), TokenFormat::kNpy), (Values{4294967295}));
  EXPECT_EQ(all(put_npy("<i4", "(1,)", "\x01\x02\x03\x04", "True"), TokenFormat::kNpy), (Values{0x4030201}));
  EXPECT_EQ(all(put_npy("<i8", "(1,)", std::string("\x01\0\0\0\x01\0\0\0", 8)), TokenFormat::kNpy),
            (Values{(1LL << 32) + 1}));
}

TEST_F(Tokens, NegativeIdsAndIdsOutsideTheVocabularyAreNamedWithTheirPosition) {
  expect_in(error_of<CorruptData>(put_npy("<i4", "(2,)", std::string("\x01\0\0\0\xfe\xff\xff\xff", 8)),
                                  TokenFormat::kNpy),
            "t.npy: token 1 has id -2, expected 0 to vocab_size");
  const std::string large = put("large", "\x01\x02\x09\x03");
  expect_in(error_of<CorruptData>(large, TokenFormat::kBytes, 9),
            "large: token 2 has id 9, expected 0 to vocab_size (9) - 1; is data.format right?");
  EXPECT_EQ(all(large, TokenFormat::kBytes, 10), (Values{1, 2, 9, 3}));
}

TEST_F(Tokens, FilesThatCannotBeTokensAreNamed) {
  expect_in(error_of<IoError>("/nowhere/t", TokenFormat::kBytes), "cannot open /nowhere/t: No such file");
  expect_in(error_of(put("empty", ""), TokenFormat::kBytes), "empty is empty");
  expect_in(error_of(put("odd", "123"), TokenFormat::kUint16), "odd has 3 bytes, expected a multiple of 2");
  expect_in(error_of(folder_.path().string(), TokenFormat::kBytes),
            "is a folder or a device, expected a file");
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_in(error_of(pipe, TokenFormat::kBytes), "pipe is a folder or a device, expected a file");
}

TEST_F(Tokens, AFormatThatTheFileContradictsIsRefused) {
  expect_in(error_of(put_npy("<u2", "(1,)", "\x01\x01"), TokenFormat::kUint16),
            "t.npy is a .npy file; expected raw uint16 tokens, or data.format = \"npy\"");
  expect_in(error_of<CorruptData>(put("raw", "plain text"), TokenFormat::kNpy), "raw is no .npy file");
}

TEST_F(Tokens, OtherNpyArraysAreRefusedByName) {
  expect_in(
      error_of(put_npy(">u2", "(1,)", "ab"), TokenFormat::kNpy),
      "elements of type '>u2' (big-endian), expected little-endian uint8, uint16, uint32, int32, int64");
  expect_in(error_of(put_npy("<f4", "(1,)", "abcd"), TokenFormat::kNpy), "elements of type '<f4', expected");
  expect_in(error_of(put_npy("|u1", "(2, 2)", "abcd"), TokenFormat::kNpy),
            "has shape (2, 2), expected one dimension");
  expect_in(error_of(put_npy("|u1", "()", "a"), TokenFormat::kNpy), "has shape (), expected one dimension");
  expect_in(error_of(put_npy("|u1", "(0,)", ""), TokenFormat::kNpy), "is an empty array");
}

TEST_F(Tokens, NpyFilesThatAreShorterOrLongerThanTheySayAreCorrupt) {
  expect_in(error_of<CorruptData>(put_npy("<u2", "(3,)", "abcd"), TokenFormat::kNpy),
            "has 4 bytes after its header, expected 3 of 2 bytes each");
  expect_in(error_of<CorruptData>(put_npy("<u2", "(1,)", "abcd"), TokenFormat::kNpy),
            "expected 1 of 2 bytes");
  expect_in(error_of<CorruptData>(put_npy("<u2", "(9223372036854775807,)", "ab"), TokenFormat::kNpy),
            "expected 9223372036854775807 of 2 bytes");
}

TEST_F(Tokens, AFileThatShrinksWhileItIsReadIsAnErrorNotASignal) {
  const std::string file = put("t", std::string(100'000, 'x'));
  const TokenSource source(file, TokenFormat::kBytes, 256);
  std::filesystem::resize_file(file, 50'000);
  Values tokens(100);
  source.read(0, tokens);
  EXPECT_EQ(tokens[99], 'x');
  try {
    source.read(49'950, tokens);
    FAIL();
  } catch (const CorruptData& error) {
    expect_in(error.what(), "t has 50000 bytes, but had 100000 when the run began");
  }
}

TEST_F(Tokens, TheSideFileOfTheTokenizerMustAgree) {
  const auto side = [&](const std::string& text) { put("t.bin.json", text); };
  const std::string file = put("t.bin", "abcdef");
  side(R"({"format": "moesaic tokens", "dtype": "uint16", "num_tokens": 3, "vocab_size": 30000})");
  EXPECT_EQ(all(file, TokenFormat::kUint16, 30000).size(), 3u);
  expect_in(error_of(file, TokenFormat::kBytes),
            "t.bin holds uint16 (says t.bin.json), but is read as uint8; is data.format right?");
  expect_in(error_of(file, TokenFormat::kUint16, 29999),
            "vocabulary of 30000 (says t.bin.json), more than model.vocab_size (29999)");
  side(R"({"format": "moesaic tokens", "dtype": "uint16", "num_tokens": 4, "vocab_size": 30000})");
  expect_in(error_of<CorruptData>(file, TokenFormat::kUint16), "has 3 tokens, expected 4 (says t.bin.json)");
  side(R"({"format": "moesaic tokens", "dtype": 5})");
  expect_in(error_of<CorruptData>(file, TokenFormat::kUint16), "t.bin.json: ");
  for (const char* strange : {"{\"dtype\": \"uint32\"}", "[1]", "not JSON", ""}) {
    side(strange);
    EXPECT_EQ(all(file, TokenFormat::kUint16).size(), 3u) << strange;
  }
}

}  // namespace
}  // namespace moesaic
