#include "moesaic/train/checkpoint_dir.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/core/rng.h"
#include "tests/temporary_directory.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::string content_of(std::int64_t step, int file) { return fmt::format("step {} file {}\n", step, file); }

// Everything a trainer does to save, on one rank.
void save(const fs::path& root, std::int64_t step, std::int64_t keep_last = 0, int num_files = 3,
          const std::string& mark = "") {
  begin_checkpoint(root, step);
  CheckpointManifest manifest{.step = step, .next_sample = 10 * step, .config_toml = "[train]\nsteps = 9\n"};
  manifest.placement = R"({"layers":[[0,1]]})";
  manifest.extra = R"({"mark":")" + mark + "\"}";
  for (int i = 0; i < num_files; ++i) {
    const fs::path path = staging_folder(root, step) / fmt::format("{}.bin", i);
    std::ofstream(path) << content_of(step, i);
    manifest.files.push_back(describe_file(path));
  }
  commit_checkpoint(root, manifest, keep_last);
}

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

template <typename E>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckpointDir, ASavedCheckpointIsFoundVerifiedAndReadBack) {
  const TemporaryDirectory folder;
  const fs::path root = folder / "checkpoints";
  EXPECT_EQ(find_newest(root), std::nullopt);
  save(root, 100);
  save(root, 1'000'000);
  ASSERT_EQ(find_newest(root), root / "step-1000000");
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"latest", "step-000100", "step-1000000"}));
  EXPECT_EQ(read_text(root / "latest"), "step-1000000\n");
  verify_checkpoint(root / "step-000100");
  const CheckpointManifest manifest = read_manifest(root / "step-000100");
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.next_sample, 1000);
  EXPECT_EQ(manifest.config_toml, "[train]\nsteps = 9\n");
  EXPECT_EQ(manifest.placement, R"({"layers":[[0,1]]})");
  EXPECT_EQ(manifest.extra, R"({"mark":""})");
  EXPECT_EQ(manifest.files.size(), 3u);
}

TEST(CheckpointDir, FileListsTravelAsText) {
  const std::vector<FileEntry> entries = {{"a.safetensors", INT64_MAX, 0xE3069283u}, {"b", 0, 0}};
  const std::vector<FileEntry> back = decode_entries(encode_entries(entries));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].name, "a.safetensors");
  EXPECT_EQ(back[0].bytes, INT64_MAX);
  EXPECT_EQ(back[0].crc32c, 0xE3069283u);
  for (const char* text : {R"([{"name":"../a","bytes":0,"crc32c":"0"}])",
                           R"([{"name":"a","bytes":0,"crc32c":"g"}])", R"([{"name":"a"}])", "[", "7"}) {
    EXPECT_THROW(decode_entries(text), CorruptData) << text;
  }
}

TEST(CheckpointDir, IncompleteOnesAreNeverPickedAndClearedByTheNextSave) {
  const TemporaryDirectory folder;
  const fs::path& root = folder.path();
  save(root, 1);
  save(root, 2);
  save(root, 3);
  fs::remove(root / "step-000002" / "1.bin");
  fs::resize_file(root / "step-000003" / "2.bin", 3);
  EXPECT_EQ(find_newest(root), root / "step-000001");
  begin_checkpoint(root, 9);
  std::ofstream(staging_folder(root, 9) / "0.bin") << "half";
  fs::create_directory(root / "step-000010");  // no manifest
  fs::create_directory(root / "step-7x");
  EXPECT_EQ(find_newest(root), root / "step-000001");
  save(root, 11);
  EXPECT_FALSE(fs::exists(root / "step-000009.tmp"));
  EXPECT_EQ(find_newest(root), root / "step-000011");
}

TEST(CheckpointDir, DamageIsNamed) {
  const TemporaryDirectory folder;
  save(folder.path(), 1);
  const fs::path saved = folder / "step-000001";
  const auto verify_error = [&] { return error_of<Error>([&] { verify_checkpoint(saved); }); };
  std::fstream(saved / "1.bin", std::ios::in | std::ios::out) << "S";
  EXPECT_NE(verify_error().find("1.bin: CRC32C is "), std::string::npos) << verify_error();
  fs::resize_file(saved / "1.bin", 4);
  EXPECT_NE(verify_error().find("1.bin has 4 bytes, expected 14"), std::string::npos) << verify_error();
  fs::remove(saved / "1.bin");
  EXPECT_NE(verify_error().find("1.bin: No such file"), std::string::npos) << verify_error();
  std::string text = read_text(saved / "manifest.json");
  text.replace(text.find("steps = 9"), 9, "steps = 8");
  write_text_synced(saved / "manifest.json", text);
  EXPECT_NE(verify_error().find("manifest.json: CRC32C is "), std::string::npos) << verify_error();
  write_text_synced(saved / "manifest.json", "{}");
  EXPECT_NE(verify_error().find("manifest.json: "), std::string::npos) << verify_error();
}

