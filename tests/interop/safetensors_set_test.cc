#include "moesaic/interop/safetensors_set.h"

#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "tests/temporary_directory.h"

namespace moesaic {
namespace {

class SafetensorsSets : public ::testing::Test {
 protected:
  // A shard with one uint8 tensor [1] per name, holding `value`.
  void put_shard(const std::string& file, const std::vector<std::string>& names, int value) {
    std::vector<TensorInfo> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::kU8, {1}});
    SafetensorsWriter writer(folder_ / file, tensors);
    const std::byte byte{static_cast<unsigned char>(value)};
    for (const std::string& name : names) writer.write(name, 0, std::span(&byte, 1));
    writer.finish();
  }
  void put_index(const std::string& text) {
    write_text_synced(folder_ / "model.safetensors.index.json", text);
  }
  int value_of(const std::string& name) {
    std::byte byte;
    SafetensorsSet::open(folder_.path()).read(name, 0, std::span(&byte, 1));
    return std::to_integer<int>(byte);
  }
  std::string error() {
    try {
      SafetensorsSet::open(folder_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  TemporaryDirectory folder_;
};

TEST_F(SafetensorsSets, TheIndexSaysWhereEachTensorIsAndStrayShardsAreIgnored) {
  put_shard("a.safetensors", {"x", "unlisted"}, 1);
  put_shard("b.safetensors", {"y"}, 2);
  put_shard("stray.safetensors", {"x", "z"}, 3);
  put_index(R"({"metadata":{"total_size":2},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  EXPECT_EQ(SafetensorsSet::open(folder_.path()).names(), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(value_of("x"), 1);
  EXPECT_EQ(value_of("y"), 2);
  EXPECT_THROW(value_of("z"), InvalidArgument);
}

TEST_F(SafetensorsSets, WithoutAnIndexOneFileOrAllFilesCount) {
  put_shard("b.safetensors", {"y"}, 2);
  put_shard("a.safetensors", {"x"}, 1);
  EXPECT_EQ(SafetensorsSet::open(folder_.path()).names(), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(SafetensorsSet::open(folder_ / "a.safetensors").names(), std::vector<std::string>{"x"});
  put_shard("c.safetensors", {"y"}, 3);
  EXPECT_NE(error().find("tensor 'y' is in both"), std::string::npos) << error();
  put_shard("model.safetensors", {"m"}, 4);
  EXPECT_EQ(SafetensorsSet::open(folder_.path()).names(), std::vector<std::string>{"m"});
}

TEST_F(SafetensorsSets, BadIndexesAreRefusedByName) {
  put_shard("a.safetensors", {"x"}, 1);
  put_index(R"({"weight_map":{"x":"a.safetensors","y":"gone.safetensors"}})");
  EXPECT_NE(error().find("shard gone.safetensors of tensor 'y' is missing"), std::string::npos) << error();
  put_index(R"({"weight_map":{"y":"a.safetensors"}})");
  EXPECT_NE(error().find("tensor 'y' is not in its shard a.safetensors"), std::string::npos) << error();
  for (const char* shard : {"../a.safetensors", "/a.safetensors", "sub/a.safetensors", "..", ""}) {
    put_index(fmt::format(R"({{"weight_map":{{"x":"{}"}}}})", shard));
    EXPECT_NE(error().find("expected a plain file name"), std::string::npos) << error();
  }
  put_index(R"({"weight_map":{"x":1}})");
  EXPECT_NE(error().find("expected a plain file name"), std::string::npos) << error();
  put_index(R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})");
  EXPECT_NE(error().find("duplicate JSON key 'x'"), std::string::npos) << error();
  put_index("[]");
  EXPECT_NE(error().find("weight_map"), std::string::npos) << error();
}

TEST_F(SafetensorsSets, AnEmptyFolderIsAnError) {
  EXPECT_NE(error().find("holds no .safetensors file"), std::string::npos) << error();
}

}  // namespace
}  // namespace moesaic
