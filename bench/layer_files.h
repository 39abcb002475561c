// layer_files.h: tensors in files, between this program, its jobs and peers in other runtimes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "bench/moe_layer_case.h"

namespace moesaic::bench {

void write_tensors(const std::filesystem::path& path,
                   const std::vector<std::pair<std::string, at::Tensor>>& tensors);
// Of the file those of the names it has; the others are undefined. In the order of `names`.
std::vector<at::Tensor> read_tensors(const std::filesystem::path& path,
                                     const std::vector<std::string>& names);

// inputs.safetensors in `folder`: x, router, gradient, w_in, w_out.
void write_inputs(const LayerInputs& inputs, const std::filesystem::path& folder);
// y, d_x, d_router, d_w_in, d_w_out.
void write_results(const LayerResults& results, const std::filesystem::path& path);
LayerResults read_results(const std::filesystem::path& path);

}  // namespace moesaic::bench
