// One tile of the result stays in registers: kTileRows rows of the left factor times one panel. Per step of k
// it loads a panel row and broadcasts kTileRows elements, for 2 * kTileRows * 16 operations.
#include "moesaic/kernels/panels.h"

#include <algorithm>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/panels_simd.cc"
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

// The left factor is taken block by block: kBlockRows rows by kDepth columns stay in the second-level cache,
// and every panel comes past them once. prepare(r, rows, i, depth) is told of each block before left_of(r) is
// asked for its tiles, which begin at column i.
template <typename Prepare, typename LeftOf>
HWY_INLINE void multiply_panels(const Prepare& prepare, const LeftOf& left_of, std::int64_t m, std::int64_t k,
                                const float* in, std::int64_t n, float* out) {
  // A single panel uses every weight once: then they are read straight through, a tile's rows at a time.
  const bool once = n <= kPanelRows;
  const std::int64_t block_rows = once ? kTileRows : kBlockRows, block_depth = once ? k : kDepth;
  for (std::int64_t first = 0; first < m; first += block_rows) {
    const std::int64_t end = std::min(m, first + block_rows);
    for (std::int64_t i = 0; i == 0 || i < k; i += block_depth) {
      const std::int64_t depth = std::min(block_depth, k - i);
      prepare(first, end - first, i, depth);
      for (std::int64_t slot = 0; slot < n; slot += kPanelRows) {
        const std::int64_t lanes = panel_lanes(n - slot);
        for (std::int64_t r = first; r < end; r += kTileRows) {
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
    for (std::int64_t i = 0; i < m; ++i) {
      const T* from = static_cast<const T*>(w) + i * k;
      // Whole vectors: what one writes past its columns, the next row writes over. The last row has no next.
      const std::int64_t by_vector = i + 1 < m ? k - kLanes : -1;
      std::int64_t column = 0;
      for (; column <= by_vector; column += kTileRows) {
        store_vector(packed + column / kTileRows * stride + i * kTileRows, load_vector(from + column));
      }
      for (; column < k; column += kTileRows) {
        float* to = packed + column / kTileRows * stride + i * kTileRows;
        for (std::int64_t c = 0; c < std::min(kTileRows, k - column); ++c) to[c] = load(from[column + c]);
      }
    }
  });
}

void TransposedPanelProduct(const float* packed, std::int64_t m, std::int64_t k, const float* in,
                            std::int64_t n, float* out) {
  multiply_panels(
      [](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {},
      [&](std::int64_t r, std::int64_t i) {
        return Left{packed + r / kTileRows * transposed_stride(m) + i * kTileRows, 1, kTileRows, 0};
      },
      k, m, in, n, out);
}

void OuterProduct(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                  float* out) {
  constexpr int kVectors = kPanelRows / kLanes;
  const std::int64_t segments = (n + kPanelRows - 1) / kPanelRows;
  if (segments == 0) {
    if (!add) std::fill_n(out, m * k, 0.0f);
    return;
  }
  const std::int64_t last_length = n - (segments - 1) * kPanelRows, last_lanes = panel_lanes(last_length);
  float edge[kTileRows * kPanelRows];
  for (std::int64_t column = 0; column < k; column += kPanelRows, b += n * kPanelRows) {
    const std::int64_t columns = std::min(kPanelRows, k - column);
    for (std::int64_t r = 0; r < m; r += kTileRows) {
      const std::int64_t rows = std::min(kTileRows, m - r);
      const bool whole = columns == kPanelRows;
      float* c = out + r * k + column;
      float* target = whole ? c : edge;
      const std::int64_t c_row = whole ? k : kPanelRows;
      if (!whole && add) {
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(c + i * k, columns, edge + i * kPanelRows);
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
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(edge + i * kPanelRows, columns, c + i * k);
      }
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
using Quad = hn::Full128<float>;
using QuadVector = hn::Vec<Quad>;

inline QuadVector load_quad(const float* from) { return hn::LoadU(Quad(), from); }
inline QuadVector load_quad(const BF16* from) {
  const hn::Rebind<std::uint32_t, Quad> u32;
  const hn::Rebind<std::uint16_t, Quad> u16;
  return hn::BitCast(Quad(), hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, &from->bits))));
}

HWY_INLINE void transpose_quad(QuadVector (&v)[4]) {
  const Quad d;
  const auto low01 = hn::InterleaveLower(d, v[0], v[1]), high01 = hn::InterleaveUpper(d, v[0], v[1]);
  const auto low23 = hn::InterleaveLower(d, v[2], v[3]), high23 = hn::InterleaveUpper(d, v[2], v[3]);
  v[0] = hn::ConcatLowerLower(d, low23, low01);
  v[1] = hn::ConcatUpperUpper(d, low23, low01);
  v[2] = hn::ConcatLowerLower(d, high23, high01);
  v[3] = hn::ConcatUpperUpper(d, high23, high01);
}

#endif

// to[i * to_stride + j] = from[j][i] for j < 4, i < width.
template <typename T>
HWY_INLINE void transpose_four(const T* const* from, std::int64_t width, float* to, std::int64_t to_stride) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= width; i += 4) {
    QuadVector v[4];
    for (int j = 0; j < 4; ++j) v[j] = load_quad(from[j] + i);
    transpose_quad(v);
    for (int j = 0; j < 4; ++j) hn::StoreU(v[j], Quad(), to + (i + j) * to_stride);
  }
#endif
  for (; i < width; ++i) {
    for (int j = 0; j < 4; ++j) to[i * to_stride + j] = load(from[j][i]);
  }
}

template <typename T>
void pack_one(const T* rows, const std::int64_t* row, const float* scale, std::int64_t count,
              std::int64_t lanes, std::int64_t width, float* panel) {
  // Blocks keep what is written in the first-level cache until every lane is there.
  constexpr std::int64_t kBlock = 256;
  for (std::int64_t begin = 0; begin < width; begin += kBlock) {
    const std::int64_t block = std::min(kBlock, width - begin);
    float* to = panel + begin * lanes;
    for (std::int64_t lane = 0; lane < lanes; lane += 4) {
      if (lane >= count) break;
      const T* from[4];
      for (std::int64_t j = 0; j < 4; ++j) {
        from[j] = rows + row[std::min(lane + j, count - 1)] * width + begin;
      }
      transpose_four(from, block, to + lane, lanes);
    }
    if (scale != nullptr) {  // in fp32, rounded once, as permute_rows_scaled
      Vector factor[kPanelRows / kLanes];
      float padded[kPanelRows] = {};
      std::copy_n(scale, count, padded);
      const std::int64_t vectors = lanes / kLanes;
      for (std::int64_t v = 0; v < vectors; ++v) factor[v] = load_vector(padded + v * kLanes);
      for (std::int64_t i = 0; i < block; ++i) {
        for (std::int64_t v = 0; v < vectors; ++v) {
          float* at = to + i * lanes + v * kLanes;
          store_vector(at, rounded_to<T>(hn::Mul(factor[v], load_vector(at))));
        }
      }
    }
    for (std::int64_t lane = count; lane < lanes; ++lane) {
      for (std::int64_t i = 0; i < block; ++i) to[i * lanes + lane] = 0;
    }
  }
}

void PackPanels(DType dtype, const void* rows, const std::int64_t* row, const float* scale, std::int64_t n,
                std::int64_t width, float* panels) {
  for_row_dtype(dtype, "pack_panels", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < n; i += kPanelRows) {
      pack_one(static_cast<const T*>(rows), row + i, scale == nullptr ? nullptr : scale + i,
               std::min(kPanelRows, n - i), panel_lanes(n - i), width, panels + i * width);
    }
  });
}

