#include "moesaic/infer/dump_logits.h"

#include "moesaic/infer/first_windows.h"
#include "moesaic/interop/safetensors.h"
#include "moesaic/train/tensors.h"
#include "moesaic/train/walk.h"

namespace moesaic {

void dump_logits(ShardedModel& model, const GateStates& gates, const Dataset& dataset,
                 const std::filesystem::path& file) {
  constexpr std::int64_t kMost = 8;
  const bool writes = model.world().rank() == 0;
  const at::Tensor tokens = first_windows(dataset, kMost, writes);

  StepContext context = base_context(model, gates);
  const at::Tensor logits = forward_logits(model, tokens, context).to(at::kFloat).contiguous();
  if (!writes) return;

  const std::int64_t sequences = tokens.size(0), vocab = model.config().vocab_size;
  SafetensorsWriter writer(file, {{"tokens", DType::kI64, {sequences, dataset.seq_len()}},
                                  {"logits", DType::kF32, {sequences, dataset.seq_len(), vocab}}});
  writer.write("tokens", 0, bytes_of(tokens));
  writer.write("logits", 0, bytes_of(logits));
  writer.finish();
}

}  // namespace moesaic
