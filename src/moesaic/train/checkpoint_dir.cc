#include "moesaic/train/checkpoint_dir.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "moesaic/core/buffer.h"
#include "moesaic/core/crc32c.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/core/json.h"
#include "moesaic/train/work_together.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kFormatVersion = 1;
constexpr int kMaxManifestDepth = 64;
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kReplaced = ".old";

std::string hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

std::uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

std::uint32_t crc_of(const File& file, std::int64_t size) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  Buffer buffer(std::min(size, kPiece));
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < size; at += kPiece) {
    const auto piece = buffer.span().first(static_cast<std::size_t>(std::min(kPiece, size - at)));
    file.read_at(at, piece);
    crc = crc32c(piece, crc);
  }
  return crc;
}

// Runs a std::filesystem call; its failure becomes an IoError.
template <typename Call>
auto or_io_error(Call&& call) {
  try {
    return call();
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("checkpoint: {} {}", error.path1().string(), error.code().message()));
  }
}

Json entries_to_json(std::span<const FileEntry> entries) {
  Json list = Json::array();
  for (const FileEntry& entry : entries) {
    list.push_back({{"name", entry.name}, {"bytes", entry.bytes}, {"crc32c", hex(entry.crc32c)}});
  }
  return list;
}

std::vector<FileEntry> entries_from_json(const Json& list, const std::string& source) {
  std::vector<FileEntry> entries;
  for (const Json& item : list) {
    FileEntry entry{item.at("name").get<std::string>(), item.at("bytes").get<std::int64_t>(), 0};
    const auto digits = item.at("crc32c").get<std::string>();
    const char* end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, entry.crc32c, 16);
    const bool plain = !entry.name.empty() && entry.name != "." && entry.name != ".." &&
                       entry.name.find('/') == std::string::npos;
    if (parsed.ec != std::errc() || parsed.ptr != end || !plain) {
      throw CorruptData(
          fmt::format("{}: file entry {} is not a plain file name with a CRC", source, item.dump()));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

// "step-000100" + suffix -> 100; nothing for other names.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(suffix.size());
  std::int64_t step = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), step);
  if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

// IoError where the disk does not say whether it is.
bool is_complete(const fs::path& folder) {
  if (!or_io_error([&] { return fs::exists(folder / kManifestName); })) return false;
  try {
    for (const FileEntry& entry : read_manifest(folder).files) {
      std::error_code error;
      const std::uintmax_t size = fs::file_size(folder / entry.name, error);
      if (error || size != static_cast<std::uintmax_t>(entry.bytes)) return false;
    }
    return true;
  } catch (const CorruptData&) {
    return false;
  }
}

std::vector<fs::path> entries_of(const fs::path& root) {
  return or_io_error([&] {
    std::vector<fs::path> entries;
    for (const auto& entry : fs::directory_iterator(root)) entries.push_back(entry.path());
    return entries;
  });
}

struct Found {
  std::int64_t step;
  bool replaced;  // a .old folder
  fs::path path;
};

// Newest first; of one step, the folder in place before a replaced one.
std::vector<Found> checkpoints_in(const fs::path& root) {
  std::vector<Found> found;
  for (const fs::path& path : entries_of(root)) {
    const std::string name = path.filename().string();
    if (const auto step = step_of(name, "")) found.push_back({*step, false, path});
    if (const auto step = step_of(name, kReplaced)) found.push_back({*step, true, path});
  }
  std::ranges::sort(found, [](const Found& a, const Found& b) {
    return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
  });
  return found;
}

// Renamed first: a folder half removed must not look like a checkpoint.
void remove_checkpoint(const fs::path& folder) {
  const fs::path doomed = folder.string() + ".deleted" + std::string(kTemporary);
  or_io_error([&] { return fs::remove_all(doomed); });
  rename_path(folder, doomed);
  or_io_error([&] { return fs::remove_all(doomed); });
}

// Finishes or undoes what an interrupted save left behind.
void recover(const fs::path& root) {
  for (const fs::path& path : entries_of(root)) {
    const std::string name = path.filename().string();
    const bool ours = name.starts_with(kPrefix) || name.starts_with("latest");
    if (ours && name.ends_with(kTemporary)) or_io_error([&] { return fs::remove_all(path); });
  }
  for (const Found& found : checkpoints_in(root)) {
    if (!found.replaced) continue;
    const fs::path place = root / checkpoint_name(found.step);
    if (is_complete(place)) {
      remove_checkpoint(found.path);
    } else {
      if (fs::exists(place)) remove_checkpoint(place);
      rename_path(found.path, place);
    }
  }
}

