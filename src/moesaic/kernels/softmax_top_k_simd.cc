// Rows in lanes (select_inl.h): a panel of rows is selected from, exponentiated and added up while it is in
// the first-level cache.
#include "moesaic/kernels/softmax_top_k.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/core/error.h"
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/panels.h"
#include "moesaic/kernels/top_k.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/softmax_top_k_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/contrib/math/math-inl.h>

#include "moesaic/kernels/select_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

constexpr std::int64_t kLanes = hn::MaxLanes(F32());

// Rows of scores, panel by panel, transposed.
class Panel {
 public:
  Panel(const float* scores, std::int64_t rows, std::int64_t n)
      : scores_(scores),
        rows_(rows),
        n_(n),
        panel_(panel_elements(kPanelRows, n) * static_cast<std::int64_t>(sizeof(float))) {
    std::iota(row_, row_ + kPanelRows, 0);
  }
  void load(std::int64_t first) {
    count_ = std::min(kPanelRows, rows_ - first);
    pack_panels(DType::kF32, scores_ + first * n_, row_, nullptr, count_, n_, panel_.as<float>());
  }
  void store(std::int64_t first, float* rows) const {
    unpack_panels(DType::kF32, panel_.as<float>(), count_, n_, rows + first * n_);
  }
  std::int64_t count() const { return count_; }  // rows of it that there are
  std::int64_t lanes() const { return panel_lanes(count_); }
  float* columns(std::int64_t lane) { return panel_.as<float>() + lane; }

 private:
  const float* scores_;
  std::int64_t rows_, n_, count_ = 0;
  Buffer panel_;
  std::int64_t row_[kPanelRows];
};

// 1 in the lane of each row that counts, from row `first` on, of `count` rows.
HWY_INLINE Vector counted_lanes(const std::uint8_t* counted, std::int64_t first, std::int64_t count) {
  float lanes[kLanes] = {};
  for (std::int64_t l = 0; l < std::min(kLanes, count); ++l) {
    lanes[l] = counted == nullptr || counted[first + l] != 0 ? 1.0f : 0.0f;
  }
  return load_vector(lanes);
}

// What is known of kLanes rows.
struct Known {
  Vector largest, sum;
};

// Leaves exp(score - largest) in the columns.
HWY_INLINE Known exponentiate(float* columns, std::int64_t stride, std::int64_t n, Vector largest) {
  Vector sum = hn::Zero(F32());
  for (std::int64_t j = 0; j < n; ++j) {
    float* at = columns + j * stride;
    const Vector e = hn::Exp(F32(), hn::Sub(load_vector(at), largest));
    store_vector(at, e);
    sum = hn::Add(sum, e);
  }
  return {largest, sum};
}

void SoftmaxTopKRows(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                     const std::uint8_t* counted, const SoftmaxTopK& out) {
  const bool in_lanes = k <= kMaxK;
  if (!in_lanes) top_k(scores, rows, n, k, out.ids, out.values);
  Panel panel(scores, rows, n);
  std::vector<float> chains(out.sums == nullptr ? 0 : static_cast<std::size_t>(kPanelRows * n), 0.0f);
  std::vector<float> lists(static_cast<std::size_t>((in_lanes ? kMaxK : k) * kLanes));
  std::int32_t ids[kMaxK * kLanes];
  float* best = lists.data();
  for (std::int64_t r = 0; r < rows; r += kPanelRows) {
    panel.load(r);
    for (std::int64_t lane = 0; lane < panel.count(); lane += kLanes) {
      float* columns = panel.columns(lane);
      const std::int64_t first = r + lane, count = std::min(kLanes, panel.count() - lane);
      if (in_lanes) {
        select_best(columns, panel.lanes(), n, k, best, ids);
      } else {
        for (std::int64_t i = 0; i < k * kLanes; ++i) {
          best[i] = out.values[(first + std::min(i % kLanes, count - 1)) * k + i / kLanes];
        }
      }
      const Known known = exponentiate(columns, panel.lanes(), n, load_vector(best));
      float log_sums[kLanes];
      store_vector(log_sums, hn::Add(known.largest, hn::Log(F32(), known.sum)));
      for (std::int64_t l = 0; l < count; ++l) out.log_sum[first + l] = log_sums[l];
      for (std::int64_t i = 0; i < k; ++i) {
        const float* value = best + i * kLanes;
        float p[kLanes];
        store_vector(p, hn::Div(hn::Exp(F32(), hn::Sub(load_vector(value), known.largest)), known.sum));
        for (std::int64_t l = 0; l < count; ++l) {
          out.probabilities[(first + l) * k + i] = p[l];
          if (!in_lanes) continue;
          out.ids[(first + l) * k + i] = ids[i * kLanes + l];
          out.values[(first + l) * k + i] = value[l];
        }
      }
      if (out.sums == nullptr) continue;
      const Vector counts = counted_lanes(counted, first, count);
      for (std::int64_t j = 0; j < n; ++j) {
        float* chain = chains.data() + j * kPanelRows + lane;
        const Vector p = hn::Div(load_vector(columns + j * panel.lanes()), known.sum);
        store_vector(chain, hn::MulAdd(counts, p, load_vector(chain)));
      }
    }
  }
  if (out.sums == nullptr) return;
  for (std::int64_t j = 0; j < n; ++j) {
    out.sums[j] = std::accumulate(&chains[static_cast<std::size_t>(j * kPanelRows)],
                                  &chains[static_cast<std::size_t>(j * kPanelRows)] + kPanelRows, 0.0f);
  }
}

