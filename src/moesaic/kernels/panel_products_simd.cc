// One tile of the result stays in registers: kTileRows rows of the left factor times one panel. Per step of k
// it loads a panel row and broadcasts kTileRows elements, for 2 * kTileRows * 16 operations.
#include "moesaic/kernels/panels.h"

#include <algorithm>

#include "moesaic/core/buffer.h"
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/panel_products_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

constexpr std::int64_t kLanes = hn::MaxLanes(F32());
// 12 accumulators: enough to hide the latency of a multiply-add, and with the operands within 16 registers.
constexpr std::int64_t kTileRows = std::max<std::int64_t>(1, 12 * kLanes / kPanelRows);
static_assert(kLanes <= kPanelRows / 2, "the last panel may be half as wide");
// So deep a piece of a panel lies in the first-level cache beside a tile's left factor, and so many rows of
// the left factor in the second-level cache.
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kBlockRows = 32 * kTileRows;

// The left factor: element (r, i) of segment s at data[s * segment + r * row + i * step].
struct Left {
  const float* data;
  std::int64_t row, step, segment;
};

// c[r] (row stride c_row) = (add ? c[r] : 0) + sum over i of left(r, i) * right[i], i through `segments`
// segments of `length`, the last of `last_length`; the right factor's rows of kVectors vectors lie back to
// back.
template <int kRows, int kVectors>
HWY_INLINE void tile(const Left& left, const float* right, std::int64_t segments, std::int64_t length,
                     std::int64_t last_length, bool add, float* c, std::int64_t c_row) {
  Vector sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = add ? load_vector(c + r * c_row + v * kLanes) : hn::Zero(F32());
    }
  }
  for (std::int64_t s = 0; s < segments; ++s) {
    const float* a = left.data + s * left.segment;
    const std::int64_t end = s + 1 == segments ? last_length : length;
    for (std::int64_t i = 0; i < end; ++i, a += left.step, right += kVectors * kLanes) {
      Vector b[kVectors];
      for (int v = 0; v < kVectors; ++v) b[v] = load_vector(right + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vector x = hn::Set(F32(), a[r * left.row]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, b[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store_vector(c + r * c_row + v * kLanes, sum[r][v]);
  }
}

// The tile of `rows` <= kRows rows.
template <int kRows, int kVectors, typename... Args>
HWY_INLINE void tile_of(std::int64_t rows, const Args&... args) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<kRows - 1, kVectors>(rows, args...);
  }
  tile<kRows, kVectors>(args...);
}

template <typename... Args>
HWY_INLINE void panel_tile(std::int64_t rows, std::int64_t lanes, const Args&... args) {
  if (lanes == kPanelRows) return tile_of<kTileRows, kPanelRows / kLanes>(rows, args...);
  tile_of<kTileRows, kPanelRows / 2 / kLanes>(rows, args...);
}

// A block of a matrix that is not in the cache yet, fetched a few lines at a time between tiles.
class Ahead {
 public:
  Ahead() = default;
  // rows [`rows`][`row_bytes`], `stride_bytes` apart, in about `steps` steps.
  Ahead(const std::byte* rows, std::int64_t num_rows, std::int64_t row_bytes, std::int64_t stride_bytes,
        std::int64_t steps)
      : row_(rows), end_(rows + num_rows * stride_bytes), row_bytes_(row_bytes), stride_bytes_(stride_bytes) {
    const std::int64_t lines = num_rows * (row_bytes / kLine + 1);
    lines_per_step_ = (lines + steps - 1) / steps;
  }
  HWY_INLINE void step() {
    for (std::int64_t n = 0; n < lines_per_step_ && row_ != end_; ++n) {
      __builtin_prefetch(row_ + column_);
      column_ += kLine;
      if (column_ >= row_bytes_) {
        column_ = 0;
        row_ += stride_bytes_;
      }
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  const std::byte* row_ = nullptr;
  const std::byte* end_ = nullptr;
  std::int64_t row_bytes_ = 0, stride_bytes_ = 0, lines_per_step_ = 0, column_ = 0;
};

// The left factor is taken block by block: kBlockRows rows by kDepth columns stay in the second-level cache,
// and every panel comes past them once. prepare(r, rows, i, depth) is told of each block before left_of(r) is
// asked for its tiles, which begin at column i; ahead_of(r, rows, i, depth, steps) gives the Ahead of the
// next block.
template <typename Prepare, typename NextBlock, typename LeftOf>
HWY_INLINE void multiply_panels(const Prepare& prepare, const NextBlock& ahead_of, const LeftOf& left_of,
                                std::int64_t m, std::int64_t k, const float* in, std::int64_t n, float* out) {
  // A single panel uses every weight once: then they are read straight through, a tile's rows at a time.
  const bool once = n <= kPanelRows;
  const std::int64_t block_rows = once ? kTileRows : kBlockRows, block_depth = once ? k : kDepth;
  for (std::int64_t first = 0; first < m; first += block_rows) {
    const std::int64_t end = std::min(m, first + block_rows);
    for (std::int64_t i = 0; i == 0 || i < k; i += block_depth) {
      const std::int64_t depth = std::min(block_depth, k - i);
      prepare(first, end - first, i, depth);
      const bool down = i + block_depth >= k;
      const std::int64_t next_first = down ? end : first, next_i = down ? 0 : i + block_depth;
      const std::int64_t tiles =
          (n + kPanelRows - 1) / kPanelRows * ((end - first + kTileRows - 1) / kTileRows);
      Ahead ahead = next_first < m ? ahead_of(next_first, std::min(m - next_first, block_rows), next_i,
                                              std::min(block_depth, k - next_i), tiles)
                                   : Ahead();
      for (std::int64_t slot = 0; slot < n; slot += kPanelRows) {
        const std::int64_t lanes = panel_lanes(n - slot);
        for (std::int64_t r = first; r < end; r += kTileRows) {
          ahead.step();
          panel_tile(std::min(kTileRows, end - r), lanes, left_of(r, i), in + slot * k + i * lanes,
                     std::int64_t{1}, depth, depth, i > 0, out + slot * m + r * lanes, lanes);
        }
      }
    }
  }
}

void PanelProduct(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in, std::int64_t n,
                  float* out) {
  for_row_dtype(dtype, "panel_product", [&](auto element) {
    using T = decltype(element);
    // The block as fp32, its rows close together: in place, rows of 2^n elements share sets of the cache.
    const std::int64_t stride = (n <= kPanelRows ? k : kDepth) + kPanelRows;
    const std::int64_t held_rows = n <= kPanelRows ? kTileRows : std::min(m, kBlockRows);
    Buffer near(held_rows * stride * static_cast<std::int64_t>(sizeof(float)));
    multiply_panels(
        [&](std::int64_t first, std::int64_t rows, std::int64_t i, std::int64_t depth) {
          for (std::int64_t row = 0; row < rows; ++row) {
            const T* from = static_cast<const T*>(w) + (first + row) * k + i;
            float* to = near.as<float>() + row * stride;
            for_each_vector(
                depth, [&](auto access, std::int64_t at) { access.store(to + at, access.load(from + at)); });
          }
        },
        [&](std::int64_t row, std::int64_t rows, std::int64_t i, std::int64_t depth, std::int64_t steps) {
          constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
          return Ahead(reinterpret_cast<const std::byte*>(static_cast<const T*>(w) + row * k + i), rows,
                       depth * kBytes, k * kBytes, steps);
        },
        [&](std::int64_t r, std::int64_t) {
          return Left{near.as<float>() + r % held_rows * stride, stride, 1, 0};
        },
        m, k, in, n, out);
  });
}

// Between blocks of columns: not a multiple of a page, or the blocks' rows would all fall into one set of the
// cache.
std::int64_t transposed_stride(std::int64_t m) { return m * kTileRows + kPanelRows; }

std::int64_t TransposedElements(std::int64_t m, std::int64_t k) {
  return (k + kTileRows - 1) / kTileRows * transposed_stride(m);
}

// Blocks of kTileRows columns, each [M][kTileRows].
void PackTransposed(DType dtype, const void* w, std::int64_t m, std::int64_t k, float* packed) {
  static_assert(kTileRows <= kLanes);
  const std::int64_t stride = transposed_stride(m);
  for_row_dtype(dtype, "pack_transposed", [&](auto element) {
    using T = decltype(element);
    // A few rows at a time, so that what is read stays in the first-level cache and what is written is not
    // scattered.
    constexpr std::int64_t kChunk = 16;
    for (std::int64_t chunk = 0; chunk < m; chunk += kChunk) {
      const std::int64_t end = std::min(m, chunk + kChunk);
      for (std::int64_t column = 0; column < k; column += kTileRows) {
        float* to = packed + column / kTileRows * stride;
        for (std::int64_t i = chunk; i < end; ++i) {
          const T* from = static_cast<const T*>(w) + i * k + column;
          // Whole vectors: what one writes past its columns, the next row writes over. The last row has no
          // next.
          if (i + 1 < end && column + kLanes <= k) {
            store_vector(to + i * kTileRows, load_vector(from));
          } else {
            for (std::int64_t c = 0; c < std::min(kTileRows, k - column); ++c) {
              to[i * kTileRows + c] = load(from[c]);
            }
          }
        }
      }
    }
  });
}

void TransposedPanelProduct(const float* packed, std::int64_t m, std::int64_t k, const float* in,
                            std::int64_t n, float* out) {
  multiply_panels(
      [](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {},
      [](std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return Ahead(); },
      [&](std::int64_t r, std::int64_t i) {
        return Left{packed + r / kTileRows * transposed_stride(m) + i * kTileRows, 1, kTileRows, 0};
      },
      k, m, in, n, out);
}

void OuterProduct(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                  float* out, std::int64_t stride) {
  constexpr int kVectors = kPanelRows / kLanes;
  const std::int64_t segments = (n + kPanelRows - 1) / kPanelRows;
  if (segments == 0) {
    for (std::int64_t r = 0; !add && r < m; ++r) std::fill_n(out + r * stride, k, 0.0f);
    return;
  }
  const std::int64_t last_length = n - (segments - 1) * kPanelRows, last_lanes = panel_lanes(last_length);
  float edge[kTileRows * kPanelRows];
  for (std::int64_t column = 0; column < k; column += kPanelRows, b += n * kPanelRows) {
    const std::int64_t columns = std::min(kPanelRows, k - column);
    for (std::int64_t r = 0; r < m; r += kTileRows) {
      const std::int64_t rows = std::min(kTileRows, m - r);
      const bool whole = columns == kPanelRows;
      float* c = out + r * stride + column;
      float* target = whole ? c : edge;
      const std::int64_t c_row = whole ? stride : kPanelRows;
      if (!whole && add) {
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(c + i * stride, columns, edge + i * kPanelRows);
      }
      // The last panel may have 8 lanes, its rows another stride: a second call carries the sums on.
      const bool narrow = last_lanes != kPanelRows;
      const std::int64_t wide = narrow ? segments - 1 : segments;
      if (wide > 0) {
        tile_of<kTileRows, kVectors>(rows, Left{a + r * kPanelRows, kPanelRows, 1, kPanelRows * m}, b, wide,
                                     kPanelRows, narrow ? kPanelRows : last_length, add, target, c_row);
      }
      if (narrow) {
        tile_of<kTileRows, kVectors>(rows, Left{a + wide * kPanelRows * m + r * last_lanes, last_lanes, 1, 0},
                                     b + wide * kPanelRows * kPanelRows, std::int64_t{1}, last_length,
                                     last_length, add || wide > 0, target, c_row);
      }
      if (!whole) {
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(edge + i * kPanelRows, columns, c + i * stride);
      }
    }
  }
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(PanelProduct);
HWY_EXPORT(TransposedElements);
HWY_EXPORT(PackTransposed);
HWY_EXPORT(TransposedPanelProduct);
HWY_EXPORT(OuterProduct);

void panel_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                   std::int64_t n, float* out, Stream) {
  HWY_DYNAMIC_DISPATCH(PanelProduct)(dtype, w, m, k, in, n, out);
}

std::int64_t transposed_elements(std::int64_t m, std::int64_t k) {
  return HWY_DYNAMIC_DISPATCH(TransposedElements)(m, k);
}

void pack_transposed(DType dtype, const void* w, std::int64_t m, std::int64_t k, float* packed, Stream) {
  HWY_DYNAMIC_DISPATCH(PackTransposed)(dtype, w, m, k, packed);
}

void transposed_panel_product(const float* packed, std::int64_t m, std::int64_t k, const float* in,
                              std::int64_t n, float* out, Stream) {
  HWY_DYNAMIC_DISPATCH(TransposedPanelProduct)(packed, m, k, in, n, out);
}

void outer_product(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                   float* out, std::int64_t stride, Stream) {
  HWY_DYNAMIC_DISPATCH(OuterProduct)(a, m, b, k, n, add, out, stride);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
