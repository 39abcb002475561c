#include "moesaic/interop/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "tests/temporary_directory.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A file with this header text and this many data bytes; `length` overrides the true header length.
std::string file_of(const std::string& header, std::size_t data_bytes, std::uint64_t length = UINT64_MAX) {
  if (length == UINT64_MAX) length = header.size();
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return file + header + std::string(data_bytes, 'd');
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
}

class Safetensors : public ::testing::Test {
 protected:
  fs::path put(const std::string& bytes) {
    write_text_synced(folder_ / "x.safetensors", bytes);
    return folder_ / "x.safetensors";
  }
  // The error of opening these bytes.
  std::string error_of(const std::string& bytes) {
    const fs::path path = put(bytes);
    try {
      SafetensorsReader reader(path);
    } catch (const CorruptData& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      return error.what();
    }
    return "no error";
  }
  void expect_rejected(const std::string& bytes, const std::string& reason) {
    const std::string error = error_of(bytes);
    EXPECT_NE(error.find(reason), std::string::npos) << error;
  }
  TemporaryDirectory folder_;
};

TEST_F(Safetensors, AcceptsWhatTheFormatAllows) {
  const SafetensorsReader metadata_only(put(file_of(R"({"__metadata__":{"format":"pt"}})", 0)));
  EXPECT_TRUE(metadata_only.tensors().empty());
  EXPECT_EQ(metadata_only.metadata().at("format"), "pt");
  EXPECT_EQ(error_of(file_of("{}", 0)), "no error");
  EXPECT_EQ(error_of(file_of("{}     ", 0)), "no error");
  EXPECT_EQ(error_of(file_of("{\"a\":" + tensor("F32", "[0]", "[0,0]") + "}", 0)), "no error");
  EXPECT_EQ(
      error_of(file_of(
          "{\"a\":" + tensor("F32", "[2,0,9]", "[0,0]") + ",\"b\":" + tensor("U8", "[3]", "[0,3]") + "}", 3)),
      "no error");
  EXPECT_EQ(error_of(file_of("{\"scalar\":" + tensor("I16", "[]", "[0,2]") + "}", 2)), "no error");
  // The header's length is not a multiple of 8, so the data start unaligned.
  const std::string header = "{\"ab\":" + tensor("F32", "[1]", "[0,4]") + "}";
  ASSERT_NE(header.size() % 8, 0u);
  EXPECT_EQ(error_of(file_of(header, 4)), "no error");
}

TEST_F(Safetensors, RejectsBadHeaders) {
  expect_rejected("", "0 bytes, expected at least 8");
  expect_rejected("1234567", "7 bytes, expected at least 8");
  expect_rejected(file_of("{}", 0, 3), "header of 3 bytes, expected at most 2");
  expect_rejected(file_of("{}", 0, UINT64_MAX - 1), "header of 18446744073709551614 bytes");
  expect_rejected(file_of("", 0), "does not start with '{'");
  expect_rejected(file_of(" {}", 0), "does not start with '{'");
  expect_rejected(file_of("\xEF\xBB\xBF{}", 0), "does not start with '{'");
  expect_rejected(file_of("[]", 0), "does not start with '{'");
  expect_rejected(file_of("{", 0), "parse error");
  expect_rejected(file_of("{}{}", 0), "parse error");
  expect_rejected(file_of(std::string("{}\0\0", 4), 0), "NUL byte at 2");
  expect_rejected(file_of("{\"\xff\":1}", 0), "ill-formed UTF-8");
  expect_rejected(file_of(R"({"a":1})", 0), "tensor 'a': expected an object");
  expect_rejected(file_of(R"({"a":{"dtype":"F32","shape":[0]}})", 0),
                  "tensor 'a': expected an object of dtype");
  expect_rejected(file_of(R"({"__metadata__":{"a":1}})", 0), "'a' is number, expected a string");
  expect_rejected(file_of(R"({"__metadata__":"a"})", 0), "expected an object");
  const std::string a = "\"a\":" + tensor("U8", "[1]", "[0,1]");
  expect_rejected(file_of("{" + a + "," + a + "}", 1), "duplicate JSON key 'a'");
  expect_rejected(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "duplicate JSON key 'k'");
  expect_rejected(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
                  "duplicate JSON key 'dtype'");
}

TEST_F(Safetensors, RejectsAHeaderAboveTheCapEvenInALargeFile) {
  const fs::path path = put(file_of("{}", 0, kMaxSafetensorsHeader + 1));
  fs::resize_file(path, kMaxSafetensorsHeader + 100);  // sparse
  EXPECT_THROW(SafetensorsReader reader(path), CorruptData);
}

