#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "tests/temporary_directory.h"

namespace moesaic {
namespace {

std::string refusal(const std::filesystem::path& path) {
  try {
    const FileLock lock(path);
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FileLock, KeepsOthersOutAndNamesItsHolderUntilItGoes) {
  const TemporaryDirectory folder;
  std::optional<FileLock> first(folder / "lock");
  const std::string said = refusal(folder / "lock");
  EXPECT_NE(
      said.find((folder / "lock").string() + " is held by process " + std::to_string(::getpid()) + " on "),
      std::string::npos)
      << said;
  EXPECT_EQ(refusal(folder / "another"), "no error");
  first.reset();
  EXPECT_EQ(refusal(folder / "lock"), "no error");
}

TEST(FileLock, AFileThatCannotBeMadeIsNamed) {
  EXPECT_NE(refusal("/nowhere/lock").find("/nowhere/lock: No such file or directory"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