// to[j][i] = from[i * from_stride + j] for j < 4, i < width.
template <typename T>
HWY_INLINE void untranspose_four(const float* from, std::int64_t from_stride, std::int64_t width,
                                 T* const* to) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= width; i += 4) {
    QuadVector v[4];
    for (int j = 0; j < 4; ++j) v[j] = hn::LoadU(Quad(), from + (i + j) * from_stride);
    transpose_quad(v);
    for (int j = 0; j < 4; ++j) {
      if constexpr (sizeof(T) == sizeof(float)) {
        hn::StoreU(v[j], Quad(), to[j] + i);
      } else {
        float wide[4];
        hn::StoreU(v[j], Quad(), wide);
        for (int l = 0; l < 4; ++l) store(to[j][i + l], wide[l]);
      }
    }
  }
#endif
  for (; i < width; ++i) {
    for (int j = 0; j < 4; ++j) store(to[j][i], from[i * from_stride + j]);
  }
}

void UnpackPanels(DType dtype, const float* panels, std::int64_t n, std::int64_t width, void* rows) {
  for_row_dtype(dtype, "unpack_panels", [&](auto element) {
    using T = decltype(element);
    std::vector<T> unused(static_cast<std::size_t>(width));
    for (std::int64_t begin = 0; begin < n; begin += kPanelRows) {
      const std::int64_t lanes = panel_lanes(n - begin);
      for (std::int64_t lane = 0; lane < std::min(kPanelRows, n - begin); lane += 4) {
        T* to[4];
        for (std::int64_t j = 0; j < 4; ++j) {
          const std::int64_t i = begin + lane + j;
          to[j] = i < n ? static_cast<T*>(rows) + i * width : unused.data();
        }
        untranspose_four(panels + begin * width + lane, lanes, width, to);
      }
    }
  });
}

