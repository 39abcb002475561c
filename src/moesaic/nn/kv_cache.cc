#include "moesaic/nn/kv_cache.h"

#include <algorithm>
#include <optional>

#include "moesaic/core/error.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/products.h"

namespace moesaic {
namespace {

// Row i of the new tokens sees the `before` tokens in front of all of them, and those up to itself.
at::Tensor may_see(std::int64_t before, std::int64_t count) {
  return at::ones({count, before + count}, at::kBool).tril(before);
}

}  // namespace

KvCache::KvCache(const ModelConfig& config, DType dtype, const std::vector<std::int64_t>& capacity)
    : num_heads_(config.num_heads),
      head_width_(config.d_model / config.num_heads),
      theta_(config.rope_theta) {
  for (const std::int64_t positions : capacity) {
    Sequence sequence{positions, 0, {}, {}};
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (auto* kind : {&sequence.keys, &sequence.values}) {
        kind->push_back(at::empty({1, num_heads_, positions, head_width_}, scalar_type(dtype)));
        bytes_ += static_cast<std::int64_t>(kind->back().nbytes());
      }
    }
    sequences_.push_back(std::move(sequence));
  }
}

void KvCache::begin(std::vector<Run> runs) {
  std::vector<bool> seen(sequences_.size());
  std::vector<std::int64_t> positions;
  for (const Run& run : runs) {
    require(run.sequence < sequences_.size() && !seen[run.sequence],
            "key-value cache: a run of sequence {}, expected each of 0..{} once at most", run.sequence,
            std::ssize(sequences_) - 1);
    seen[run.sequence] = true;
    const Sequence& sequence = sequences_[run.sequence];
    require(run.count > 0 && run.count <= sequence.capacity - sequence.length,
            "key-value cache: {} new tokens for sequence {}, which holds {} of at most {}", run.count,
            run.sequence, sequence.length, sequence.capacity);
    for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(sequence.length + i);
  }
  runs_ = std::move(runs);
  num_tokens_ = std::ssize(positions);
  at::Tensor at_positions = at::empty({num_tokens_}, at::kLong);
  std::copy(positions.begin(), positions.end(), at_positions.mutable_data_ptr<std::int64_t>());
  rotation_ = moesaic::rotation(at_positions, head_width_, theta_);
}

void KvCache::commit() {
  for (const Run& run : runs_) sequences_[run.sequence].length += run.count;
  runs_.clear();
  num_tokens_ = 0;
}

at::Tensor KvCache::attend(int layer, const Heads& heads) {
  const auto l = static_cast<std::size_t>(layer);
  at::Tensor mixed = at::empty({1, num_tokens_, num_heads_, head_width_}, heads.q.options());
  std::int64_t first = 0;
  for (const Run& run : runs_) {
    Sequence& sequence = sequences_[run.sequence];
    const std::int64_t before = sequence.length, after = before + run.count;
    sequence.keys[l].narrow(2, before, run.count).copy_(heads.k.narrow(2, first, run.count));
    sequence.values[l].narrow(2, before, run.count).copy_(heads.v.narrow(2, first, run.count));
    const bool causal = before == 0;  // torch aligns its causal mask with the first key
    std::optional<at::Tensor> mask;
    if (!causal && run.count > 1) mask = may_see(before, run.count);
    const at::Tensor result =
        moesaic::attend(heads.q.narrow(2, first, run.count), sequence.keys[l].narrow(2, 0, after),
                        sequence.values[l].narrow(2, 0, after), mask, causal);
    mixed.narrow(1, first, run.count).copy_(result.transpose(1, 2));
    first += run.count;
  }
  return mixed.view({1, num_tokens_, num_heads_ * head_width_});
}

}  // namespace moesaic
