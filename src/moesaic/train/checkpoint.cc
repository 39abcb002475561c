#include "moesaic/train/checkpoint.h"

#include <fmt/ranges.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/interop/safetensors.h"
#include "moesaic/interop/safetensors_set.h"
#include "moesaic/shard/collect.h"
#include "moesaic/train/agree.h"
#include "moesaic/train/checkpoint_dir.h"
#include "moesaic/train/checkpoint_files.h"
#include "moesaic/train/work_together.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

// One kind of state (masters, or a moment): its tensors are named prefix + global name.
struct State {
  std::string prefix;
  std::function<std::span<float>(std::size_t unit)> shard;
};

std::vector<State> moment_states(Optimizer& optimizer) {
  std::vector<State> states;
  for (std::size_t m = 0; m < optimizer.moment_names().size(); ++m) {
    states.push_back({optimizer.moment_names()[m] + ".",
                      [&optimizer, m](std::size_t unit) { return optimizer.moment(m, unit); }});
  }
  return states;
}

State master_state(ShardedModel& model) {
  return {"", [&model](std::size_t unit) { return model.units()[unit]->master(); }};
}

// Tensor name -> file, for every tensor of `states` (and the gates' states, which rank 0 writes).
std::map<std::string, std::string> weight_map(ShardedModel& model, const std::string& kind,
                                              const std::vector<State>& states, const GateStates& gates) {
  const int world_size = model.world().size();
  std::map<std::string, std::string> files;
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    const UnitLayout& layout = model.units()[u]->layout();
    for (int block = 0; block < layout.num_blocks(); ++block) {
      const std::string file =
          tensor_file_name(kind, writer_of(layout, static_cast<int>(u), block), world_size);
      for (const Segment& segment : layout.block_segments(block)) {
        for (const State& state : states) files[state.prefix + segment.tensor->name] = file;
      }
    }
  }
  for (std::size_t layer = 0; layer < gates.layers.size(); ++layer) {
    if (!gates.layers[layer].empty())
      files[gate_state_name(model.config(), layer)] = tensor_file_name(kind, 0, world_size);
  }
  return files;
}

// This rank's file of one kind. The writer exists only while nothing has failed; collectives go on
// regardless.
FileEntry write_states(ShardedModel& model, const std::filesystem::path& folder, const std::string& kind,
                       const std::vector<State>& states, const GateStates& gates, Failure& failure) {
  Communicator& world = model.world();
  const Span span(world.tracer(), {.phase = Phase::kSave, .name = kind});
  const int rank = world.rank();
  std::vector<TensorInfo> infos;
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    const UnitLayout& layout = model.units()[u]->layout();
    const auto block = block_written_by(layout, static_cast<int>(u), rank);
    if (!block) continue;
    for (const Segment& segment : layout.block_segments(*block)) {
      for (const State& state : states) {
        infos.push_back({state.prefix + segment.tensor->name, DType::kF32, segment.tensor->shape});
      }
    }
  }
  for (std::size_t layer = 0; rank == 0 && layer < gates.layers.size(); ++layer) {
    if (gates.layers[layer].empty()) continue;
    infos.push_back({gate_state_name(model.config(), layer),
                     DType::kF32,
                     {static_cast<std::int64_t>(gates.layers[layer].size())}});
  }

  const std::filesystem::path path = folder / tensor_file_name(kind, rank, world.size());
  std::unique_ptr<SafetensorsWriter> writer;
  work_together(
      world, [&] { attempt(failure, [&] { writer = std::make_unique<SafetensorsWriter>(path, infos); }); });
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    const UnitLayout& layout = model.units()[u]->layout();
    for (const State& state : states) {
      const Buffer block = collect_block(world, layout, static_cast<int>(u), state.shard(u));
      const auto write = [&] {
        const Span writing(world.tracer(), {.phase = Phase::kSave, .name = "write", .lane = kWorkLane});
        for (const Segment& segment :
             layout.block_segments(*block_written_by(layout, static_cast<int>(u), rank))) {
          writer->write(state.prefix + segment.tensor->name, 0,
                        block.span().subspan(static_cast<std::size_t>(segment.offset) * sizeof(float),
                                             static_cast<std::size_t>(segment.count) * sizeof(float)));
        }
      };
      work_together(world, [&] {
        if (block.bytes() > 0) attempt(failure, write);
      });
    }
  }
  FileEntry entry;
  const auto finish = [&] {
    for (std::size_t layer = 0; rank == 0 && layer < gates.layers.size(); ++layer) {
      if (!gates.layers[layer].empty())
        writer->write(gate_state_name(model.config(), layer), 0,
                      std::as_bytes(std::span(gates.layers[layer])));
    }
    writer->finish();
    const Span syncing(world.tracer(), {.phase = Phase::kSave, .name = "sync", .lane = kWorkLane});
    entry = describe_file(path);
  };
  work_together(world, [&] { attempt(failure, finish); });
  return entry;
}

