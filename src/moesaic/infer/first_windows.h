// first_windows.h: held-out text for files that other programs read (dump_logits.h, dump_routing.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "moesaic/train/data.h"

namespace moesaic {

// Tokens [B,S] int64 of the first held-out windows, at most `most`; B is 0 where `reads` is false.
at::Tensor first_windows(const Dataset& dataset, std::int64_t most, bool reads);

// Of a contiguous tensor.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace moesaic
