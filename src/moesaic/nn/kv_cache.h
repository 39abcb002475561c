// kv_cache.h: keys and values of the tokens so far, so that the next token costs one row instead of all.
//
// Local. Allocated once, to each sequence's capacity; nothing grows or moves afterwards. A forward pass takes
// `runs` of new tokens, back to back, of any of the sequences; every layer writes at the same places, and
// commit() makes them part of the sequences. Without a commit (an error in a layer) nothing has changed.
//
//   KvCache cache(config, dtype, {30, 12});
//   cache.begin({{0, 5}, {1, 3}});   context.cache = &cache;   stages over 8 tokens   cache.commit(); prefill
//   cache.begin({{0, 1}, {1, 1}});   ... stages over 2 tokens ...                     cache.commit(); decode
//
// A token attends to those of its own sequence, whatever else is in the pass, by one attention call per run:
// its result does not depend on its company, to the bit. Cost per layer: the new rows are copied in, the
// sequence's keys and values read once.
//
//   D width, H heads of width D/H, T new tokens
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moesaic/core/dtype.h"
#include "moesaic/nn/attention.h"

namespace moesaic {

class KvCache {
 public:
  // capacity: positions of each sequence.
  KvCache(const ModelConfig& config, DType dtype, const std::vector<std::int64_t>& capacity);

  std::int64_t length(std::size_t sequence) const { return sequences_.at(sequence).length; }
  std::int64_t bytes() const { return bytes_; }
  void clear(std::size_t sequence) { sequences_.at(sequence).length = 0; }

  // `count` new tokens of `sequence`, right after those it holds.
  struct Run {
    std::size_t sequence;
    std::int64_t count;
  };
  // Before every pass, also one without runs. InvalidArgument where a run does not fit, is empty, or names a
  // sequence twice.
  void begin(std::vector<Run> runs);
  void commit();

  std::int64_t num_tokens() const { return num_tokens_; }  // of the runs
  const Rotation& rotation() const { return rotation_; }   // of their positions
  // Stores the new keys and values of `layer` and attends: heads [1,H,T,D/H] -> [1,T,D].
  at::Tensor attend(int layer, const Heads& heads);

 private:
  struct Sequence {
    std::int64_t capacity, length;
    std::vector<at::Tensor> keys, values;  // of each layer: [1,H,capacity,D/H]
  };
  std::int64_t num_heads_, head_width_;
  double theta_;
  std::int64_t bytes_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<Run> runs_;
  std::int64_t num_tokens_ = 0;
  Rotation rotation_;
};

}  // namespace moesaic
