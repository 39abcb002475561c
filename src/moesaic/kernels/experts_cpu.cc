// The oracle: one slot at a time, one element at a time.
#include <cmath>
#include <vector>

#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/element.h"
#include "moesaic/kernels/reference.h"

namespace moesaic::kernels {
namespace {

template <typename T>
struct Oracle {
  const ExpertShape& shape;
  bool fused;

  float add_product(float sum, float a, float b) const { return fused ? std::fma(a, b, sum) : sum + a * b; }

  static T rounded(float value) {
    T result;
    store(result, value);
    return result;
  }

  // round(w x), w [m,k].
  std::vector<T> times(const T* w, std::int64_t m, std::int64_t k, const T* x) const {
    std::vector<T> y(static_cast<std::size_t>(m));
    for (std::int64_t r = 0; r < m; ++r) {
      float sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum = add_product(sum, load(w[r * k + i]), load(x[i]));
      store(y[static_cast<std::size_t>(r)], sum);
    }
    return y;
  }

  // round(w^T x), w [m,k].
  std::vector<T> transposed_times(const T* w, std::int64_t m, std::int64_t k, const T* x) const {
    std::vector<T> y(static_cast<std::size_t>(k));
    for (std::int64_t i = 0; i < k; ++i) {
      float sum = 0;
      for (std::int64_t r = 0; r < m; ++r) sum = add_product(sum, load(w[r * k + i]), load(x[r]));
      store(y[static_cast<std::size_t>(i)], sum);
    }
    return y;
  }

  // sums += a b^T.
  void add_outer(std::vector<float>& sums, const std::vector<T>& a, const std::vector<T>& b) const {
    for (std::size_t r = 0; r < a.size(); ++r) {
      for (std::size_t i = 0; i < b.size(); ++i) {
        float& sum = sums[r * b.size() + i];
        sum = add_product(sum, load(a[r]), load(b[i]));
      }
    }
  }

  std::vector<T> activated(const std::vector<T>& before) const {
    std::vector<T> h(static_cast<std::size_t>(shape.expert_width));
    (shape.gated ? swiglu : relu)(shape.dtype, before.data(), 1, shape.expert_width, h.data(), {});
    return h;
  }

  void forward(const ExpertSlots& slots, const T* rows, const T* w_in, const T* w_out, T* outputs) const {
    const std::int64_t d = shape.width, f = shape.expert_width, hidden = shape.hidden_width();
    for (std::int64_t e = 0; e < shape.num_experts; ++e) {
      for (std::int64_t s = slots.begin[e]; s < slots.begin[e + 1]; ++s) {
        const auto before = times(w_in + e * hidden * d, hidden, d, rows + slots.row[s] * d);
        const auto y = times(w_out + e * d * f, d, f, activated(before).data());
        std::copy(y.begin(), y.end(), outputs + s * d);
      }
    }
  }

  void backward(const ExpertSlots& slots, const T* g, const float* slot_weight, const T* rows, const T* w_in,
                const T* w_out, T* d_inputs, T* d_w_in, T* d_w_out) const {
    const std::int64_t d = shape.width, f = shape.expert_width, hidden = shape.hidden_width();
    for (std::int64_t e = 0; e < shape.num_experts; ++e) {
      const T *in = w_in + e * hidden * d, *out = w_out + e * d * f;
      std::vector<float> in_sums(static_cast<std::size_t>(hidden * d)),
          out_sums(static_cast<std::size_t>(d * f));
      for (std::int64_t s = slots.begin[e]; s < slots.begin[e + 1]; ++s) {
        const T* row = rows + slots.row[s] * d;
        const std::vector<T> x(row, row + d);
        std::vector<T> dy(static_cast<std::size_t>(d));
        for (std::int64_t i = 0; i < d; ++i) {
          dy[static_cast<std::size_t>(i)] = rounded(slot_weight[s] * load(g[slots.row[s] * d + i]));
        }
        const auto before = times(in, hidden, d, x.data());
        add_outer(out_sums, dy, activated(before));
        const auto dh = transposed_times(out, d, f, dy.data());
        std::vector<T> d_before(before.size());
        (shape.gated ? swiglu_backward : relu_backward)(shape.dtype, before.data(), dh.data(), 1, f,
                                                        d_before.data(), {});
        add_outer(in_sums, d_before, x);
        const auto dx = transposed_times(in, hidden, d, d_before.data());
        std::copy(dx.begin(), dx.end(), d_inputs + s * d);
      }
      for (std::int64_t i = 0; i < hidden * d; ++i) {
        store(d_w_in[e * hidden * d + i], in_sums[static_cast<std::size_t>(i)]);
      }
      for (std::int64_t i = 0; i < d * f; ++i) {
        store(d_w_out[e * d * f + i], out_sums[static_cast<std::size_t>(i)]);
      }
    }
  }
};

}  // namespace

void reference::experts_forward(const ExpertShape& shape, const ExpertSlots& slots, const void* rows,
                                const void* w_in, const void* w_out, void* outputs, bool fused) {
  for_row_dtype(shape.dtype, "experts_forward", [&](auto element) {
    using T = decltype(element);
    Oracle<T>{shape, fused}.forward(slots, static_cast<const T*>(rows), static_cast<const T*>(w_in),
                                    static_cast<const T*>(w_out), static_cast<T*>(outputs));
  });
}

void reference::experts_backward(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                                 const float* slot_weight, const void* rows, const void* w_in,
                                 const void* w_out, const ExpertGradients& gradients, bool fused) {
  for_row_dtype(shape.dtype, "experts_backward", [&](auto element) {
    using T = decltype(element);
    Oracle<T>{shape, fused}.backward(slots, static_cast<const T*>(g), slot_weight,
                                     static_cast<const T*>(rows), static_cast<const T*>(w_in),
                                     static_cast<const T*>(w_out), static_cast<T*>(gradients.d_inputs),
                                     static_cast<T*>(gradients.d_w_in), static_cast<T*>(gradients.d_w_out));
  });
}

}  // namespace moesaic::kernels
