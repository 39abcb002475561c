// One tile of the result stays in registers: kTileRows rows of the left factor times one panel. Per step of k
// it loads a panel row and broadcasts kTileRows elements, for 2 * kTileRows * 16 operations.
#include "moesaic/kernels/panels.h"

#include <algorithm>
#include <type_traits>

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

// The left factor: element (r, i) at data[r * row + i * step].
struct Left {
  const float* data;
  std::int64_t row, step;
};

// c[r] (row stride c_row) = (add ? c[r] : 0) + sum over i < length of left(r, i) * right[i]; the right
// factor's rows of kVectors vectors lie back to back.
template <int kRows, int kVectors>
HWY_INLINE void tile(const Left& left, const float* right, std::int64_t length, bool add, float* c,
                     std::int64_t c_row) {
  Vector sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = add ? load_vector(c + r * c_row + v * kLanes) : hn::Zero(F32());
    }
  }
  const float* a = left.data;
  for (std::int64_t i = 0; i < length; ++i, a += left.step, right += kVectors * kLanes) {
    Vector b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = load_vector(right + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vector x = hn::Set(F32(), a[r * left.row]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, b[v], sum[r][v]);
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

// Rows and columns of the left factor that are made ready at once.
struct Block {
  std::int64_t rows, depth;
};

// The left factor is taken block by block: kBlockRows rows by kDepth columns stay in the second-level cache,
// and every panel comes past them once. prepare(r, rows, i, depth) is told of each block before left_of(r) is
// asked for its tiles, which begin at column i; ahead_of(r, rows, i, depth, steps) gives the Ahead of the
// next block.
template <typename Prepare, typename NextBlock, typename LeftOf>
HWY_INLINE void multiply_panels(Block block, const Prepare& prepare, const NextBlock& ahead_of,
                                const LeftOf& left_of, std::int64_t m, std::int64_t k, const float* in,
                                std::int64_t n, float* out) {
  for (std::int64_t first = 0; first < m; first += block.rows) {
    const std::int64_t end = std::min(m, first + block.rows);
    for (std::int64_t i = 0; i == 0 || i < k; i += block.depth) {
      const std::int64_t depth = std::min(block.depth, k - i);
      prepare(first, end - first, i, depth);
      const bool down = i + block.depth >= k;
      const std::int64_t next_first = down ? end : first, next_i = down ? 0 : i + block.depth;
      const std::int64_t tiles =
          (n + kPanelRows - 1) / kPanelRows * ((end - first + kTileRows - 1) / kTileRows);
      Ahead ahead = next_first < m ? ahead_of(next_first, std::min(m - next_first, block.rows), next_i,
                                              std::min(block.depth, k - next_i), tiles)
                                   : Ahead();
      for (std::int64_t slot = 0; slot < n; slot += kPanelRows) {
        const std::int64_t lanes = panel_lanes(n - slot);
        for (std::int64_t r = first; r < end; r += kTileRows) {
          ahead.step();
          panel_tile(std::min(kTileRows, end - r), lanes, left_of(r), in + slot * k + i * lanes, depth, i > 0,
                     out + slot * m + r * lanes, lanes);
        }
      }
    }
  }
}

void PanelProduct(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in, std::int64_t n,
                  float* out) {
  for_row_dtype(dtype, "panel_product", [&](auto element) {
    using T = decltype(element);
    // A single panel uses every weight once: then they are read straight through, a tile's rows at a time.
    const Block block = n <= kPanelRows ? Block{kTileRows, k} : Block{kBlockRows, kDepth};
    // The block as fp32, its rows close together: in place, rows of 2^n elements share sets of the cache.
    const std::int64_t stride = block.depth + kPanelRows, held_rows = std::min(m, block.rows);
    Buffer near(held_rows * stride * static_cast<std::int64_t>(sizeof(float)));
    multiply_panels(
        block,
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
        [&](std::int64_t r) {
          return Left{near.as<float>() + r % block.rows * stride, stride, 1};
        },
        m, k, in, n, out);
  });
}

// A block of the transpose, `rows` columns of w by `depth` of its rows, in tiles [depth][kTileRows] that lie
// kTransposedTile apart: not a multiple of a page, or they would share sets of the cache.
constexpr std::int64_t kTransposedTile = kTileRows * kDepth + kPanelRows;

template <typename T>
HWY_INLINE void pack_transposed(const T* w, std::int64_t row_elements, std::int64_t columns_left,
                                std::int64_t rows, std::int64_t depth, float* tiles) {
  static_assert(kTileRows <= kLanes);
  for (std::int64_t i = 0; i < depth; ++i, w += row_elements) {
    float* to = tiles + i * kTileRows;
    std::int64_t r = 0;
    // Whole vectors: what one writes past its tile's columns, the next row writes over.
    for (; r < rows && r + kLanes <= columns_left; r += kTileRows, to += kTransposedTile) {
      store_vector(to, load_vector(w + r));
    }
    for (; r < rows; r += kTileRows, to += kTransposedTile) {
      for (std::int64_t c = 0; c < std::min(kTileRows, rows - r); ++c) to[c] = load(w[r + c]);
    }
  }
}

void TransposedPanelProduct(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                            std::int64_t n, float* out) {
  for_row_dtype(dtype, "transposed_panel_product", [&](auto element) {
    using T = decltype(element);
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
    const T* matrix = static_cast<const T*>(w);
    const std::int64_t held_tiles = (std::min(k, kBlockRows) + kTileRows - 1) / kTileRows;
    Buffer near(held_tiles * kTransposedTile * static_cast<std::int64_t>(sizeof(float)));
    multiply_panels(
        Block{kBlockRows, kDepth},
        [&](std::int64_t first, std::int64_t rows, std::int64_t i, std::int64_t depth) {
          pack_transposed(matrix + i * k + first, k, k - first, rows, depth, near.as<float>());
        },
        [&](std::int64_t first, std::int64_t rows, std::int64_t i, std::int64_t depth, std::int64_t steps) {
          return Ahead(reinterpret_cast<const std::byte*>(matrix + i * k + first), depth, rows * kBytes,
                       k * kBytes, steps);
        },
        [&](std::int64_t r) {
          return Left{near.as<float>() + r % kBlockRows / kTileRows * kTransposedTile, 1, kTileRows};
        },
        k, m, in, n, out);
  });
}

// Known when compiled: or the compiler copies a few lanes by a call.
template <std::int64_t kCount>
using Lanes = std::integral_constant<std::int64_t, kCount>;

void OuterProduct(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                  float* out, std::int64_t stride) {
  constexpr int kVectors = kPanelRows / kLanes;
  if (n == 0) {
    for (std::int64_t r = 0; !add && r < m; ++r) std::fill_n(out + r * stride, k, 0.0f);
    return;
  }
  // A tile's rows of all panels side by side: in place, panels of 2^n rows share sets of the cache.
  Buffer near(kTileRows * (n + kPanelRows) * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t row = n + kPanelRows;
  float edge[kTileRows * kPanelRows];
  const auto copy = [&](const float* from, std::int64_t rows, auto lanes, float* to) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t v = 0; v < lanes; v += kLanes) {
        store_vector(to + i * row + v, load_vector(from + i * lanes + v));
      }
    }
  };
  for (std::int64_t r = 0; r < m; r += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, m - r);
    for (std::int64_t slot = 0; slot < n; slot += kPanelRows) {
      const float* from = a + slot * m;
      float* to = near.as<float>() + slot;
      if (panel_lanes(n - slot) == kPanelRows) {
        copy(from + r * kPanelRows, rows, Lanes<kPanelRows>(), to);
      } else {
        copy(from + r * kPanelRows / 2, rows, Lanes<kPanelRows / 2>(), to);
      }
    }
    const Left left{near.as<float>(), row, 1};
    for (std::int64_t column = 0; column < k; column += kPanelRows) {
      const float* right = b + column * n;
      float* c = out + r * stride + column;
      const std::int64_t columns = std::min(kPanelRows, k - column);
      if (columns == kPanelRows) {
        tile_of<kTileRows, kVectors>(rows, left, right, n, add, c, stride);
        continue;
      }
      for (std::int64_t i = 0; add && i < rows; ++i) {
        std::copy_n(c + i * stride, columns, edge + i * kPanelRows);
      }
      tile_of<kTileRows, kVectors>(rows, left, right, n, add, &edge[0], kPanelRows);
      for (std::int64_t i = 0; i < rows; ++i) std::copy_n(edge + i * kPanelRows, columns, c + i * stride);
    }
  }
}

