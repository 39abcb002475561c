// tensors.h: a batch as torch tensors [B,S] int64.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/train/data.h"

namespace moesaic {

inline at::Tensor rows_of(const std::vector<std::int64_t>& values, std::int64_t sequences,
                          std::int64_t seq_len) {
  at::Tensor tensor = at::empty({sequences, seq_len}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

inline at::Tensor tokens_of(const Batch& batch, std::int64_t seq_len) {
  return rows_of(batch.tokens, batch.num_sequences, seq_len);
}
inline at::Tensor targets_of(const Batch& batch, std::int64_t seq_len) {
  return rows_of(batch.targets, batch.num_sequences, seq_len);
}

}  // namespace moesaic