void SoftmaxTopKBackward(const float* scores, const float* log_sum, const std::int32_t* ids,
                         std::int64_t rows, std::int64_t n, std::int64_t k, const std::uint8_t* counted,
                         const SoftmaxTopKGradients& gradients, float* d_scores) {
  const F32 f32;
  Panel panel(scores, rows, n);
  for (std::int64_t r = 0; r < rows; r += kPanelRows) {
    panel.load(r);
    for (std::int64_t lane = 0; lane < panel.count(); lane += kLanes) {
      float* columns = panel.columns(lane);
      const std::int64_t first = r + lane, count = std::min(kLanes, panel.count() - lane);
      const Tail there{count};
      const Vector log_sums = there.load(log_sum + first), d_log_sums = there.load(gradients.log_sum + first);
      Vector mean = hn::Zero(f32);
      for (std::int64_t j = 0; j < n; ++j) {
        float* at = columns + j * panel.lanes();
        const Vector p = hn::Exp(f32, hn::Sub(load_vector(at), log_sums));
        store_vector(at, p);
        mean = hn::MulAdd(p, hn::Set(f32, gradients.sums[j]), mean);
      }
      const Vector counts = counted_lanes(counted, first, count);
      for (std::int64_t j = 0; j < n; ++j) {
        float* at = columns + j * panel.lanes();
        const Vector over_mean = hn::Sub(hn::Set(f32, gradients.sums[j]), mean);
        store_vector(at, hn::Mul(load_vector(at), hn::MulAdd(counts, over_mean, d_log_sums)));
      }
    }
    panel.store(r, d_scores);
    for (std::int64_t row = r; row < r + panel.count(); ++row) {
      for (std::int64_t i = row * k; i < (row + 1) * k; ++i) {
        if (ids[i] >= 0) d_scores[row * n + ids[i]] += gradients.values[i];
      }
    }
  }
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(SoftmaxTopKRows);
HWY_EXPORT(SoftmaxTopKBackward);

void softmax_top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                   const std::uint8_t* counted, const SoftmaxTopK& out, Stream) {
  require(1 <= k && k <= n, "softmax_top_k: got k = {}, expected 1 <= k <= n = {}", k, n);
  HWY_DYNAMIC_DISPATCH(SoftmaxTopKRows)(scores, rows, n, k, counted, out);
}

void softmax_top_k_backward(const float* scores, const float* log_sum, const std::int32_t* ids,
                            std::int64_t rows, std::int64_t n, std::int64_t k, const std::uint8_t* counted,
                            const SoftmaxTopKGradients& gradients, float* d_scores, Stream) {
  HWY_DYNAMIC_DISPATCH(SoftmaxTopKBackward)(scores, log_sum, ids, rows, n, k, counted, gradients, d_scores);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
