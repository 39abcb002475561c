#include "moesaic/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view action) {
  const int code = errno;
  throw IoError(fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(code)));
}

}  // namespace

File::File(fs::path path, int flags) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(path_, (flags & O_CREAT) != 0 ? "create" : "open");
}

File File::open(const fs::path& path) { return File(path, O_RDONLY); }
File File::create(const fs::path& path) { return File(path, O_RDWR | O_CREAT | O_TRUNC); }
File File::update(const fs::path& path) { return File(path, O_RDWR | O_CREAT); }

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::int64_t File::size() const {
  struct stat info;
  if (::fstat(descriptor_, &info) != 0) fail(path_, "get the size of");
  return info.st_size;
}

void File::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + done, bytes.size() - done,
                                offset + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "read");
    if (got == 0) {
      throw CorruptData(fmt::format("{} ends at byte {}, expected {} bytes at {}", path_.string(),
                                    offset + static_cast<std::int64_t>(done), bytes.size(), offset));
    }
    done += static_cast<std::size_t>(got);
  }
}

void File::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                 offset + static_cast<std::int64_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(path_, "write");
    done += static_cast<std::size_t>(put);
  }
}

void File::sync() {
  if (::fsync(descriptor_) != 0) fail(path_, "sync");
}

FileLock::FileLock(const fs::path& path) : file_(File::update(path)) {
  while (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) {
      throw IoError(fmt::format("{} is held by {}", path.string(), read_text(path)));
    }
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) return;
    fail(path, "lock");
  }
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::string holder = fmt::format("process {} on {}", ::getpid(), host);
  if (::ftruncate(file_.descriptor(), 0) != 0) fail(path, "empty");
  file_.write_at(0, std::as_bytes(std::span(holder)));
}

std::string read_text(const fs::path& path) {
  const File file = File::open(path);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_synced(const fs::path& path, std::string_view text) {
  File file = File::create(path);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.sync();
}

void sync_directory(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open");
  const bool synced = ::fsync(descriptor) == 0;
  const int code = errno;
  ::close(descriptor);
  errno = code;
  if (!synced) fail(path, "sync");
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  const int code = errno;
  throw IoError(fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(code)));
}

}  // namespace moesaic
