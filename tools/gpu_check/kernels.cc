#include <cmath>
#include <cstring>

#include "moesaic/core/bf16.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/kernels/cuda.h"
#include "moesaic/kernels/reference.h"
#include "tools/gpu_check/device.h"

namespace moesaic::gpu_check {
namespace {

namespace oracle = kernels::reference;
namespace twin = kernels::cuda;
using Bytes = std::vector<std::uint8_t>;

struct Shape {
  std::int64_t rows, width;
};
constexpr Shape kShapes[] = {{0, 64}, {1, 0}, {1, 1}, {7, 33}, {33, 127}, {129, 8}, {515, 512}};

void set(DType dtype, Bytes& bytes, std::int64_t i, float value) {
  if (dtype == DType::kF32) return static_cast<void>(std::memcpy(bytes.data() + 4 * i, &value, 4));
  const BF16 rounded = to_bf16(value);
  std::memcpy(bytes.data() + 2 * i, &rounded, 2);
}

float get(DType dtype, const Bytes& bytes, std::int64_t i) {
  float value;
  BF16 half;
  if (dtype == DType::kF32) return std::memcpy(&value, bytes.data() + 4 * i, 4), value;
  return std::memcpy(&half, bytes.data() + 2 * i, 2), to_float(half);
}

Bytes random_rows(DType dtype, std::int64_t n, std::uint64_t seed) {
  Bytes bytes(static_cast<std::size_t>(n * size_of(dtype)));
  const std::uint64_t key = random_key(seed, "gpu_check");
  for (std::int64_t i = 0; i < n; ++i)
    set(dtype, bytes, i, random_normal(key, static_cast<std::uint64_t>(i)));
  return bytes;
}

// Rows with 0 to 3 slots each, or `k` where it is more than 0, sorted by expert.
struct Slots {
  std::vector<std::int64_t> begin{0}, position;
  std::vector<std::int32_t> expert;
  std::vector<float> weight;

  Slots(std::int64_t rows, std::int64_t experts, std::int64_t k) {
    const std::uint64_t key = random_key(3, "slots");
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < (k > 0 ? k : i % 4); ++j) {
        expert.push_back(
            static_cast<std::int32_t>(random_bits(key, expert.size()) % static_cast<std::uint64_t>(experts)));
        weight.push_back(random_normal(key, expert.size(), 1));
      }
      begin.push_back(static_cast<std::int64_t>(expert.size()));
    }
    std::vector<std::int64_t> expert_begin(static_cast<std::size_t>(experts) + 1);
    position.resize(expert.size());
    oracle::counting_permute(expert.data(), size(), experts, expert_begin.data(), position.data());
  }
  std::int64_t size() const { return static_cast<std::int64_t>(expert.size()); }
};

void check_top_k(Report& report) {
  const std::uint64_t key = random_key(1, "scores");
  for (const std::int64_t rows : {0, 1, 9, 1000}) {
    for (const std::int64_t n : {1, 7, 32, 64, 65, 300}) {
      for (const std::int64_t k : {1, 2, 8, 40}) {
        if (k > n) continue;
        std::vector<float> scores(static_cast<std::size_t>(rows * n)),
            values(static_cast<std::size_t>(rows * k));
        for (std::size_t i = 0; i < scores.size(); ++i)
          scores[i] = static_cast<float>(random_bits(key, i) % 37) - 9;
        std::vector<std::int32_t> ids(values.size());
        const OnDevice<float> from(scores), to(values.size());
        const OnDevice<std::int32_t> to_ids(ids.size());
        twin::top_k(from.data(), rows, n, k, to_ids.data(), to.data());
        oracle::top_k(scores.data(), rows, n, k, ids.data(), values.data());
        report.expect(to_ids.host() == ids && to.host() == values,
                      fmt::format("top_k {} x {}, k {}", rows, n, k));
      }
    }
  }
  constexpr std::int64_t kRows = 1 << 18, kExperts = 64, kK = 8;
  const OnDevice<float> scores(kRows * kExperts), values(kRows * kK);
  const OnDevice<std::int32_t> ids(kRows * kK);
  check(cudaMemset(scores.data(), 0, kRows * kExperts * 4), "cudaMemset");
  report.speed("top_k 262144 x 64, k 8", kRows * (kExperts * 4.0 + kK * 8.0),
               [&] { twin::top_k(scores.data(), kRows, kExperts, kK, ids.data(), values.data()); });
}

