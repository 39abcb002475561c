#include "moesaic/infer/first_windows.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "moesaic/train/tensors.h"

namespace moesaic {

at::Tensor first_windows(const Dataset& dataset, std::int64_t most, bool reads) {
  const std::int64_t sequences = reads ? std::min(most, dataset.num_windows(Split::kHeldOut)) : 0;
  std::vector<std::int64_t> windows(static_cast<std::size_t>(sequences));
  std::iota(windows.begin(), windows.end(), 0);
  return tokens_of(dataset.read(Split::kHeldOut, windows), dataset.seq_len());
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace moesaic
