// file.h: files as byte ranges, with errors that say which file, what was asked and what the system answered.
//
// Local. Errors: IoError with the system's reason (no such file, no space left, ...).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace moesaic {

// An open file, closed with the object.
class File {
 public:
  File() = default;
  static File open(const std::filesystem::path& path);    // to read
  static File create(const std::filesystem::path& path);  // to write; an existing one is emptied
  static File update(const std::filesystem::path& path);  // to read and write; made where there is none

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::int64_t size() const;
  // All of `bytes` or an error: CorruptData where the file ends before.
  void read_at(std::int64_t offset, std::span<std::byte> bytes) const;
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  // Returns once the contents are on the disk.
  void sync();

 private:
  File(std::filesystem::path path, int flags);
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A file that one holder has at a time, other objects of this process included. The system lets go of it when
// the process ends, however it ends, so a lock is never left behind; the file is. A file system without locks
// locks nobody out.
class FileLock {
 public:
  // IoError naming who has it when it is taken.
  explicit FileLock(const std::filesystem::path& path);

 private:
  File file_;
};

std::string read_text(const std::filesystem::path& path);

// The file with exactly this text, on the disk on return. Not atomic.
void write_text_synced(const std::filesystem::path& path, std::string_view text);

// Puts a directory's entries (new names, renames, removals) on the disk.
void sync_directory(const std::filesystem::path& path);

// Moves a file or directory over `to` in one step.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace moesaic