TEST(CheckpointDir, KeepLastDeletesTheOldestOnceTheNewOneIsComplete) {
  const TemporaryDirectory folder;
  for (std::int64_t step = 1; step <= 4; ++step) save(folder.path(), step, 2);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"latest", "step-000003", "step-000004"}));
}

TEST(CheckpointDir, TheSameStepIsReplacedAndLoadableMeanwhile) {
  const TemporaryDirectory folder;
  const fs::path& root = folder.path();
  save(root, 5, 0, 3, "first");
  save(root, 5, 0, 3, "second");
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"latest", "step-000005"}));
  EXPECT_EQ(read_manifest(*find_newest(root)).extra, R"({"mark":"second"})");
  // Killed between the two renames: the replaced one is all there is.
  fs::rename(root / "step-000005", root / "step-000005.old");
  fs::create_directory(root / "step-000005.tmp");
  EXPECT_EQ(find_newest(root), root / "step-000005.old");
  verify_checkpoint(*find_newest(root));
  begin_checkpoint(root, 6);
  EXPECT_EQ(find_newest(root), root / "step-000005");
}

TEST(CheckpointDir, AFullDiskIsAnIoErrorAndThePreviousOneStays) {
  const TemporaryDirectory folder;
  const fs::path& root = folder.path();
  save(root, 1);
  // A file size limit stands in for the full disk: writes fail the same way, with EFBIG.
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  begin_checkpoint(root, 2);
  const struct rlimit small = {64, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of<IoError>([&] { commit_checkpoint(root, {.step = 2}, 1); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find("manifest.json: File too large"), std::string::npos) << error;
  abandon_checkpoint(root, 2);
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"latest", "step-000001"}));
  EXPECT_EQ(find_newest(root), root / "step-000001");
}

TEST(CheckpointDir, AFolderThatCannotBeMadeIsAnIoError) {
  const TemporaryDirectory folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_NE(error_of<IoError>([&] { begin_checkpoint(folder / "file", 1); }), "no error");
  EXPECT_NE(error_of<IoError>([&] { begin_checkpoint(folder / "file/below", 1); }).find("Not a directory"),
            std::string::npos);
}

// Every step is saved twice, so that half of the saves replace a complete one.
[[noreturn]] void save_forever(const fs::path& root, std::int64_t step, int report) {
  for (;; ++step) {
    for (int time = 0; time < 2; ++time) {
      save(root, step, 2, 12);
      if (::write(report, &step, sizeof step) != sizeof step) ::_exit(1);
    }
  }
}

TEST(CheckpointDir, KilledAtAnyPointTheNewestIsIntactAndNotOlderThanReported) {
  const std::uint64_t key = random_key(11, "kill points");
  const TemporaryDirectory folder;
  int found = 0;
  for (std::uint64_t round = 0; round < 40; ++round) {
    const fs::path root = folder / std::to_string(round / 10);  // later rounds start from what a kill left
    const auto before = find_newest(root);
    const std::int64_t first = before ? read_manifest(*before).step + 1 : 1;
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) save_forever(root, first, pipe[1]);
    ASSERT_GT(child, 0);
    ::close(pipe[1]);
    ::usleep(static_cast<useconds_t>(5'000 + random_bits(key, round) % 200'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "a save failed by itself";
    std::int64_t reported = first - 1, step;
    while (::read(pipe[0], &step, sizeof step) == sizeof step) reported = step;
    ::close(pipe[0]);

    const auto newest = find_newest(root);
    if (!newest) {
      EXPECT_EQ(reported, 0) << "round " << round;
      continue;
    }
    ++found;
    verify_checkpoint(*newest);
    EXPECT_GE(read_manifest(*newest).step, reported) << "round " << round;
  }
  EXPECT_GE(found, 10);
}

}  // namespace
}  // namespace moesaic
