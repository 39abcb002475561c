#include "bench/moe_layer_peers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstddef>
#include <span>

#include "moesaic/core/error.h"
#include "moesaic/interop/safetensors.h"
#include "moesaic/nn/checks.h"

namespace moesaic::bench {
namespace {

at::Tensor read_tensor(const SafetensorsReader& file, const std::string& name) {
  const TensorInfo& info = file.info(name);
  at::Tensor tensor = at::empty(info.shape, scalar_type(info.dtype));
  file.read(name, 0, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  return tensor;
}

}  // namespace

void write_inputs(const LayerInputs& inputs, const std::filesystem::path& folder) {
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {{"x", inputs.x},
                                                                   {"router", inputs.router},
                                                                   {"gradient", inputs.gradient},
                                                                   {"w_in", inputs.weights.in},
                                                                   {"w_out", inputs.weights.out}};
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({.name = name, .dtype = compute_dtype(name, tensor), .shape = tensor.sizes().vec()});
  }
  SafetensorsWriter writer(folder / "inputs.safetensors", infos);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, 0, {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  }
  writer.finish();
}

bool LayerPeer::has(const LayerCase& layer) const {
  if (variant_ == "deepspeed") return true;
  // The others have SwiGLU experts without capacity; torchtitan's compute in bf16 whatever they are given.
  return layer.shape.gated && (variant_ != "torchtitan" || layer.dtype == at::kBFloat16);
}

void LayerPeer::start() {
  if (!why_not_.empty()) throw Error(why_not_);
  std::vector<std::string> environment = kKeepFreedMemory;
  environment.push_back("DS_ACCELERATOR=cpu");
  try {
    auto process = std::make_unique<ChildProcess>(
        variant_,
        std::vector<std::string>{python_, MOESAIC_SOURCE_DIR "/bench/peers/moe_layers.py", variant_},
        environment);
    process->receive();
    process_ = std::move(process);
  } catch (const Error& error) {
    why_not_ = error.what();
    if (!variant_.starts_with("transformers")) {
      why_not_ += fmt::format("; bench/peers/setup.sh {} installs it", variant_);
    }
    throw Error(why_not_);
  }
}

nlohmann::json LayerPeer::ask(const nlohmann::json& request) {
  try {
    return process_->ask(request.dump());
  } catch (const Error&) {
    process_.reset();
    throw;
  }
}

std::string LayerPeer::load(const LayerCase& layer, const LayerInputs& inputs,
                            const std::filesystem::path& folder) {
  if (process_ == nullptr) start();
  return ask({{"action", "load"},
              {"folder", folder.string()},
              {"top_k", layer.shape.top_k},
              {"gated", layer.shape.gated},
              {"capacity_factor", layer.shape.capacity_factor},
              {"backward", layer.backward},
              {"threads", layer.threads},
              {"sets", inputs.num_sets}})
      .at("note");
}

LayerResults LayerPeer::results() {
  const SafetensorsReader file(ask({{"action", "results"}}).at("file").get<std::string>());
  const auto read = [&](const char* name) {
    return file.contains(name) ? read_tensor(file, name) : at::Tensor();
  };
  return {read("y"), read("d_x"), read("d_router"), read("d_w_in"), read("d_w_out")};
}

double LayerPeer::us_per_call(std::int64_t calls) {
  return ask({{"action", "run"}, {"calls", calls}}).at("us").get<double>() / static_cast<double>(calls);
}

void LayerPeer::unload() { ask({{"action", "unload"}}); }

std::vector<LayerPeer> layer_peers(const std::string& python, const std::string& peers_python) {
  std::vector<LayerPeer> peers;
  peers.emplace_back("deepspeed", peers_python);
  peers.emplace_back("transformers_eager", python);
  peers.emplace_back("transformers_grouped_mm", python);
  peers.emplace_back("torchtitan", peers_python);
  return peers;
}

}  // namespace moesaic::bench
