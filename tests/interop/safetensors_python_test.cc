// The C++ half of test_safetensors.py, which names a folder in MOESAIC_SAFETENSORS_DIR.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "moesaic/interop/safetensors.h"

namespace moesaic {
namespace {

template <typename T>
std::vector<T> values_of(const SafetensorsReader& reader, std::string_view name) {
  std::vector<T> values(static_cast<std::size_t>(reader.info(name).bytes()) / sizeof(T));
  reader.read(name, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(SafetensorsPython, ReadsItsFilesAndWritesFilesForIt) {
  const char* folder = std::getenv("MOESAIC_SAFETENSORS_DIR");
  if (folder == nullptr) GTEST_SKIP() << "run by test_safetensors.py";
  const std::filesystem::path path = folder;

  const SafetensorsReader reader(path / "from_python.safetensors");
  EXPECT_EQ(reader.metadata().at("writer"), "python");
  EXPECT_EQ(reader.info("f32").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(values_of<float>(reader, "f32"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(reader.info("bf16").dtype, DType::kBF16);
  EXPECT_EQ(values_of<std::uint16_t>(reader, "bf16"), (std::vector<std::uint16_t>{0x3f80, 0xc000}));
  EXPECT_EQ(values_of<std::int64_t>(reader, "i64"), (std::vector<std::int64_t>{-7}));
  EXPECT_EQ(reader.info("empty").shape, (std::vector<std::int64_t>{0, 4}));

  SafetensorsWriter writer(path / "from_moesaic.safetensors",
                           {{"u8", DType::kU8, {3}},
                            {"f32", DType::kF32, {2, 3}},
                            {"bf16", DType::kBF16, {2}},
                            {"i64", DType::kI64, {}},
                            {"empty", DType::kF16, {0, 4}}},
                           {{"writer", "moesaic"}});
  const std::array<std::uint8_t, 3> u8 = {1, 2, 255};
  const std::array<float, 6> f32 = {0, 1, 2, 3, 4, 5};
  const std::array<std::uint16_t, 2> bf16 = {0x3f80, 0xc000};
  const std::array<std::int64_t, 1> i64 = {-7};
  writer.write("u8", 0, std::as_bytes(std::span(u8)));
  writer.write("f32", 0, std::as_bytes(std::span(f32)));
  writer.write("bf16", 0, std::as_bytes(std::span(bf16)));
  writer.write("i64", 0, std::as_bytes(std::span(i64)));
  writer.finish();
}

}  // namespace
}  // namespace moesaic