FileEntry write_index(const std::filesystem::path& folder, const std::string& kind,
                      const std::map<std::string, std::string>& files) {
  const std::filesystem::path path = folder / index_file_name(kind);
  write_text_synced(path, Json{{"metadata", Json::object()}, {"weight_map", files}}.dump(1) + "\n");
  return describe_file(path);
}

// ---- loading ----

void check_tensor(const SafetensorsSet& set, const std::string& name,
                  const std::vector<std::int64_t>& shape) {
  require(set.contains(name), "the checkpoint has no tensor {}; is it of another model or optimizer?", name);
  const TensorInfo& info = set.info(name);
  require(info.dtype == DType::kF32 && info.shape == shape,
          "tensor {} of the checkpoint is {} [{}], expected fp32 [{}]", name, name_of(info.dtype),
          fmt::join(info.shape, ","), fmt::join(shape, ","));
}

// Every tensor the states and gates need is there in its shape, and nothing else is.
void check_all(const SafetensorsSet& set, ShardedModel& model, const std::vector<State>& states,
               const GateStates& gates) {
  std::set<std::string> expected;
  const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    check_tensor(set, name, shape);
    expected.insert(name);
  };
  for (const auto& unit : model.units()) {
    for (const TensorSpec& tensor : unit->layout().spec().tensors) {
      for (const State& state : states) expect(state.prefix + tensor.name, tensor.shape);
    }
  }
  for (std::size_t layer = 0; layer < gates.layers.size(); ++layer) {
    if (!gates.layers[layer].empty())
      expect(gate_state_name(model.config(), layer), {static_cast<std::int64_t>(gates.layers[layer].size())});
  }
  for (const std::string& name : set.names()) {
    require(expected.contains(name), "tensor {} of the checkpoint has no place in this model", name);
  }
}

void read_states(const SafetensorsSet& set, ShardedModel& model, const std::vector<State>& states) {
  for (std::size_t u = 0; u < model.units().size(); ++u) {
    for (const Segment& segment : model.units()[u]->layout().shard_segments(model.world().rank())) {
      for (const State& state : states) {
        const std::span<float> target = state.shard(u).subspan(static_cast<std::size_t>(segment.offset),
                                                               static_cast<std::size_t>(segment.count));
        set.read(state.prefix + segment.tensor->name, segment.tensor_begin * std::int64_t{sizeof(float)},
                 std::as_writable_bytes(target));
      }
    }
  }
}

void read_gates(const SafetensorsSet& set, const ShardedModel& model, GateStates& gates) {
  for (std::size_t layer = 0; layer < gates.layers.size(); ++layer) {
    if (!gates.layers[layer].empty())
      set.read(gate_state_name(model.config(), layer), 0,
               std::as_writable_bytes(std::span(gates.layers[layer])));
  }
}

// The manifest of what all ranks have written into `folder`, and the indices over it, which this writes.
CheckpointManifest describe(Trainer& trainer, const Trainer::Position& position,
                            const std::filesystem::path& folder,
                            const std::vector<std::string>& entries_by_rank) {
  ShardedModel& model = trainer.model();
  CheckpointManifest manifest;
  manifest.step = position.steps_done;
  manifest.next_sample = position.next_sample;
  manifest.config_toml = to_toml(trainer.config());
  manifest.placement = placement_to_json(model.placement());
  manifest.extra =
      Json{{"optimizer_steps", position.optimizer_steps}, {"skipped_in_a_row", position.skipped_in_a_row}}
          .dump();
  for (const std::string& text : entries_by_rank) {
    for (FileEntry& entry : decode_entries(text)) manifest.files.push_back(std::move(entry));
  }
  manifest.files.push_back(write_index(
      folder, kModelFiles, weight_map(model, kModelFiles, {master_state(model)}, trainer.gates())));
  manifest.files.push_back(write_index(
      folder, kOptimizerFiles, weight_map(model, kOptimizerFiles, moment_states(trainer.optimizer()), {})));
  return manifest;
}

}  // namespace

