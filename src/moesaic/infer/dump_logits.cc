#include "moesaic/infer/dump_logits.h"

#include <algorithm>
#include <numeric>

#include "moesaic/interop/safetensors.h"
#include "moesaic/train/tensors.h"
#include "moesaic/train/walk.h"

namespace moesaic {

void dump_logits(ShardedModel& model, const GateStates& gates, const Dataset& dataset,
                 const std::filesystem::path& file) {
  constexpr std::int64_t kMost = 8;
  const bool reads = model.world().rank() == 0;
  const std::int64_t sequences = std::min(kMost, dataset.num_windows(Split::kHeldOut));
  std::vector<std::int64_t> windows(static_cast<std::size_t>(reads ? sequences : 0));
  std::iota(windows.begin(), windows.end(), 0);
  const at::Tensor tokens = tokens_of(dataset.read(Split::kHeldOut, windows), dataset.seq_len());

  StepContext context = base_context(model, gates);
  const at::Tensor logits = forward_logits(model, tokens, context).to(at::kFloat).contiguous();
  if (!reads) return;

  const std::int64_t vocab = model.config().vocab_size;
  SafetensorsWriter writer(file, {{"tokens", DType::kI64, {sequences, dataset.seq_len()}},
                                  {"logits", DType::kF32, {sequences, dataset.seq_len(), vocab}}});
  const auto bytes_of = [](const at::Tensor& tensor) {
    return std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  writer.write("tokens", 0, bytes_of(tokens));
  writer.write("logits", 0, bytes_of(logits));
  writer.finish();
}

}  // namespace moesaic
