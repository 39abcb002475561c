#include "moesaic/infer/dump_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "moesaic/infer/first_windows.h"
#include "moesaic/interop/safetensors.h"
#include "moesaic/nn/router.h"
#include "moesaic/train/tensors.h"
#include "moesaic/train/walk.h"

namespace moesaic {

void dump_routing(ShardedModel& model, const GateStates& gates, const Dataset& dataset,
                  std::int64_t most_tokens, const std::filesystem::path& file) {
  const bool writes = model.world().rank() == 0;
  const at::Tensor tokens =
      first_windows(dataset, std::max<std::int64_t>(1, most_tokens / dataset.seq_len()), writes);

  StepContext context = base_context(model, gates);
  context.keep_routing = true;
  forward_logits(model, tokens, context);
  if (!writes) return;

  struct Layer {
    std::string name;
    std::vector<std::int64_t> experts;
  };
  std::vector<Layer> layers;
  std::vector<TensorInfo> tensors = {{"tokens", DType::kI64, {tokens.size(0), dataset.seq_len()}}};
  for (std::size_t layer = 0; layer < context.kept_routing.size(); ++layer) {
    if (context.kept_routing[layer] == nullptr) continue;  // a dense one
    const RoutingPlan& plan = plan_of(*context.kept_routing[layer]);
    layers.push_back(
        {fmt::format("layers.{}.experts", layer), {plan.expert_ids.begin(), plan.expert_ids.end()}});
    tensors.push_back({layers.back().name, DType::kI64, {plan.num_tokens, plan.num_choices}});
  }
  SafetensorsWriter writer(file, tensors);
  writer.write("tokens", 0, bytes_of(tokens));
  for (const Layer& layer : layers) writer.write(layer.name, 0, std::as_bytes(std::span(layer.experts)));
  writer.finish();
}

}  // namespace moesaic
