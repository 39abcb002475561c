// Lanes are rows of the matrix. A cache line of each is taken at a time: 64 bytes of kLanes rows, four
// columns of 32 bits after the other, transposed; a column of bf16 holds two of the matrix's.
#include "moesaic/kernels/few_rows.h"

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/few_rows_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

constexpr std::int64_t kLanes = hn::MaxLanes(F32());
constexpr std::int64_t kLineBytes = 64;
// A block of rows and the next one, which is being fetched, stay in the second-level cache.
constexpr std::int64_t kBlockBytes = 128 * 1024;

// Fetches what follows a block while the block is worked on, as many bytes as are used up.
class Ahead {
 public:
  Ahead(const void* from, const void* end)
      : at_(static_cast<const std::byte*>(from)), end_(static_cast<const std::byte*>(end)) {}
  HWY_INLINE void step(std::int64_t lines) {
    if (at_ >= end_) return;
    for (std::int64_t i = 0; i < lines; ++i, at_ += kLineBytes) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
};

// One column: element c of kLanes rows, `stride` apart; the last rows are repeated where fewer are there.
template <typename T>
HWY_INLINE Vector column(const T* rows, std::int64_t stride, std::int64_t count, std::int64_t c) {
  float lanes[kLanes];
  for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = load(rows[std::min(l, count - 1) * stride + c]);
  return load_vector(lanes);
}

#if HWY_TARGET != HWY_SCALAR

using U32 = hn::Rebind<std::uint32_t, F32>;
using Words = hn::Vec<U32>;

// The 16 bytes at byte `offset` of rows j and, where vectors are wide, j + 4.
template <typename T>
HWY_INLINE Words quads_of_rows(const T* rows, std::int64_t stride, std::int64_t j) {
  const hn::CappedTag<std::uint32_t, 4> quad;
  const auto load_quad = [&](const T* from) {
    return hn::LoadU(quad, reinterpret_cast<const std::uint32_t*>(from));
  };
  if constexpr (kLanes == 8) {
    return hn::Combine(U32(), load_quad(rows + (j + 4) * stride), load_quad(rows + j * stride));
  } else {
    return load_quad(rows + j * stride);
  }
}

// Four columns of words of kLanes rows.
template <typename T>
HWY_INLINE void transposed_quads(const T* rows, std::int64_t stride, Words (&columns)[4]) {
  const U32 d;
  const hn::Repartition<std::uint64_t, U32> pair;
  Words v[4];
  for (int j = 0; j < 4; ++j) v[j] = quads_of_rows(rows, stride, j);
  const auto low01 = hn::BitCast(pair, hn::InterleaveLower(d, v[0], v[1]));
  const auto high01 = hn::BitCast(pair, hn::InterleaveUpper(d, v[0], v[1]));
  const auto low23 = hn::BitCast(pair, hn::InterleaveLower(d, v[2], v[3]));
  const auto high23 = hn::BitCast(pair, hn::InterleaveUpper(d, v[2], v[3]));
  columns[0] = hn::BitCast(d, hn::InterleaveLower(pair, low01, low23));
  columns[1] = hn::BitCast(d, hn::InterleaveUpper(pair, low01, low23));
  columns[2] = hn::BitCast(d, hn::InterleaveLower(pair, high01, high23));
  columns[3] = hn::BitCast(d, hn::InterleaveUpper(pair, high01, high23));
}

// Calls use(i, column i) for the columns of a word, in order.
template <typename Use>
HWY_INLINE void for_each_column(float, Words words, const Use& use) {
  use(0, hn::BitCast(F32(), words));
}
template <typename Use>
HWY_INLINE void for_each_column(BF16, Words words, const Use& use) {
  use(0, hn::BitCast(F32(), hn::ShiftLeft<16>(words)));
  use(1, hn::BitCast(F32(), hn::And(words, hn::Set(U32(), 0xffff0000u))));
}

#endif

// out[t][r] for kGroups * kLanes rows from `rows` on, of which `count` are stored.
template <int kGroups, int kTokens, typename T>
HWY_INLINE void rows_product(const T* rows, std::int64_t k, const float* in, float* out, std::int64_t m,
                             std::int64_t count, [[maybe_unused]] Ahead& ahead) {
  Vector sum[kGroups][kTokens];
  for (int g = 0; g < kGroups; ++g) {
    for (int t = 0; t < kTokens; ++t) sum[g][t] = hn::Zero(F32());
  }
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr std::int64_t kPerWord = 4 / sizeof(T), kStep = kLineBytes / sizeof(T);
  for (; count == kGroups * kLanes && c + kStep <= k; c += kStep) {
    ahead.step(kGroups * kLanes);
    for (int g = 0; g < kGroups; ++g) {
      for (std::int64_t q = c; q < c + kStep; q += 4 * kPerWord) {
        Words words[4];
        transposed_quads(rows + g * kLanes * k + q, k, words);
        for (int w = 0; w < 4; ++w) {
          for_each_column(T{}, words[w], [&](std::int64_t i, Vector weights) {
            for (int t = 0; t < kTokens; ++t) {
              const Vector x = hn::Set(F32(), in[t * k + q + w * kPerWord + i]);
              sum[g][t] = hn::MulAdd(x, weights, sum[g][t]);
            }
          });
        }
      }
    }
  }
#endif
  for (; c < k; ++c) {
    for (int g = 0; g < kGroups; ++g) {
      const Vector weights = column(rows + g * kLanes * k, k, std::min(kLanes, count - g * kLanes), c);
      for (int t = 0; t < kTokens; ++t) {
        sum[g][t] = hn::MulAdd(hn::Set(F32(), in[t * k + c]), weights, sum[g][t]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int g = 0; g < kGroups; ++g) {
      float* to = out + t * m + g * kLanes;
      const std::int64_t there = count - g * kLanes;
      if (there >= kLanes) {
        store_vector(to, sum[g][t]);
      } else {
        Tail{there}.store(to, sum[g][t]);
      }
    }
  }
}

// As many rows at once as keep the multiply-adds apart and the block small.
template <int kGroups, int kTokens, typename T>
void product_of(const T* w, std::int64_t m, std::int64_t k, const float* in, float* out, const void* next) {
  constexpr std::int64_t kRows = kGroups * kLanes;
  if constexpr (kGroups > 1) {
    if (kRows * k * static_cast<std::int64_t>(sizeof(T)) > kBlockBytes) {
      return product_of<kGroups / 2, kTokens>(w, m, k, in, out, next);
    }
  }
  std::int64_t r = 0;
  for (; r + kRows <= m; r += kRows) {
    const bool last = r + 2 * kRows > m;
    const void* from = last ? next : w + (r + kRows) * k;
    const void* end =
        last ? (next == nullptr ? nullptr : static_cast<const T*>(next) + std::min(kRows, m) * k) : w + m * k;
    Ahead ahead(from, end);
    rows_product<kGroups, kTokens>(w + r * k, k, in, out + r, m, kRows, ahead);
  }
  Ahead none(nullptr, nullptr);
  for (; r < m; r += kLanes) {
    rows_product<1, kTokens>(w + r * k, k, in, out + r, m, std::min(kLanes, m - r), none);
  }
}

template <typename T>
void product_of(const T* w, std::int64_t m, std::int64_t k, const float* in, std::int64_t n, float* out,
                const void* next) {
  switch (n) {
    case 1:
      return product_of<4, 1>(w, m, k, in, out, next);
    case 2:
      return product_of<4, 2>(w, m, k, in, out, next);
    case 3:
      return product_of<2, 3>(w, m, k, in, out, next);
    case 4:
      return product_of<2, 4>(w, m, k, in, out, next);
    case 5:
      return product_of<1, 5>(w, m, k, in, out, next);
    case 6:
      return product_of<1, 6>(w, m, k, in, out, next);
    case 7:
      return product_of<1, 7>(w, m, k, in, out, next);
    default:
      return product_of<1, 8>(w, m, k, in, out, next);
  }
}

void FewRowsProduct(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                    std::int64_t n, float* out, const void* next) {
  for_row_dtype(dtype, "few_rows_product", [&](auto element) {
    product_of(static_cast<const decltype(element)*>(w), m, k, in, n, out, next);
  });
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(FewRowsProduct);

void few_rows_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                      std::int64_t n, float* out, const void* next, Stream) {
  require(1 <= n && n <= kFewRows, "few_rows_product: got {} rows, expected 1 to {}", n, kFewRows);
  HWY_DYNAMIC_DISPATCH(FewRowsProduct)(dtype, w, m, k, in, n, out, next);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
