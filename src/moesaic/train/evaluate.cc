#include "moesaic/train/evaluate.h"

#include <algorithm>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "moesaic/train/tensors.h"
#include "moesaic/train/walk.h"

namespace moesaic {
namespace {

// Sum of the loss over `windows`, all ranks together, `batch` windows at a time.
double summed_loss(ShardedModel& model, StepContext& context, const Dataset& dataset,
                   const std::vector<std::int64_t>& windows, std::int64_t batch) {
  Communicator& world = model.world();
  const auto count = static_cast<std::int64_t>(windows.size());
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += batch) {
    const std::int64_t sequences = std::min(batch, count - first);
    const RowRange rows = rows_of_rank(sequences, world.rank(), world.size());
    const Batch mine =
        dataset.read(Split::kHeldOut, std::span(windows).subspan(static_cast<std::size_t>(first + rows.first),
                                                                 static_cast<std::size_t>(rows.count)));
    context.first_token = rows.first * dataset.seq_len();
    context.step_targets = sequences * dataset.seq_len();
    const double share = evaluate_micro_step(model, tokens_of(mine, dataset.seq_len()),
                                             targets_of(mine, dataset.seq_len()), context);
    sum += share * static_cast<double>(context.step_targets);
  }
  all_reduce(world, std::span<double>(&sum, 1));
  return sum;
}

}  // namespace

std::vector<HeldOutLoss> evaluate_held_out(ShardedModel& model, const GateStates& gates,
                                           const Dataset& dataset, std::int64_t batch_tokens,
                                           std::int64_t max_tokens) {
  StepContext context = base_context(model, gates);
  const std::int64_t seq_len = dataset.seq_len();
  const std::int64_t batch = std::max<std::int64_t>(1, batch_tokens / seq_len);
  const std::int64_t most =
      max_tokens == 0 ? dataset.num_windows(Split::kHeldOut) : (max_tokens + seq_len - 1) / seq_len;
  std::vector<HeldOutLoss> losses;
  double total = 0;
  std::int64_t tokens = 0;
  for (const FileWindows& file : dataset.files(Split::kHeldOut)) {
    const std::int64_t used = std::min(most, file.count);
    std::vector<std::int64_t> windows;
    for (std::int64_t i = 0; i < used; ++i) {
      // Spread over the file; i * count / used without overflow.
      windows.push_back(file.first + i * (file.count / used) + i * (file.count % used) / used);
    }
    const double sum = summed_loss(model, context, dataset, windows, batch);
    losses.push_back({file.name, sum / static_cast<double>(used * seq_len), used * seq_len});
    total += sum;
    tokens += used * seq_len;
  }
  if (tokens > 0) losses.push_back({"all", total / static_cast<double>(tokens), tokens});
  return losses;
}

}  // namespace moesaic
