// parallel.h: how a model is spread over ranks. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "moesaic/codec/gradient.h"
#include "moesaic/codec/method.h"
#include "moesaic/core/dtype.h"
#include "moesaic/cost/reference_mode.h"
#include "moesaic/exchange/route.h"

namespace moesaic {

// How a layer brings tokens and expert weights together.
enum class ExpertsMode { kGather, kExchange };

struct ParallelOptions {
  std::vector<ExpertsMode> experts;           // one per layer (dense layers ignore theirs)
  int exchange_size = 0;                      // ranks per exchange group; 0 = automatic (placement.h)
  DType dtype = DType::kF32;                  // of compute and transport: kF32 or kBF16
  std::optional<Route> route = Route::kFlat;  // of exchanged tokens; none: see DispatchOptions
  // That they travel in; none: see DispatchOptions. Where more than one is asked for, experts multiply by
  // panels on every CPU.
  std::optional<std::int64_t> exchange_chunks = 1;
  bool fp32_sums = false;  // their experts' sums, and those of gradients, travel home in fp32, not in `dtype`
  // Gather ahead, reduce behind, and move tokens while stages compute; else wait, and exchange in one chunk.
  // The same bits.
  bool overlap = true;
  // How bf16 units are gathered; fp32 ones travel raw. Not set: each as it is fastest (gather_choices.h).
  std::optional<codec::Method> codec = codec::Method::kRaw;
  ReferenceMode reference = ReferenceMode::kNode;
  // How gradients of bf16 units travel between nodes; fp32 ones travel as they are. Not set: each as it is
  // fastest (reduce_choices.h).
  std::optional<codec::GradientWire> gradients = codec::GradientWire::kBf16;
};

}  // namespace moesaic
