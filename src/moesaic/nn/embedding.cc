#include "moesaic/nn/embedding.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/products.h"

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Logits are turned into fp32 this many rows at a time.
constexpr std::int64_t kBlockRows = 512;

void require_ids(const char* what, const at::Tensor& ids, std::int64_t lowest, std::int64_t vocab_size) {
  require(ids.scalar_type() == at::kLong, "{}: expected int64, got {}", what,
          c10::toString(ids.scalar_type()));
  if (ids.numel() == 0) return;
  const auto [low, high] = at::aminmax(ids);
  require(low.item<std::int64_t>() >= lowest && high.item<std::int64_t>() < vocab_size,
          "{} must be in {}..{}, got {}..{}", what, lowest, vocab_size - 1, low.item<std::int64_t>(),
          high.item<std::int64_t>());
}

struct Embed : torch::autograd::Function<Embed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& ids) {
    context->save_for_backward({ids});
    context->saved_data["vocab_size"] = weight.size(0);
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor ids = context->get_saved_variables()[0];
    const at::Tensor& g = gradients[0];
    const std::int64_t vocab_size = context->saved_data["vocab_size"].toInt();
    // In bf16 a frequent token's sum would stop growing.
    at::Tensor sums = at::embedding_dense_backward(g.to(at::kFloat), ids, vocab_size, /*padding_idx=*/-1,
                                                   /*scale_grad_by_freq=*/false);
    return {sums.to(g.scalar_type()), at::Tensor()};
  }
};

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, std::int64_t step_targets, bool keep_logits) {
    const std::int64_t num_tokens = hidden.size(0), vocab_size = weight.size(0);
    const at::Tensor log_sum = at::empty({num_tokens}, at::kFloat);
    at::Tensor logits = at::empty({keep_logits ? num_tokens : std::min(num_tokens, kBlockRows), vocab_size},
                                  hidden.options());
    double sum = 0.0;
    for (std::int64_t begin = 0; begin < num_tokens; begin += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, num_tokens - begin);
      at::Tensor block = logits.narrow(0, keep_logits ? begin : 0, rows);
      multiply_into(block, hidden.narrow(0, begin, rows), weight.t());
      const at::Tensor block32 = block.to(at::kFloat), wanted = targets.narrow(0, begin, rows);
      at::Tensor block_sum = log_sum.narrow(0, begin, rows);
      at::logsumexp_out(block_sum, block32, 1);
      const at::Tensor of_target = block32.gather(1, wanted.clamp_min(0).unsqueeze(1)).squeeze(1);
      sum += at::sum((block_sum - of_target).to(at::kDouble) * (wanted >= 0)).item<double>();
    }
    context->save_for_backward({hidden, weight, targets});
    if (keep_logits) {
      context->saved_data["logits"] = logits;
      context->saved_data["log_sum"] = log_sum;
    }
    context->saved_data["step_targets"] = step_targets;
    return at::scalar_tensor(step_targets == 0 ? 0.0 : sum / static_cast<double>(step_targets), at::kFloat);
  }

  // d loss / d logits = (softmax - one_hot) / step_targets on rows with a target, else 0.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[2];
    const at::Tensor logits = context->saved_data["logits"].toTensor();
    const at::Tensor log_sum = context->saved_data["log_sum"].toTensor();
    const std::int64_t step_targets = context->saved_data["step_targets"].toInt();
    const double scale =
        step_targets == 0 ? 0.0 : gradients[0].item<double>() / static_cast<double>(step_targets);
    at::Tensor d_hidden = at::empty_like(hidden);
    at::Tensor d_weight = at::zeros(weight.sizes(), at::kFloat);
    for (std::int64_t begin = 0; begin < hidden.size(0); begin += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, hidden.size(0) - begin);
      const at::Tensor wanted = targets.narrow(0, begin, rows).unsqueeze(1), has_target = wanted >= 0;
      at::Tensor d_logits = logits.narrow(0, begin, rows).to(at::kFloat);
      d_logits = at::exp(d_logits - log_sum.narrow(0, begin, rows).unsqueeze(1));
      d_logits.scatter_add_(1, wanted.clamp_min(0), at::full(wanted.sizes(), -1.0, at::kFloat));
      d_logits = at::where(has_target, d_logits * scale, 0.0).to(hidden.scalar_type());
      at::Tensor d_rows = d_hidden.narrow(0, begin, rows);
      multiply_into(d_rows, d_logits, weight);
      if (hidden.scalar_type() == at::kFloat) {
        d_weight.addmm_(d_logits.t(), hidden.narrow(0, begin, rows));
      } else {  // blocks are added in fp32
        at::Tensor of_block = at::empty_like(weight);
        multiply_into(of_block, d_logits.t(), hidden.narrow(0, begin, rows));
        d_weight.add_(of_block);
      }
    }
    return {d_hidden, d_weight.to(weight.scalar_type()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& weight, const at::Tensor& ids) {
  require_ids("token ids", ids, 0, weight.size(0));
  return Embed::apply(weight, ids);
}

at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                         std::int64_t step_targets) {
  require_shape("targets", targets, {hidden.size(0)});
  require_ids("targets", targets, -1, weight.size(0));
  require(step_targets > 0 || !(targets >= 0).any().item<bool>(),
          "step_targets must count every target of the step, got {} although this rank has some",
          step_targets);
  const bool keep_logits = at::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  return CrossEntropy::apply(hidden.contiguous(), weight, targets.contiguous(), step_targets, keep_logits);
}

}  // namespace moesaic
