// Rows into panels and columns, and back: transposes of four by four.
#include "moesaic/kernels/panels.h"

#include <algorithm>

#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/panel_layout_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

constexpr std::int64_t kLanes = hn::MaxLanes(F32());

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
HWY_INLINE void untranspose_four(const float* from, std::int64_t from_stride, std::int64_t width,
                                 float* const* to) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= width; i += 4) {
    QuadVector v[4];
    for (int j = 0; j < 4; ++j) v[j] = hn::LoadU(Quad(), from + (i + j) * from_stride);
    transpose_quad(v);
    for (int j = 0; j < 4; ++j) hn::StoreU(v[j], Quad(), to[j] + i);
  }
#endif
  for (; i < width; ++i) {
    for (int j = 0; j < 4; ++j) to[j][i] = from[i * from_stride + j];
  }
}

void UnpackPanels(DType dtype, const float* panels, std::int64_t n, std::int64_t width, void* rows) {
  for_row_dtype(dtype, "unpack_panels", [&](auto element) {
    using T = decltype(element);
    // What is not fp32 is transposed first, a piece of four rows that stays in the first-level cache, and
    // rounded by whole vectors; so is what has no row.
    constexpr std::int64_t kPiece = 256;
    float wide[4][kPiece];
    for (std::int64_t begin = 0; begin < n; begin += kPanelRows) {
      const std::int64_t lanes = panel_lanes(n - begin);
      for (std::int64_t lane = 0; lane < std::min(kPanelRows, n - begin); lane += 4) {
        for (std::int64_t column = 0; column < width; column += kPiece) {
          const std::int64_t piece = std::min(kPiece, width - column);
          T* to[4];
          float* untransposed[4];
          for (std::int64_t j = 0; j < 4; ++j) {
            const std::int64_t i = begin + lane + j;
            to[j] = i < n ? static_cast<T*>(rows) + i * width + column : nullptr;
            untransposed[j] = wide[j];
            if constexpr (sizeof(T) == sizeof(float)) {
              if (to[j] != nullptr) untransposed[j] = to[j];
            }
          }
          untranspose_four(panels + begin * width + column * lanes + lane, lanes, piece, untransposed);
          if constexpr (sizeof(T) == sizeof(float)) continue;
          for (int j = 0; j < 4; ++j) {
            if (to[j] == nullptr) continue;
            for_each_vector(piece, [&](auto access, std::int64_t at) {
              access.store(to[j] + at, access.load(wide[j] + at));
            });
          }
        }
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
HWY_EXPORT(PackColumns);
HWY_EXPORT(ColumnsOfPanels);

void pack_panels(DType dtype, const void* rows, const std::int64_t* row, const float* scale, std::int64_t n,
                 std::int64_t width, float* panels, Stream) {
  HWY_DYNAMIC_DISPATCH(PackPanels)(dtype, rows, row, scale, n, width, panels);
}

void unpack_panels(DType dtype, const float* panels, std::int64_t n, std::int64_t width, void* rows, Stream) {
  HWY_DYNAMIC_DISPATCH(UnpackPanels)(dtype, panels, n, width, rows);
}

void pack_columns(DType dtype, const void* rows, const std::int64_t* row, std::int64_t n, std::int64_t width,
                  float* columns, Stream) {
  HWY_DYNAMIC_DISPATCH(PackColumns)(dtype, rows, row, n, width, columns);
}

void columns_of_panels(const float* panels, std::int64_t n, std::int64_t width, float* columns, Stream) {
  HWY_DYNAMIC_DISPATCH(ColumnsOfPanels)(panels, n, width, columns);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