void check_counting_permute(Report& report) {
  for (const std::int64_t rows : {0, 1, 5, 100, 3001, 150000}) {
    for (const std::int64_t experts : {1, 3, 64, 129}) {
      const Slots slots(rows, experts, 0);
      std::vector<std::int64_t> begin(static_cast<std::size_t>(experts) + 1), position(slots.position.size());
      const OnDevice<std::int32_t> expert(slots.expert);
      const OnDevice<std::int64_t> to_begin(begin.size()), to(position.size());
      twin::counting_permute(expert.data(), slots.size(), experts, to_begin.data(), to.data());
      oracle::counting_permute(slots.expert.data(), slots.size(), experts, begin.data(), position.data());
      report.expect(to_begin.host() == begin && to.host() == position,
                    fmt::format("counting_permute {} slots, {} experts", slots.size(), experts));
    }
  }
  const Slots slots(1 << 17, 64, 8);
  const OnDevice<std::int32_t> expert(slots.expert);
  const OnDevice<std::int64_t> begin(65), position(slots.position.size());
  report.speed(
      "counting_permute 1048576 slots, 64 experts", static_cast<double>(slots.size()) * (4 + 4 + 8),
      [&] { twin::counting_permute(expert.data(), slots.size(), 64, begin.data(), position.data()); });
}

void check_rows(Report& report, DType dtype, const Shape& shape) {
  const Slots slots(shape.rows, 5, 0);
  const auto what = fmt::format("{} x {} {}", shape.rows, shape.width, name_of(dtype));
  const OnDevice<std::int64_t> begin(slots.begin), position(slots.position);
  const OnDevice<float> weight(slots.weight);
  const Bytes rows = random_rows(dtype, shape.rows * shape.width, 1);
  const OnDevice<std::uint8_t> from(rows);
  Bytes y(static_cast<std::size_t>(slots.size() * shape.width * size_of(dtype)));
  const OnDevice<std::uint8_t> to(y.size());
  twin::permute_rows_scaled(dtype, from.data(), begin.data(), position.data(), weight.data(), shape.rows,
                            shape.width, to.data());
  oracle::permute_rows_scaled(dtype, rows.data(), slots.begin.data(), slots.position.data(),
                              slots.weight.data(), shape.rows, shape.width, y.data());
  report.expect(to.host() == y, "permute_rows_scaled " + what);
  twin::permute_rows(dtype, from.data(), begin.data(), position.data(), shape.rows, shape.width, to.data());
  oracle::permute_rows(dtype, rows.data(), slots.begin.data(), slots.position.data(), shape.rows, shape.width,
                       y.data());
  report.expect(to.host() == y, "permute_rows " + what);

  Bytes sums(rows.size());
  const OnDevice<std::uint8_t> to_sums(sums.size());
  for (const bool weighted : {false, true}) {
    twin::ordered_weighted_sum(dtype, to.data(), begin.data(), position.data(),
                               weighted ? weight.data() : nullptr, shape.rows, shape.width, to_sums.data());
    oracle::ordered_weighted_sum(dtype, y.data(), slots.begin.data(), slots.position.data(),
                                 weighted ? slots.weight.data() : nullptr, shape.rows, shape.width, dtype,
                                 sums.data());
    report.expect(to_sums.host() == sums, (weighted ? "ordered_weighted_sum " : "ordered sum ") + what);
  }
  std::vector<float> dots(slots.position.size());
  const OnDevice<float> to_dots(dots.size());
  twin::slot_dots(dtype, from.data(), to.data(), begin.data(), position.data(), shape.rows, shape.width,
                  to_dots.data());
  oracle::slot_dots(dtype, rows.data(), y.data(), slots.begin.data(), slots.position.data(), shape.rows,
                    shape.width, dots.data());
  report.expect(to_dots.host() == dots, "slot_dots " + what);
}