void RowProduct(const float* rows, std::int64_t n, std::int64_t k, const float* panels, std::int64_t m,
                float* out) {
  float edge[kTileRows * kPanelRows];
  for (std::int64_t r = 0; r < n; r += kTileRows) {
    const std::int64_t count = std::min(kTileRows, n - r);
    const Left left{rows + r * k, k, 1};
    for (std::int64_t column = 0; column < m; column += kPanelRows) {
      const std::int64_t lanes = panel_lanes(m - column), columns = std::min(lanes, m - column);
      float* c = out + r * m + column;
      if (columns == lanes) {
        panel_tile(count, lanes, left, panels + column * k, k, false, c, m);
        continue;
      }
      panel_tile(count, lanes, left, panels + column * k, k, false, &edge[0], lanes);
      for (std::int64_t i = 0; i < count; ++i) std::copy_n(edge + i * lanes, columns, c + i * m);
    }
  }
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(PanelProduct);
HWY_EXPORT(TransposedPanelProduct);
HWY_EXPORT(OuterProduct);
HWY_EXPORT(RowProduct);

void panel_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                   std::int64_t n, float* out, Stream) {
  HWY_DYNAMIC_DISPATCH(PanelProduct)(dtype, w, m, k, in, n, out);
}

void transposed_panel_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                              std::int64_t n, float* out, Stream) {
  HWY_DYNAMIC_DISPATCH(TransposedPanelProduct)(dtype, w, m, k, in, n, out);
}

void outer_product(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                   float* out, std::int64_t stride, Stream) {
  HWY_DYNAMIC_DISPATCH(OuterProduct)(a, m, b, k, n, add, out, stride);
}

void row_product(const float* rows, std::int64_t n, std::int64_t k, const float* panels, std::int64_t m,
                 float* out, Stream) {
  HWY_DYNAMIC_DISPATCH(RowProduct)(rows, n, k, panels, m, out);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