void PackColumns(DType dtype, const void* rows, const std::int64_t* row, std::int64_t n, std::int64_t width,
                 float* columns) {
  for_row_dtype(dtype, "pack_columns", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < n; ++i) {
      const T* from = static_cast<const T*>(rows) + row[i] * width;
      for (std::int64_t column = 0; column < width; column += kPanelRows) {
        float* to = columns + column * n + i * kPanelRows;
        const std::int64_t count = std::min(kPanelRows, width - column);
        if (count < kPanelRows) std::fill_n(to, kPanelRows, 0.0f);
        for_each_vector(count, [&](auto access, std::int64_t at) {
          access.store(to + at, access.load(from + column + at));
        });
      }
    }
  });
}

void ColumnsOfPanels(const float* panels, std::int64_t n, std::int64_t width, float* columns) {
  for (std::int64_t begin = 0; begin < n; begin += kPanelRows) {
    const std::int64_t lanes = panel_lanes(n - begin), count = std::min(kPanelRows, n - begin);
    for (std::int64_t column = 0; column < width; column += kPanelRows) {
      const float* from = panels + begin * width + column * lanes;
      float* to = columns + column * n + begin * kPanelRows;
      const std::int64_t columns_here = std::min(kPanelRows, width - column);
      if (columns_here == kPanelRows && count == kPanelRows) {
        for (std::int64_t lane = 0; lane < kPanelRows; lane += 4) {
          float* rows[4];
          for (std::int64_t j = 0; j < 4; ++j) rows[j] = to + (lane + j) * kPanelRows;
          untranspose_four(from + lane, lanes, kPanelRows, rows);
        }
        continue;
      }
      for (std::int64_t lane = 0; lane < count; ++lane) {
        for (std::int64_t c = 0; c < kPanelRows; ++c) {
          to[lane * kPanelRows + c] = c < columns_here ? from[c * lanes + lane] : 0;
        }
      }
    }
  }
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(PackPanels);
HWY_EXPORT(UnpackPanels);
HWY_EXPORT(PanelProduct);
HWY_EXPORT(TransposedElements);
HWY_EXPORT(PackTransposed);
HWY_EXPORT(TransposedPanelProduct);
HWY_EXPORT(PackColumns);
HWY_EXPORT(ColumnsOfPanels);
HWY_EXPORT(OuterProduct);

void pack_panels(DType dtype, const void* rows, const std::int64_t* row, const float* scale, std::int64_t n,
                 std::int64_t width, float* panels, Stream) {
  HWY_DYNAMIC_DISPATCH(PackPanels)(dtype, rows, row, scale, n, width, panels);
}

void unpack_panels(DType dtype, const float* panels, std::int64_t n, std::int64_t width, void* rows, Stream) {
  HWY_DYNAMIC_DISPATCH(UnpackPanels)(dtype, panels, n, width, rows);
}

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

void pack_columns(DType dtype, const void* rows, const std::int64_t* row, std::int64_t n, std::int64_t width,
                  float* columns, Stream) {
  HWY_DYNAMIC_DISPATCH(PackColumns)(dtype, rows, row, n, width, columns);
}

void columns_of_panels(const float* panels, std::int64_t n, std::int64_t width, float* columns, Stream) {
  HWY_DYNAMIC_DISPATCH(ColumnsOfPanels)(panels, n, width, columns);
}

void outer_product(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                   float* out, Stream) {
  HWY_DYNAMIC_DISPATCH(OuterProduct)(a, m, b, k, n, add, out);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
