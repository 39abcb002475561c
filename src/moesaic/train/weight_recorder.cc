#include "moesaic/train/weight_recorder.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/interop/safetensors.h"
#include "moesaic/kernels/convert.h"
#include "moesaic/train/agree.h"
#include "moesaic/train/work_together.h"

namespace moesaic {
namespace {

constexpr std::int64_t kWordBytes = 2;

std::vector<UnitSpec> specs_of(ShardedModel& model) {
  std::vector<UnitSpec> specs;
  for (const auto& unit : model.units()) specs.push_back(unit->layout().spec());
  return specs;
}

// The unit's tensors back to back, in bf16, on rank 0; nothing elsewhere.
Buffer image_on_rank_0(Communicator& world, ShardedUnit& unit) {
  const UnitLayout& layout = unit.layout();
  Buffer mine(unit.shard_elements() * kWordBytes);
  kernels::convert(DType::kF32, unit.master().data(), DType::kBF16, mine.data(), unit.shard_elements());
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> sent(size), received(size);
  sent[0] = mine.bytes();
  std::int64_t total = 0;
  for (int rank = 0; world.rank() == 0 && rank < world.size(); ++rank) {
    total += received[static_cast<std::size_t>(rank)] = layout.part_of(rank).size() * kWordBytes;
  }
  Buffer shards(total);
  all_to_all_v(world, mine.span(), sent, shards.span(), received);
  if (world.rank() != 0) return {};

  std::vector<std::int64_t> begin;  // of each tensor in the image
  std::int64_t words = 0;
  for (const TensorSpec& tensor : layout.spec().tensors) {
    begin.push_back(words);
    words += tensor.numel();
  }
  Buffer image(words * kWordBytes);
  const std::byte* shard = shards.data();
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const Segment& segment : layout.shard_segments(rank)) {
      const auto tensor = static_cast<std::size_t>(segment.tensor - layout.spec().tensors.data());
      std::memcpy(image.data() + (begin[tensor] + segment.tensor_begin) * kWordBytes,
                  shard + segment.offset * kWordBytes, static_cast<std::size_t>(segment.count * kWordBytes));
    }
    shard += received[static_cast<std::size_t>(rank)];
  }
  return image;
}

void insert(std::vector<TracedImage>& images, TracedImage image) {
  std::erase_if(images, [&](const TracedImage& old) { return old.step == image.step; });
  images.insert(std::ranges::upper_bound(images, image.step, {}, &TracedImage::step), std::move(image));
}

}  // namespace

WeightRecorder::WeightRecorder(Trainer& trainer, std::filesystem::path folder,
                               std::vector<std::int64_t> steps)
    : trainer_(&trainer), folder_(std::move(folder)), steps_(std::move(steps)) {
  Communicator& world = trainer.world();
  Failure failure;
  if (world.rank() == 0) {
    index_.config_toml = to_toml(trainer.config());
    index_.compute_dtype = name_of(trainer.config().train.dtype);
    index_.units = traced_units(specs_of(trainer.model()));
    attempt(failure, [&] {
      std::filesystem::create_directories(folder_);
      if (!holds_trace(folder_)) return;
      TraceIndex there = read_trace_index(folder_);
      require(there.units == index_.units, "{} holds a weight trace of another model", folder_.string());
      index_.images = std::move(there.images);
    });
  }
  agree(world, failure);
}

void WeightRecorder::before_step(std::int64_t step) {
  if (std::ranges::find(steps_, step) != steps_.end()) record(step);
}

void WeightRecorder::record(std::int64_t step) {
  Communicator& world = trainer_->world();
  const Span span(world.tracer(), {.phase = Phase::kSave, .name = "record weights"});
  const std::filesystem::path path = folder_ / image_name(step), staged = path.string() + ".tmp";
  Failure failure;
  std::unique_ptr<SafetensorsWriter> writer;
  // Rank 0's part, while the others know that it lives.
  const auto on_rank_0 = [&](const std::function<void()>& work) {
    work_together(world, [&] {
      if (world.rank() == 0) attempt(failure, work);
    });
  };
  on_rank_0([&] {
    std::vector<TensorInfo> tensors;
    for (const TracedUnit& unit : index_.units) tensors.push_back({unit.name, DType::kBF16, {unit.words}});
    writer = std::make_unique<SafetensorsWriter>(staged, std::move(tensors));
  });
  for (const auto& unit : trainer_->model().units()) {
    if (unit->layout().spec().keep_fp32) continue;
    const Buffer image = image_on_rank_0(world, *unit);
    on_rank_0([&] { writer->write(unit->layout().spec().name, 0, image.span()); });
  }
  on_rank_0([&] {
    writer->finish();
    TracedImage image{
        step,
        step > 1 ? learning_rate_at(trainer_->config().optim, step - 2, trainer_->config().train.steps) : 0.0,
        describe_file(staged)};
    image.file.name = path.filename().string();
    rename_path(staged, path);
    insert(index_.images, std::move(image));
    write_trace_index(folder_, index_);
  });
  writer.reset();  // of a file that is not whole: removes it
  agree(world, failure);
}

}  // namespace moesaic