// activation.h's promise, with a step of the row's type for the rounding; `scale` times 2^-21 where a slope
// is near 0.
bool close(DType dtype, float got, float expected, double scale) {
  const double ulp = std::abs(double{expected}) * (dtype == DType::kF32 ? 0x1p-23 : 0x1p-7);
  const double steps = dtype == DType::kF32 ? 4 : 1;
  return std::abs(double{got} - double{expected}) <= steps * ulp + scale * 0x1p-21 + 0x1p-140;
}

void check_swiglu(Report& report, DType dtype, const Shape& shape) {
  const auto [rows, width] = shape;
  const auto what = fmt::format("{} x {} {}", rows, width, name_of(dtype));
  const Bytes in = random_rows(dtype, rows * 2 * width, 4), dh = random_rows(dtype, rows * width, 5);
  Bytes h(dh.size()), din(in.size());
  const OnDevice<std::uint8_t> from(in), grads(dh), to(h.size()), to_din(din.size());
  twin::swiglu(dtype, from.data(), rows, width, to.data());
  twin::swiglu_backward(dtype, from.data(), grads.data(), rows, width, to_din.data());
  oracle::swiglu(dtype, in.data(), rows, width, h.data());
  oracle::swiglu_backward(dtype, in.data(), dh.data(), rows, width, din.data());
  const Bytes got = to.host(), got_din = to_din.host();
  bool forward = true, backward = true;
  for (std::int64_t p = 0; p < rows; ++p) {
    for (std::int64_t f = 0; f < width; ++f) {
      const std::int64_t i = p * width + f, gate = p * 2 * width + f, up = gate + width;
      forward = forward && close(dtype, get(dtype, got, i), get(dtype, h, i), 0);
      const double scale = std::abs(double{get(dtype, dh, i)} * double{get(dtype, in, up)});
      backward = backward && close(dtype, get(dtype, got_din, gate), get(dtype, din, gate), scale) &&
                 close(dtype, get(dtype, got_din, up), get(dtype, din, up), 0);
    }
  }
  report.expect(forward, "swiglu " + what);
  report.expect(backward, "swiglu_backward " + what);
}

void time_rows(Report& report) {
  constexpr std::int64_t kRows = 1 << 15, kWidth = 2048, kK = 8;
  const Slots slots(kRows, 64, kK);
  const OnDevice<std::int64_t> begin(slots.begin), position(slots.position);
  const OnDevice<float> weight(slots.weight);
  const double row_bytes = kWidth * 2.0, rows = kRows;
  const OnDevice<std::uint8_t> narrow(kRows * kWidth * 2), wide(kRows * kK * kWidth * 2);
  const DType bf16 = DType::kBF16;
  report.speed("permute_rows 32768 x 2048 bf16, 8 slots", rows * row_bytes * (1 + kK), [&] {
    twin::permute_rows(bf16, narrow.data(), begin.data(), position.data(), kRows, kWidth, wide.data());
  });
  report.speed("ordered_weighted_sum 32768 x 2048 bf16, 8", rows * row_bytes * (1 + kK), [&] {
    twin::ordered_weighted_sum(bf16, wide.data(), begin.data(), position.data(), weight.data(), kRows, kWidth,
                               narrow.data());
  });
  report.speed("slot_dots 32768 x 2048 bf16, 8 slots", rows * row_bytes * (1 + kK), [&] {
    twin::slot_dots(bf16, narrow.data(), wide.data(), begin.data(), position.data(), kRows, kWidth,
                    weight.data());
  });
  const OnDevice<std::uint8_t> in(kRows * 2 * kWidth * 2), din(kRows * 2 * kWidth * 2);
  report.speed("swiglu 32768 x 2048 bf16", rows * row_bytes * 3,
               [&] { twin::swiglu(bf16, in.data(), kRows, kWidth, narrow.data()); });
  report.speed("swiglu_backward 32768 x 2048 bf16", rows * row_bytes * 5,
               [&] { twin::swiglu_backward(bf16, in.data(), narrow.data(), kRows, kWidth, din.data()); });
}

}  // namespace

void check_kernels(Report& report) {
  check_top_k(report);
  check_counting_permute(report);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      check_rows(report, dtype, shape);
      check_swiglu(report, dtype, shape);
    }
  }
  time_rows(report);
}

}  // namespace moesaic::gpu_check