TEST_F(Safetensors, RejectsNestingBombsWithoutFollowingThem) {
  expect_rejected(file_of("{\"a\":" + std::string(5'000'000, '['), 0), "nested more than 3 deep");
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  expect_rejected(file_of(objects, 0), "nested more than 3 deep");
}

TEST_F(Safetensors, RejectsTensorsThatDoNotFitTheirBytes) {
  const auto one = [](const std::string& entry) { return "{\"a\":" + entry + "}"; };
  expect_rejected(file_of(one(tensor("F32", "[1]", "[0,0]")), 0),
                  "data_offsets are [0, 0], expected 4 bytes for F32 [1]");
  expect_rejected(file_of(one(tensor("F32", "[1]", "[4,0]")), 4), "data_offsets are [4, 0]");
  expect_rejected(file_of(one(tensor("F32", "[1]", "[0]")), 4), "1 data_offsets, expected 2");
  expect_rejected(file_of(one(tensor("F33", "[1]", "[0,4]")), 4), "dtype is \"F33\", expected one of F64");
  expect_rejected(file_of(one(tensor("F32", "[-1]", "[0,4]")), 4), "shape holds -1");
  expect_rejected(file_of(one(tensor("F32", "[1.0]", "[0,4]")), 4), "shape holds 1.0");
  expect_rejected(file_of(one(tensor("F32", "[99999999999999999999]", "[0,4]")), 4), "shape holds 1e+20");
  expect_rejected(file_of(one(tensor("F32", "[18446744073709551615]", "[0,4]")), 4),
                  "shape holds 18446744073709551615");
  expect_rejected(file_of(one(tensor("F32", "[4294967296,4294967296]", "[0,0]")), 0), "is too large");
  expect_rejected(file_of(one(tensor("F32", "[9223372036854775807]", "[0,4]")), 4), "is too large");
  expect_rejected(file_of(one(tensor("F32", "1", "[0,4]")), 4), "shape is number, expected an array");
  expect_rejected(file_of(one(tensor("F32", "[\"1\"]", "[0,4]")), 4), "shape holds \"1\"");
}

TEST_F(Safetensors, RejectsFilesThatDoNotMatchTheirHeader) {
  const std::string header = "{\"a\":" + tensor("F32", "[2]", "[0,8]") + "}";
  expect_rejected(file_of(header, 7), "7 bytes of data, expected 8");
  expect_rejected(file_of(header, 9), "9 bytes of data, expected 8");
  const auto two = [](const std::string& b) {
    return "{\"a\":" + tensor("U8", "[4]", "[0,4]") + ",\"b\":" + b + "}";
  };
  expect_rejected(file_of(two(tensor("U8", "[4]", "[3,7]")), 7),
                  "tensor 'b' starts at byte 3, expected 4: the data overlap");
  expect_rejected(file_of(two(tensor("U8", "[4]", "[5,9]")), 9),
                  "tensor 'b' starts at byte 5, expected 4: the data have a gap");
  expect_rejected(file_of(two(tensor("U8", "[4]", "[0,4]")), 4), "overlap");
  expect_rejected(file_of(two(tensor("U8", "[0]", "[2,2]")), 4), "tensor 'b' starts at byte 2");
}

std::vector<std::byte> bytes_of(std::size_t size, int first = 1) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(static_cast<int>(i) + first);
  return bytes;
}

TEST_F(Safetensors, WrittenPiecesInAnyOrderReadBack) {
  const fs::path path = folder_ / "y.safetensors";
  const auto bytes = bytes_of(5), words = bytes_of(24, 100);
  SafetensorsWriter writer(
      path, {{"u", DType::kU8, {5}}, {"empty", DType::kBF16, {0, 3}}, {"w", DType::kI64, {3, 1}}},
      {{"step", "7"}});
  writer.write("w", 8, std::span(words).subspan(8));
  writer.write("u", 0, bytes);
  writer.write("w", 0, std::span(words).first(8));
  writer.finish();

  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"step", "7"}}));
  EXPECT_EQ(reader.info("w").shape, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(reader.info("w").dtype, DType::kI64);
  EXPECT_EQ(reader.info("w").begin, 0) << "wider elements first";
  EXPECT_EQ(reader.info("empty").bytes(), 0);
  std::vector<std::byte> back(24);
  reader.read("w", 0, back);
  EXPECT_EQ(back, words);
  back.resize(2);
  reader.read("u", 3, back);
  EXPECT_EQ(back, (std::vector<std::byte>{bytes[3], bytes[4]}));
  reader.read("u", 5, {});
  // header (8-aligned) + 29 data bytes: nothing more than the elements themselves
  EXPECT_EQ((fs::file_size(path) - 29) % 8, 0u);
}

