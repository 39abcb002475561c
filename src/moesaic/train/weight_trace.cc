#include "moesaic/train/weight_trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/core/json.h"
#include "moesaic/interop/safetensors.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1, kMaxDepth = 8;
constexpr std::string_view kIndexName = "trace.json";

constexpr std::string_view name_of(UnitKind kind) { return kind == UnitKind::kExpert ? "expert" : "dense"; }

UnitKind kind_from(const std::string& name) {
  if (name != "expert" && name != "dense") {
    throw CorruptData(fmt::format("unit of kind {}, expected expert or dense", name));
  }
  return name == "expert" ? UnitKind::kExpert : UnitKind::kDense;
}

TraceIndex parse(const nlohmann::json& json) {
  TraceIndex index;
  if (const int format = json.at("format"); format != kFormat) {
    throw CorruptData(fmt::format("format is {}, expected {}", format, kFormat));
  }
  index.config_toml = json.at("config");
  index.compute_dtype = json.at("compute_dtype");
  for (const auto& unit : json.at("units")) {
    index.units.push_back({unit.at("name"), kind_from(unit.at("kind")), unit.at("words"), unit.at("experts"),
                           unit.at("matrices")});
  }
  for (const auto& image : json.at("images")) {
    index.images.push_back({image.at("step"), image.at("learning_rate"), {}});
    // A file of another name could lie anywhere.
    TracedImage& made = index.images.back();
    made.file = {image_name(made.step), image.at("bytes"), image.at("crc32c")};
  }
  return index;
}

const TracedImage* find(const TraceIndex& index, std::int64_t step) {
  const auto found = std::ranges::find(index.images, step, &TracedImage::step);
  return found == index.images.end() ? nullptr : &*found;
}

std::vector<Buffer> read_image(const fs::path& folder, const TraceIndex& index, const TracedImage& image,
                               UnitKind kind) {
  const fs::path path = folder / image.file.name;
  const FileEntry found = describe_file(path);
  if (found.bytes != image.file.bytes) {
    throw CorruptData(
        fmt::format("{} has {} bytes, expected {}", path.string(), found.bytes, image.file.bytes));
  }
  if (found.crc32c != image.file.crc32c) {
    throw CorruptData(
        fmt::format("{}: CRC32C is {:08x}, expected {:08x}", path.string(), found.crc32c, image.file.crc32c));
  }
  const SafetensorsReader reader(path);
  std::vector<Buffer> units;
  for (const TracedUnit& unit : index.units) {
    if (unit.kind != kind) continue;
    const TensorInfo& info = reader.info(unit.name);
    if (info.dtype != DType::kBF16 || info.bytes() != unit.words * size_of(DType::kBF16)) {
      throw CorruptData(fmt::format("{}: {} is {} [{}], expected bf16 [{}]", path.string(), unit.name,
                                    moesaic::name_of(info.dtype), fmt::join(info.shape, ","), unit.words));
    }
    reader.read(unit.name, 0, units.emplace_back(info.bytes()).span());
  }
  return units;
}

}  // namespace

std::string image_name(std::int64_t step) { return fmt::format("step-{:06}.safetensors", step); }

std::vector<TracedUnit> traced_units(std::span<const UnitSpec> specs) {
  std::vector<TracedUnit> units;
  for (const UnitSpec& spec : specs) {
    if (spec.keep_fp32) continue;
    TracedUnit unit{spec.name, spec.kind, 0, spec.num_experts, {}};
    for (const TensorSpec& tensor : spec.tensors) {
      unit.words += tensor.numel();
      // Every expert has the same.
      if (spec.num_experts == 0 || std::ssize(unit.matrices) < spec.per_expert()) {
        unit.matrices.push_back(tensor.shape);
      }
    }
    units.push_back(std::move(unit));
  }
  return units;
}

bool holds_trace(const fs::path& folder) {
  std::error_code absent;
  return fs::exists(folder / kIndexName, absent);
}

TraceIndex read_trace_index(const fs::path& folder) {
  const fs::path path = folder / kIndexName;
  try {
    return parse(parse_json(read_text(path), path.string(), kMaxDepth));
  } catch (const nlohmann::json::exception& error) {
    throw CorruptData(fmt::format("{} is no index of a weight trace: {}", path.string(), error.what()));
  } catch (const CorruptData& error) {
    const std::string what = error.what();
    if (what.starts_with(path.string())) throw;
    throw CorruptData(fmt::format("{}: {}", path.string(), what));
  }
}

void write_trace_index(const fs::path& folder, const TraceIndex& index) {
  Json units = Json::array(), images = Json::array();
  for (const TracedUnit& unit : index.units) {
    units.push_back({{"name", unit.name},
                     {"kind", name_of(unit.kind)},
                     {"words", unit.words},
                     {"experts", unit.experts},
                     {"matrices", unit.matrices}});
  }
  for (const TracedImage& image : index.images) {
    images.push_back({{"step", image.step},
                      {"learning_rate", image.learning_rate},
                      {"bytes", image.file.bytes},
                      {"crc32c", image.file.crc32c}});
  }
  const Json json = {{"format", kFormat},
                     {"dtype", moesaic::name_of(DType::kBF16)},
                     {"compute_dtype", index.compute_dtype},
                     {"config", index.config_toml},
                     {"units", units},
                     {"images", images}};
  const fs::path path = folder / kIndexName, renewed = path.string() + ".tmp";
  write_text_synced(renewed, json.dump(1) + "\n");
  rename_path(renewed, path);
  sync_directory(folder);
}

std::vector<codec::UnitStep> unit_steps(const TracedStep& step) {
  const auto words = [](const Buffer& unit) {
    return std::span(unit.as<std::uint16_t>(), static_cast<std::size_t>(unit.bytes()) / 2);
  };
  std::vector<codec::UnitStep> units;
  for (std::size_t u = 0; u < step.current.size(); ++u) {
    codec::UnitStep unit{{}, words(step.reference[u]), words(step.current[u])};
    if (!step.before.empty()) unit.before = words(step.before[u]);
    units.push_back(unit);
  }
  return units;
}

std::vector<std::int64_t> steps_with_reference(const TraceIndex& index) {
  std::vector<std::int64_t> steps;
  for (const TracedImage& image : index.images) {
    if (find(index, image.step - 1) != nullptr) steps.push_back(image.step);
  }
  if (steps.empty()) {
    std::vector<std::int64_t> recorded;
    for (const TracedImage& image : index.images) recorded.push_back(image.step);
    throw InvalidArgument(
        fmt::format("the trace has images of steps [{}], expected at least two consecutive ones",
                    fmt::join(recorded, ", ")));
  }
  return steps;
}

TracedStep read_traced_step(const fs::path& folder, const TraceIndex& index, std::int64_t step,
                            UnitKind kind) {
  const TracedImage *current = find(index, step), *reference = find(index, step - 1),
                    *before = find(index, step - 2);
  require(current != nullptr && reference != nullptr, "the trace has no images of steps {} and {}", step - 1,
          step);
  TracedStep traced{step, current->learning_rate, {}, {}, {}};
  if (before != nullptr) traced.before = read_image(folder, index, *before, kind);
  traced.reference = read_image(folder, index, *reference, kind);
  traced.current = read_image(folder, index, *current, kind);
  return traced;
}

}  // namespace moesaic