std::filesystem::path save_checkpoint(Trainer& trainer, const std::filesystem::path& checkpoints) {
  Communicator& world = trainer.world();
  const Span span(world.tracer(), {.phase = Phase::kSave, .name = "checkpoint"});
  ShardedModel& model = trainer.model();
  const Trainer::Position position = trainer.position();
  const std::filesystem::path folder = staging_folder(checkpoints, position.steps_done);
  const std::vector<State> masters = {master_state(model)}, moments = moment_states(trainer.optimizer());

  Failure failure;
  work_together(world, [&] {
    if (world.rank() == 0) attempt(failure, [&] { begin_checkpoint(checkpoints, position.steps_done); });
  });
  agree(world, failure);

  std::vector<FileEntry> entries;
  entries.push_back(write_states(model, folder, kModelFiles, masters, trainer.gates(), failure));
  entries.push_back(write_states(model, folder, kOptimizerFiles, moments, {}, failure));
  const std::vector<std::string> entries_by_rank = gather_texts(world, encode_entries(entries));
  try {
    agree(world, failure);
  } catch (const Error&) {  // rank 0 may be told of the end by a rank that threw first, as PeerLost
    if (world.rank() == 0) abandon_checkpoint(checkpoints, position.steps_done);
    throw;
  }

  work_together(world, [&] {
    if (world.rank() != 0) return;
    attempt(failure, [&] {
      commit_checkpoint(checkpoints, describe(trainer, position, folder, entries_by_rank),
                        trainer.config().checkpoint.keep_last, world.tracer());
    });
    if (!failure.empty()) abandon_checkpoint(checkpoints, position.steps_done);
  });
  agree(world, failure);
  return checkpoints / checkpoint_name(position.steps_done);
}

namespace {

// Every byte against its checksum, the files shared out over the ranks, before anything is read.
void verify_together(Communicator& world, const std::filesystem::path& checkpoint) {
  Failure failure;
  work_together(
      world, [&] { attempt(failure, [&] { verify_checkpoint(checkpoint, world.rank(), world.size()); }); });
  agree(world, failure);
}

// What was saved lies where its placement has it, and nowhere else.
void check_placement(const std::filesystem::path& checkpoint, const SafetensorsSet& set,
                     const std::string& kind, const ShardedModel& model, const std::vector<State>& states) {
  const Placement placement = saved_placement(
      read_manifest(checkpoint), (checkpoint / kManifestName).string(), model.placement().num_experts());
  std::vector<std::string> prefixes;
  for (const State& state : states) prefixes.push_back(state.prefix);
  check_owners(set, kind, unit_specs(model.config()), prefixes, placement);
}

void load_verified_parameters(ShardedModel& model, GateStates& gates,
                              const std::filesystem::path& checkpoint) {
  Failure failure;
  std::optional<SafetensorsSet> set;
  const std::vector<State> states = {master_state(model)};
  attempt(failure, [&] {
    set = SafetensorsSet::open(checkpoint / index_file_name(kModelFiles));
    check_all(*set, model, states, gates);
    check_placement(checkpoint, *set, kModelFiles, model, states);
  });
  agree(model.world(), failure);
  work_together(model.world(), [&] {
    read_states(*set, model, states);
    read_gates(*set, model, gates);
  });
  model.refresh_images();
}

Trainer::Position position_in(const CheckpointManifest& manifest) {
  try {
    const Json extra = Json::parse(manifest.extra);
    return {manifest.step, manifest.next_sample, extra.at("optimizer_steps").get<std::int64_t>(),
            extra.at("skipped_in_a_row").get<std::int64_t>()};
  } catch (const Json::exception& error) {
    throw CorruptData(
        fmt::format("the manifest's trainer state is not what this program writes: {}", error.what()));
  }
}

}  // namespace

void load_parameters(ShardedModel& model, GateStates& gates, const std::filesystem::path& checkpoint) {
  verify_together(model.world(), checkpoint);
  load_verified_parameters(model, gates, checkpoint);
  gates.step = read_manifest(checkpoint).step;
}

void load_checkpoint(Trainer& trainer, const std::filesystem::path& checkpoint) {
  Communicator& world = trainer.world();
  verify_together(world, checkpoint);
  const std::vector<State> moments = moment_states(trainer.optimizer());
  Failure failure;
  std::optional<SafetensorsSet> set;
  Trainer::Position position;
  attempt(failure, [&] {
    const CheckpointManifest manifest = read_manifest(checkpoint);
    position = position_in(manifest);
    require_same_run(parse_config(manifest.config_toml, (checkpoint / kManifestName).string(), checkpoint),
                     trainer.config());
    set = SafetensorsSet::open(checkpoint / index_file_name(kOptimizerFiles));
    check_all(*set, trainer.model(), moments, {});
    check_placement(checkpoint, *set, kOptimizerFiles, trainer.model(), moments);
  });
  agree(world, failure);
  load_verified_parameters(trainer.model(), trainer.gates(), checkpoint);
  work_together(world, [&] { read_states(*set, trainer.model(), moments); });
  trainer.restore(position);
}

}  // namespace moesaic