TEST_F(Safetensors, RequestsOutsideATensorAreRefused) {
  SafetensorsWriter writer(folder_ / "y.safetensors", {{"u", DType::kU8, {5}}});
  const auto bytes = bytes_of(6);
  EXPECT_THROW(writer.write("u", 0, bytes), InvalidArgument);
  EXPECT_THROW(writer.write("u", -1, std::span(bytes).first(1)), InvalidArgument);
  EXPECT_THROW(writer.write("v", 0, std::span(bytes).first(1)), InvalidArgument);
  writer.write("u", 0, std::span(bytes).first(5));
  writer.finish();
  const SafetensorsReader reader(folder_ / "y.safetensors");
  std::vector<std::byte> back(2);
  EXPECT_THROW(reader.read("u", 4, back), InvalidArgument);
  EXPECT_THROW(reader.read("u", INT64_MAX, back), InvalidArgument);
  EXPECT_THROW(reader.read("u", -1, back), InvalidArgument);
  EXPECT_THROW(reader.read("v", 0, back), InvalidArgument);
}

TEST_F(Safetensors, AnIncompleteFileIsNamedAndRemoved) {
  {
    SafetensorsWriter writer(folder_ / "y.safetensors", {{"u", DType::kU8, {5}}});
    writer.write("u", 0, bytes_of(4));
    try {
      writer.finish();
      FAIL();
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("tensor 'u' got 4 bytes, expected 5"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_FALSE(fs::exists(folder_ / "y.safetensors"));
}

TEST_F(Safetensors, BadDeclarationsAreRefusedBeforeTheFileExists) {
  const fs::path path = folder_ / "y.safetensors";
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), InvalidArgument);
  EXPECT_THROW(SafetensorsWriter(path, {{"__metadata__", DType::kU8, {1}}}), InvalidArgument);
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::kU8, {-1}}}), InvalidArgument);
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::kF32, {INT64_MAX}}}), InvalidArgument);
  EXPECT_THROW(SafetensorsWriter(path, {{"\xff", DType::kU8, {1}}}), InvalidArgument);
  EXPECT_FALSE(fs::exists(path));
}

// Flipped bytes, cut ends and doubled pieces of valid files: an Error or a valid file, never a crash.
TEST_F(Safetensors, MutatedFilesNeverCrash) {
  std::vector<std::string> seeds;
  for (const char* dtype : {"F32", "U8"}) {
    const std::string size = dtype[0] == 'F' ? "24" : "6";
    seeds.push_back(file_of(R"({"__metadata__":{"k":"é\u00e9\n"},"a":)" +
                                tensor(dtype, "[2,3]", "[0," + size + "]") +
                                ",\"b\":" + tensor("I16", "[0]", "[" + size + "," + size + "]") + "}  ",
                            static_cast<std::size_t>(std::stoi(size))));
    EXPECT_EQ(error_of(seeds.back()), "no error");
  }
  const std::uint64_t key = random_key(7, "mutations");
  int opened = 0, rejected = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    std::string bytes = seeds[i % seeds.size()];
    const std::uint64_t flips = 1 + random_bits(key, i, 0) % 3;
    for (std::uint64_t f = 0; f < flips; ++f) {
      const std::uint64_t draw = random_bits(key, i, 1 + f);
      bytes[draw % bytes.size()] = static_cast<char>(draw >> 40);
    }
    if (i % 5 == 0) bytes.resize(random_bits(key, i, 8) % bytes.size());
    if (i % 7 == 0) bytes += bytes.substr(bytes.size() / 2);
    // Not synced, and not over the old file: either would wait for the disk 4000 times.
    const fs::path path = folder_ / "m.safetensors";
    fs::remove(path);
    File::create(path).write_at(0, std::as_bytes(std::span(bytes)));
    try {
      const SafetensorsReader reader(path);
      for (const TensorInfo& info : reader.tensors()) {
        std::vector<std::byte> data(static_cast<std::size_t>(info.bytes()));
        reader.read(info.name, 0, data);
      }
      ++opened;
    } catch (const Error&) {
      ++rejected;
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(rejected, 1000);
}

}  // namespace
}  // namespace moesaic
