#include "moesaic/interop/npy.h"

#include <gtest/gtest.h>

#include <string>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

const std::string kMagic = "\x93NUMPY";
const std::string kDictionary = "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }";

std::string file(const std::string& dictionary, char major = 1) {
  const std::string text = dictionary + "\n";
  std::string length = {static_cast<char>(text.size() & 255), static_cast<char>(text.size() >> 8)};
  if (major > 1) length += std::string(2, '\0');
  return kMagic + major + '\0' + length + text;
}

NpyHeader parse(const std::string& bytes) {
  return parse_npy_header(std::as_bytes(std::span(bytes)), "t.npy");
}

std::string error_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const CorruptData& error) {
    return error.what();
  }
  return "no error";
}

TEST(Npy, ReadsAllThreeVersions) {
  for (char major = 1; major <= 3; ++major) {
    const NpyHeader header = parse(file(kDictionary, major) + "data");
    EXPECT_EQ(header.descr, "<u2");
    EXPECT_FALSE(header.fortran_order);
    EXPECT_EQ(header.shape, std::vector<std::int64_t>{5});
    EXPECT_EQ(header.data_offset, std::ssize(file(kDictionary, major)));
  }
}

TEST(Npy, ReadsEveryShapeAndOrder) {
  EXPECT_EQ(parse(file("{'shape': (), 'fortran_order': True, 'descr': \"|u1\"}")).shape.size(), 0u);
  const NpyHeader header = parse(file("{'shape':(2, 3) , 'descr':'<i8','fortran_order':True}"));
  EXPECT_EQ(header.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(header.fortran_order);
}

TEST(Npy, EveryShorterFileIsRefused) {
  const std::string whole = file(kDictionary, 2);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(error_of(whole.substr(0, bytes)), "no error") << bytes;
  }
  EXPECT_EQ(error_of(whole), "no error");
}

TEST(Npy, EveryChangedByteOfTheDictionaryIsReadOrRefusedNeverWorse) {
  const std::string whole = file(kDictionary);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      error_of(changed);
    }
  }
}

TEST(Npy, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"text", "t.npy is no .npy file"},
      {file(kDictionary, 4), "format version 4.0, expected 1.0, 2.0 or 3.0"},
      {kMagic + std::string("\x02\x00\xff\xff\xff\xff", 6),
       "header of 4294967295 bytes, expected at most 1048576"},
      {file("{'descr': '<u2', 'fortran_order': False}"), "no 'shape'"},
      {file("{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (5,)}"), "'descr' twice"},
      {file("{'descr': '<u2', 'order': 'C'}"), "key 'order', expected 'descr', 'fortran_order' and 'shape'"},
      {file("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (5,)}"),
       "byte 0x5b at 10, expected '''"},
      {file("{'descr': '<u2', 'fortran_order': false, 'shape': (5,)}"), "neither True nor False"},
      {file("{'descr': '<u2', 'fortran_order': False, 'shape': (-5,)}"), "not a tuple of sizes"},
      {file("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,)}"),
       "not a tuple of sizes"},
      {file("{'descr': '<u2', 'fortran_order': False, 'shape': (5)}"), "expected a tuple"},
      {file(kDictionary + " x"), "text after the dictionary"},
      {file("{'descr': '<u2"), "a string without an end"},
      {file(""), "its end where '{' is due"},
  };
  for (const auto& [bytes, words] : cases) {
    EXPECT_NE(error_of(bytes).find(words), std::string::npos) << error_of(bytes) << " lacks " << words;
  }
}

}  // namespace
}  // namespace moesaic
