// Kills a saving process before each of its file system operations in turn: the windows between two renames
// are too short for random kills to hit. fsync, rename and the removals are replaced by versions that count.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "moesaic/train/checkpoint_dir.h"
#include "tests/temporary_directory.h"

namespace {

long operations_left = -1;  // SIGKILL before the operation that finds 0; negative = never

void count_operation() {
  if (operations_left == 0) ::kill(::getpid(), SIGKILL);
  if (operations_left > 0) --operations_left;
}

}  // namespace

extern "C" {
int fsync(int descriptor) {
  count_operation();
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
int rename(const char* from, const char* to) noexcept {
  count_operation();
  return static_cast<int>(::syscall(SYS_rename, from, to));
}
int unlinkat(int folder, const char* path, int flags) noexcept {  // std::filesystem::remove_all uses it
  count_operation();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
}

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void save(const fs::path& root, std::int64_t step, std::int64_t keep_last) {
  begin_checkpoint(root, step);
  CheckpointManifest manifest{.step = step};
  for (const char* name : {"a", "b"}) {
    std::ofstream(staging_folder(root, step) / name) << name << step;
    manifest.files.push_back(describe_file(staging_folder(root, step) / name));
  }
  commit_checkpoint(root, manifest, keep_last);
}

// True when the child was killed before it had finished.
bool save_until_killed(const fs::path& root, std::int64_t step, std::int64_t keep_last, long operations) {
  const pid_t child = ::fork();
  if (child == 0) {
    operations_left = operations;
    save(root, step, keep_last);
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
              (WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return WIFSIGNALED(status);
}

// `step` is saved over a folder that holds steps 1 and 2.
void kill_before_each_operation(std::int64_t step, std::int64_t keep_last) {
  long operations = 0;
  for (bool killed = true; killed; ++operations) {
    ASSERT_LT(operations, 100);
    const TemporaryDirectory folder;
    save(folder.path(), 1, 0);
    save(folder.path(), 2, 0);
    killed = save_until_killed(folder.path(), step, keep_last, operations);
    const auto newest = find_newest(folder.path());
    ASSERT_TRUE(newest) << "killed before operation " << operations;
    verify_checkpoint(*newest);
    EXPECT_GE(read_manifest(*newest).step, killed ? 2 : step) << "killed before operation " << operations;
    // And the next save clears up, whatever was left.
    save(folder.path(), 4, 1);
    int left = 0;
    for (const auto& entry : fs::directory_iterator(folder.path()))
      left += entry.path().filename() != "latest";
    EXPECT_EQ(left, 1) << "killed before operation " << operations;
    EXPECT_EQ(find_newest(folder.path()), folder / "step-000004");
  }
  EXPECT_GT(operations, 8) << "the operations are not being counted";
}

TEST(CheckpointKill, BeforeAnyOperationOfANewStepTheNewestIsIntact) { kill_before_each_operation(3, 1); }

TEST(CheckpointKill, BeforeAnyOperationOfAReplacedStepTheNewestIsIntact) { kill_before_each_operation(2, 0); }

}  // namespace
}  // namespace moesaic