std::string manifest_text(const CheckpointManifest& manifest) {
  Json body = {{"format_version", kFormatVersion},
               {"step", manifest.step},
               {"next_sample", manifest.next_sample},
               {"config", manifest.config_toml},
               {"placement", parse_json(manifest.placement, "placement", kMaxManifestDepth)},
               {"extra", parse_json(manifest.extra, "extra", kMaxManifestDepth)},
               {"files", entries_to_json(manifest.files)}};
  const std::string crc = hex(crc_of(body.dump()));
  return Json{{"manifest", std::move(body)}, {"crc32c", crc}}.dump(1) + "\n";
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

fs::path staging_folder(const fs::path& root, std::int64_t step) {
  return root / (checkpoint_name(step) + std::string(kTemporary));
}

void begin_checkpoint(const fs::path& root, std::int64_t step) {
  require(step >= 0, "checkpoint: step is {}, expected at least 0", step);
  or_io_error([&] { return fs::create_directories(root); });
  recover(root);
  or_io_error([&] { return fs::create_directory(staging_folder(root, step)); });
}

FileEntry describe_file(const fs::path& path) {
  File file = File::open(path);
  file.sync();
  const std::int64_t size = file.size();
  return {path.filename().string(), size, crc_of(file, size)};
}

std::string encode_entries(std::span<const FileEntry> entries) { return entries_to_json(entries).dump(); }

std::vector<FileEntry> decode_entries(std::string_view text) {
  try {
    const std::string source = "checkpoint file list";
    return entries_from_json(parse_json(text, source, 3), source);
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("checkpoint file list: {}", error.what()));
  }
}

void commit_checkpoint(const fs::path& root, const CheckpointManifest& manifest, std::int64_t keep_last,
                       Tracer* tracer) {
  const auto span = [tracer](std::string_view name) {
    return Span(tracer, {.phase = Phase::kSave, .name = name, .lane = kWorkLane});
  };
  const std::string name = checkpoint_name(manifest.step);
  const fs::path staging = staging_folder(root, manifest.step), place = root / name;
  const fs::path replaced = place.string() + std::string(kReplaced);
  {
    const Span manifest_span = span("manifest");
    write_text_synced(staging / kManifestName, manifest_text(manifest));
    if (!is_complete(staging)) {
      throw CorruptData(
          fmt::format("{}: the files written are not those described by the ranks", staging.string()));
    }
    sync_directory(staging);
  }
  {
    const Span rename_span = span("rename");
    if (fs::exists(place)) rename_path(place, replaced);
    rename_path(staging, place);
    sync_directory(root);
    if (fs::exists(replaced)) remove_checkpoint(replaced);
  }
  {
    const Span latest_span = span("latest");
    const fs::path latest = root / "latest", next = latest.string() + std::string(kTemporary);
    write_text_synced(next, name + "\n");
    rename_path(next, latest);
    sync_directory(root);
  }

  if (keep_last <= 0) return;
  const Span prune_span = span("prune");
  const std::vector<Found> found = checkpoints_in(root);
  for (std::size_t i = static_cast<std::size_t>(keep_last); i < found.size(); ++i) {
    if (found[i].step < manifest.step) remove_checkpoint(found[i].path);
  }
}

void abandon_checkpoint(const fs::path& root, std::int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(staging_folder(root, step), ignored);
}

std::optional<fs::path> find_newest(const fs::path& root) {
  if (std::error_code error; !fs::is_directory(root, error)) return std::nullopt;
  for (const Found& found : checkpoints_in(root)) {
    if (is_complete(found.path)) return found.path;
  }
  return std::nullopt;
}

CheckpointManifest read_manifest(const fs::path& folder) {
  const std::string source = (folder / kManifestName).string();
  const Json file = parse_json(read_text(source), source, kMaxManifestDepth + 2);
  try {
    const Json& body = file.at("manifest");
    const auto expected = file.at("crc32c").get<std::string>(), got = hex(crc_of(body.dump()));
    if (got != expected)
      throw CorruptData(fmt::format("{}: CRC32C is {}, expected {}", source, got, expected));
    const int version = body.at("format_version").get<int>();
    if (version != kFormatVersion) {
      throw CorruptData(
          fmt::format("{}: format version is {}, expected {}", source, version, kFormatVersion));
    }
    return {.step = body.at("step").get<std::int64_t>(),
            .next_sample = body.at("next_sample").get<std::int64_t>(),
            .config_toml = body.at("config").get<std::string>(),
            .placement = body.at("placement").dump(),
            .extra = body.at("extra").dump(),
            .files = entries_from_json(body.at("files"), source)};
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("{}: {}", source, error.what()));
  }
}

void verify_checkpoint(const fs::path& folder, int part, int parts) {
  const std::vector<FileEntry> files = read_manifest(folder).files;
  for (auto i = static_cast<std::size_t>(part); i < files.size(); i += static_cast<std::size_t>(parts)) {
    const FileEntry& entry = files[i];
    const fs::path path = folder / entry.name;
    const File file = File::open(path);
    const std::int64_t size = file.size();
    if (size != entry.bytes) {
      throw CorruptData(fmt::format("{} has {} bytes, expected {}", path.string(), size, entry.bytes));
    }
    const std::uint32_t crc = crc_of(file, size);
    if (crc != entry.crc32c) {
      throw CorruptData(
          fmt::format("{}: CRC32C is {}, expected {}", path.string(), hex(crc), hex(entry.crc32c)));
    }
  }
}

}  // namespace moesaic
