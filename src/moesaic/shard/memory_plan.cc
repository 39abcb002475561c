#include "moesaic/shard/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "moesaic/nn/stage_spec.h"
#include "moesaic/routing/gate_form.h"
#include "moesaic/shard/unit_layout.h"

namespace moesaic {
namespace {

// Values kept for backward per token: see the layers in nn. Masks, row indices and the like are left out.
std::int64_t activation_values(const ModelConfig& config, int layer) {
  const std::int64_t d = config.d_model;
  std::int64_t values = 10 * d;  // input, two norms, q, k, v and their norms, attention output, residual
  const std::int64_t columns = config.activation == Activation::kSwiGlu ? 2 : 1;
  if (layer < config.num_dense_layers) return values + (columns + 1) * config.d_ff;
  const MoeConfig& moe = moe_of(config, layer);
  values += moe.gate.num_experts * 3;  // logits, probabilities, scores
  // Permuted rows in and out, hidden; as many as a token may have.
  values += max_choices(moe.gate) * (2 * d + (columns + 1) * moe.d_expert);
  values += (columns + 1) * moe.num_shared_experts * moe.d_shared;
  return values;
}

// Whether rows that a layer exchanges may travel in more than one chunk (choose_chunks): left open, only
// where a group spans nodes.
bool may_exchange_in_chunks(const ParallelOptions& options, const Topology& topology,
                            const Placement& placement) {
  const int places = placement.exchange_size();
  if (!options.overlap || places == 1) return false;
  if (options.exchange_chunks) return *options.exchange_chunks > 1;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    if (topology.node_of(rank) != topology.node_of(placement.group_of(rank) * places)) return true;
  }
  return false;
}

// Values per token that a backward pass in chunks keeps beside those, from its chunks to its weights'
// gradients: the activations of each slot, and the gradient before them.
std::int64_t chunked_backward_values(const ModelConfig& config, int layer) {
  if (layer < config.num_dense_layers) return 0;
  const MoeConfig& moe = moe_of(config, layer);
  const std::int64_t columns = config.activation == Activation::kSwiGlu ? 2 : 1;
  return max_choices(moe.gate) * (columns + 1) * moe.d_expert;
}

// Words of a unit of which `rank` keeps what was sent last (coded_gather.h).
std::int64_t referenced_words(const UnitLayout& layout, ReferenceMode mode, const Topology& topology,
                              int rank, bool own_block_only) {
  const int node = topology.node_of(rank);
  std::int64_t words = 0;
  for (int owner = 0; owner < topology.world_size(); ++owner) {
    if (own_block_only && layout.block_of(owner) != layout.block_of(rank)) continue;
    const bool carried = topology.node_of(owner) != node && topology.counterpart(owner, node) == rank;
    if (mode == ReferenceMode::kRank || owner == rank || carried) words += layout.part_of(owner).size();
  }
  return words;
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const ParallelOptions& options, const Topology& topology,
                       std::int64_t moments_per_element, std::int64_t tokens_per_rank,
                       const std::vector<bool>& recomputed) {
  const int world_size = topology.world_size();
  const Placement placement =
      Placement::contiguous(static_cast<int>(config.moe.gate.num_experts), world_size, options.exchange_size);
  const std::vector<UnitSpec> specs = unit_specs(config);

  MemoryPlan plan;
  std::vector<std::int64_t> shard_elements(static_cast<std::size_t>(world_size)),
      shard_image(shard_elements.size()), reference_words(shard_elements.size());
  std::vector<std::int64_t> gathered_bytes,
      gradient_bytes;  // of each unit; resident ones need not be gathered
  for (const UnitSpec& spec : specs) {
    const UnitLayout layout(spec, placement);
    std::int64_t numel = 0;
    for (const TensorSpec& tensor : spec.tensors) numel += tensor.numel();
    plan.parameters += numel;
    plan.active_parameters += spec.kind == UnitKind::kExpert
                                  ? numel / spec.num_experts * moe_of(config, spec.layer).gate.top_k
                                  : numel;

    const DType dtype = spec.keep_fp32 ? DType::kF32 : options.dtype;
    for (int rank = 0; rank < world_size; ++rank) {
      const std::int64_t elements = layout.part_of(rank).size();
      shard_elements[static_cast<std::size_t>(rank)] += elements;
      if (dtype != DType::kF32) shard_image[static_cast<std::size_t>(rank)] += elements * size_of(dtype);
    }
    const bool exchanged = spec.kind == UnitKind::kExpert &&
                           options.experts[static_cast<std::size_t>(spec.layer)] == ExpertsMode::kExchange;
    const int group = exchanged ? placement.num_groups() : world_size;
    std::int64_t elements = layout.total_elements();
    if (exchanged) {
      elements = 0;
      for (int block = 0; block < layout.num_blocks(); ++block) {
        elements = std::max(elements, layout.block_elements(block));
      }
    }
    if (group > 1 && dtype == DType::kBF16) {
      for (int rank = 0; rank < world_size; ++rank) {
        reference_words[static_cast<std::size_t>(rank)] +=
            referenced_words(layout, options.reference, topology, rank, exchanged);
      }
    }
    gathered_bytes.push_back(group == 1 ? 0 : elements * size_of(dtype));
    gradient_bytes.push_back(elements * size_of(dtype));
  }
  const std::int64_t most = *std::ranges::max_element(shard_elements);
  plan.masters = most * 4;
  plan.images = *std::ranges::max_element(shard_image);
  plan.gradients = most * 8;
  const bool coded = options.reference == ReferenceMode::kRank || topology.num_nodes() > 1;
  const codec::Method method = coded ? options.codec.value_or(codec::Method::kMomentum) : codec::Method::kRaw;
  plan.references =
      static_cast<std::int64_t>(static_cast<double>(*std::ranges::max_element(reference_words)) *
                                codec::bytes_per_word(codec::needs(method)));
  plan.moments = most * 4 * moments_per_element;

  // Backward holds the weights of a stage and of the one prefetched, and the gradients of a stage and of the
  // one before, on their way to the owners.
  std::int64_t previous = 0, previous_gradients = 0;
  for (const StageSpec& stage : stage_specs(config)) {
    std::int64_t bytes = 0, gradients = 0;
    for (const int unit : stage.units) {
      bytes += gathered_bytes[static_cast<std::size_t>(unit)];
      gradients += gradient_bytes[static_cast<std::size_t>(unit)];
    }
    plan.gathered = std::max(plan.gathered, previous + bytes + previous_gradients + gradients);
    previous = bytes;
    previous_gradients = gradients;
  }

  // What layers keep until their backward, and the most that exists beside it: first the logits and their
  // gradient, later one layer's recomputed values and what its backward pass in chunks keeps.
  const bool in_chunks = may_exchange_in_chunks(options, topology, placement);
  std::int64_t kept = 0, beside = config.vocab_size * 2;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::int64_t values = activation_values(config, layer);
    const bool again = !recomputed.empty() && recomputed.at(static_cast<std::size_t>(layer));
    kept += again ? config.d_model : values;
    const bool exchanged = options.experts[static_cast<std::size_t>(layer)] == ExpertsMode::kExchange;
    beside = std::max(
        beside, (again ? values : 0) + (in_chunks && exchanged ? chunked_backward_values(config, layer) : 0));
  }
  plan.activations = tokens_per_rank * (kept + beside) * size_of(options.dtype);
  return plan;
}

std::string describe(const MemoryPlan& plan, int world_size) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); };
  std::string text =
      fmt::format("{:.2f}M parameters, {:.2f}M active per token, {} rank{}; MiB on the fullest rank:\n",
                  static_cast<double>(plan.parameters) / 1e6,
                  static_cast<double>(plan.active_parameters) / 1e6, world_size, world_size == 1 ? "" : "s");
  const std::vector<std::pair<const char*, std::int64_t>> rows = {
      {"fp32 masters", plan.masters},
      {"images in the compute dtype", plan.images},
      {"gradient shards", plan.gradients},
      {"optimizer moments", plan.moments},
      {"references of coded gathers", plan.references},
      {"gathered units in flight", plan.gathered},
      {"activations of a micro-step (estimate)", plan.activations},
      {"total", plan.total()}};
  for (const auto& [name, bytes] : rows) text += fmt::format("  {:<40} {:>12.1f}\n", name, mib(bytes));
  return text;
}

}  // namespace moesaic
