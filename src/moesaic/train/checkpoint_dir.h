// checkpoint_dir.h: a folder of checkpoints that a crash at any point leaves loadable.
//
//   checkpoints/step-000100/        complete: its manifest.json is its last file, and the folder was renamed
//   into place checkpoints/step-000200.tmp/    being written; never picked checkpoints/step-000100.old/    a
//   complete one that is being replaced by another of the same step checkpoints/latest              text: the
//   name of the newest complete one, for people and scripts; moves last
//
// The steps of a save, by the caller, who puts barriers between them; all ranks see one file system:
//   rank 0      begin_checkpoint(root, step)        clears what a crash left, makes the .tmp folder
//   -- barrier --
//   every rank  writes its files into staging_folder(root, step), then describe_file() of each
//   -- gather the FileEntry lists on rank 0 (encode_entries, decode_entries) --
//   rank 0      commit_checkpoint(root, manifest, keep_last)
//   on failure  abandon_checkpoint(root, step)      rank 0, after all ranks have stopped writing
// Local functions; nothing here communicates.
//
// Errors: IoError with the system's reason (disk full, no permission); CorruptData naming file, got and
// expected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/core/trace.h"

namespace moesaic {

inline constexpr std::string_view kManifestName = "manifest.json";

struct FileEntry {
  std::string name;  // within the checkpoint's folder
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

// Everything about a checkpoint but its tensors.
struct CheckpointManifest {
  std::int64_t step = 0;           // optimizer steps done
  std::int64_t next_sample = 0;    // data position: the first sample of the next step
  std::string config_toml = {};    // the resolved configuration
  std::string placement = "null";  // JSON: who owned which expert
  std::string extra = "null";      // JSON: whatever else the trainer must find again
  std::vector<FileEntry> files = {};
};

std::string checkpoint_name(std::int64_t step);  // "step-000100"
std::filesystem::path staging_folder(const std::filesystem::path& root, std::int64_t step);

// Creates `root` where needed.
void begin_checkpoint(const std::filesystem::path& root, std::int64_t step);

// Size and CRC32C of a written file, which is on the disk on return.
FileEntry describe_file(const std::filesystem::path& file);

std::string encode_entries(std::span<const FileEntry> entries);
std::vector<FileEntry> decode_entries(std::string_view text);

// On return the checkpoint is complete, on the disk, and `latest`. A complete one of the same step is
// replaced; until then it stays loadable. Then all but the `keep_last` newest are deleted (0 = none are).
// Its steps are spans of Phase::kSave.
void commit_checkpoint(const std::filesystem::path& root, const CheckpointManifest& manifest,
                       std::int64_t keep_last, Tracer* tracer = nullptr);

// Removes what was written. Never throws: it runs while another error is under way.
void abandon_checkpoint(const std::filesystem::path& root, std::int64_t step) noexcept;

// The folder of the newest complete checkpoint: manifest intact, all files there in full size (their contents
// are verify_checkpoint()'s business). Empty when there is none. Reads the folder, not `latest`, which a
// crash can leave behind. A disk that fails is an IoError, and no reason to go back to an older one.
std::optional<std::filesystem::path> find_newest(const std::filesystem::path& root);

// CorruptData when the manifest is damaged or of another format version.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

// Size and CRC of every file the manifest lists; with `parts`, of every parts-th from the part-th on, so that
// ranks can share the reading.
void verify_checkpoint(const std::filesystem::path& folder, int part = 0, int parts = 1);

}  // namespace moesaic
