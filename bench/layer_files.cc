#include "bench/layer_files.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <span>

#include "moesaic/interop/safetensors.h"
#include "moesaic/nn/checks.h"

namespace moesaic::bench {

void write_tensors(const std::filesystem::path& path,
                   const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({.name = name, .dtype = compute_dtype(name, tensor), .shape = tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, infos);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.contiguous();
    writer.write(name, 0, {static_cast<const std::byte*>(whole.data_ptr()), whole.nbytes()});
  }
  writer.finish();
}

std::vector<at::Tensor> read_tensors(const std::filesystem::path& path,
                                     const std::vector<std::string>& names) {
  const SafetensorsReader file(path);
  std::vector<at::Tensor> tensors;
  for (const std::string& name : names) {
    tensors.emplace_back();
    if (!file.contains(name)) continue;
    const TensorInfo& info = file.info(name);
    tensors.back() = at::empty(info.shape, scalar_type(info.dtype));
    file.read(name, 0, {static_cast<std::byte*>(tensors.back().data_ptr()), tensors.back().nbytes()});
  }
  return tensors;
}

void write_inputs(const LayerInputs& inputs, const std::filesystem::path& folder) {
  write_tensors(folder / "inputs.safetensors", {{"x", inputs.x},
                                                {"router", inputs.router},
                                                {"gradient", inputs.gradient},
                                                {"w_in", inputs.weights.in},
                                                {"w_out", inputs.weights.out}});
}

void write_results(const LayerResults& results, const std::filesystem::path& path) {
  write_tensors(path, {{"y", results.y},
                       {"d_x", results.d_x},
                       {"d_router", results.d_router},
                       {"d_w_in", results.d_w_in},
                       {"d_w_out", results.d_w_out}});
}

LayerResults read_results(const std::filesystem::path& path) {
  const std::vector<at::Tensor> all = read_tensors(path, {"y", "d_x", "d_router", "d_w_in", "d_w_out"});
  return {all[0], all[1], all[2], all[3], all[4]};
}

}  // namespace moesaic::bench
