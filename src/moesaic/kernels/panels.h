// panels.h: products of an expert's matrices with its rows, 16 rows side by side.
//
// A panel holds up to 16 rows transposed, [width][lanes]: one vector register holds one element of many rows.
// Weights are then read in the order they lie in, neither packed nor transposed for the forward pass, and an
// element of the result is one chain of multiply-adds over k in ascending order: its bits depend neither on
// how many rows there are nor on where a row stands. (Fused multiply-adds where the CPU has them; bits differ
// between a CPU that has and one that has not.)
//
// Local, one thread. n slots lie in ceil(n/16) panels of 16 lanes, the last of 8 lanes where it holds 8 rows
// or fewer; panel p begins at element p*16*width. Lanes without a row are 0 in packed panels, anything in
// products. Panels are fp32; rows and weights fp32 or bf16 (`dtype`), rounded once on the way out.
// Source: register tiling as in BLIS (Van Zee and van de Geijn, 2015).
#pragma once

#include <algorithm>
#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

inline constexpr std::int64_t kPanelRows = 16;

// Lanes of a panel that holds the last `rows_left` rows.
inline std::int64_t panel_lanes(std::int64_t rows_left) { return rows_left > kPanelRows / 2 ? 16 : 8; }

// Elements of the panels of n slots.
inline std::int64_t panel_elements(std::int64_t n, std::int64_t width) {
  const std::int64_t full = n / kPanelRows, rest = n % kPanelRows;
  return width * (full * kPanelRows + (rest > 0 ? panel_lanes(rest) : 0));
}

// Slot i of the panels = round(scale[i] * rows[row[i]]), or the row itself where scale is null. rows
// [*,width].
void pack_panels(DType dtype, const void* rows, const std::int64_t* row, const float* scale, std::int64_t n,
                 std::int64_t width, float* panels, Stream stream = {});

// The way back: rows [n,width], slot i in row i.
void unpack_panels(DType dtype, const float* panels, std::int64_t n, std::int64_t width, void* rows,
                   Stream stream = {});

// out [M] = w in [K], for every slot: w [M,K] row-major.
void panel_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                   std::int64_t n, float* out, Stream stream = {});

// out [K] = w^T in [M], for every slot: w [M,K] row-major.
void transposed_panel_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                              std::int64_t n, float* out, Stream stream = {});

// Columns: the layout of the right factor of outer_product: [ceil(width/16)][n][16], padded with 0.
inline std::int64_t column_elements(std::int64_t n, std::int64_t width) {
  return (width + kPanelRows - 1) / kPanelRows * kPanelRows * n;
}
void pack_columns(DType dtype, const void* rows, const std::int64_t* row, std::int64_t n, std::int64_t width,
                  float* columns, Stream stream = {});
void columns_of_panels(const float* panels, std::int64_t n, std::int64_t width, float* columns,
                       Stream stream = {});

// out [M,K] (+)= sum over slots, in order, of a[slot] b[slot]^T: a in panels of width M, b in columns of
// width K. Where `add` is false, out starts from 0. Rows of out are `stride` elements apart: columns may be
// made a few at a time.
void outer_product(const float* a, std::int64_t m, const float* b, std::int64_t k, std::int64_t n, bool add,
                   float* out, std::int64_t stride, Stream stream = {});

// out [n,M] = rows [n,K] w^T, all fp32, w [M,K] in panels (pack_panels): for many rows and few columns, rows
// are multiplied where they lie. The same chains: the bits of a row do not depend on the others.
void row_product(const float* rows, std::int64_t n, std::int64_t k, const float* panels, std::int64_t m,
                 float* out, Stream stream = {});

}  // namespace moesaic::kernels
