// Each kernel against memcpy of as many bytes as it reads and writes (half of them copied), on one thread;
// top_k against std::partial_sort of each row's indices; experts: expert_kernels.h. Every result is compared
// with the oracle's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "bench/benchmarks.h"
#include "bench/expert_kernels.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/buffer.h"
#include "moesaic/core/rng.h"
#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/convert.h"
#include "moesaic/kernels/optimizer.h"
#include "moesaic/kernels/ordered_sum.h"
#include "moesaic/kernels/permute.h"
#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/top_k.h"

namespace moesaic::bench {
namespace {

using namespace kernels;

constexpr std::int64_t kSlotsPerRow = 2;
constexpr std::int64_t kExperts = 8;

struct Shape {
  std::int64_t rows, width;
};

Buffer random_values(DType dtype, std::int64_t n, std::uint64_t seed) {
  Buffer wide(n * 4);
  const std::uint64_t key = random_key(seed, "bench");
  for (std::int64_t i = 0; i < n; ++i) wide.as<float>()[i] = 4 * random_uniform(key, i) - 2;
  if (dtype == DType::kF32) return wide;
  Buffer narrow(n * 2);
  convert(DType::kF32, wide.data(), DType::kBF16, narrow.data(), n);
  return narrow;
}

float element(DType dtype, const Buffer& values, std::int64_t i) {
  return dtype == DType::kF32 ? values.as<float>()[i] : to_float(values.as<BF16>()[i]);
}

std::string same_bits(const Buffer& got, const Buffer& expected) {
  const auto [a, b] = std::mismatch(got.span().begin(), got.span().end(), expected.span().begin());
  return a == got.span().end() ? ""
                               : fmt::format("byte {} differs from the oracle's", a - got.span().begin());
}

// For kernels whose header promises a tolerance.
std::string close_values(DType dtype, const Buffer& got, const Buffer& expected) {
  const double tolerance = dtype == DType::kF32 ? 1e-6 : 1e-2;
  for (std::int64_t i = 0; i < got.bytes() / size_of(dtype); ++i) {
    const float a = element(dtype, got, i), b = element(dtype, expected, i);
    if (!(std::abs(a - b) <= tolerance * (1 + std::abs(b)))) {
      return fmt::format("element {} is {}, expected {}", i, a, b);
    }
  }
  return "";
}

void poison(Buffer& out) { std::memset(out.data(), 0xff, static_cast<std::size_t>(out.bytes())); }

// A case whose baseline is memcpy and whose result is `out`.
void against_memcpy(Report& report, const std::string& name, std::int64_t bytes, Buffer& out,
                    const std::function<void()>& run, const std::function<std::string()>& compare) {
  const Buffer source = random_values(DType::kF32, bytes / 8 + 1, 99);
  Buffer target(source.bytes());
  report.measure({.name = name,
                  .work = {.bytes = static_cast<double>(bytes)},
                  .run = run,
                  .baseline = "memcpy",
                  .run_baseline =
                      [&] { std::memcpy(target.data(), source.data(), static_cast<std::size_t>(bytes / 2)); },
                  .check =
                      [&] {
                        poison(out);
                        run();
                        return compare();
                      }});
}

// kSlotsPerRow random experts for every row.
struct Slots {
  std::vector<std::int64_t> row_begin, position, expert_begin;
  std::vector<std::int32_t> expert;
  std::vector<float> weight;

  explicit Slots(std::int64_t rows) : position(rows * kSlotsPerRow), expert_begin(kExperts + 1) {
    const std::uint64_t key = random_key(1, "slots");
    for (std::int64_t i = 0; i <= rows; ++i) row_begin.push_back(i * kSlotsPerRow);
    for (std::int64_t s = 0; s < rows * kSlotsPerRow; ++s) {
      expert.push_back(static_cast<std::int32_t>(random_bits(key, s) % kExperts));
      weight.push_back(random_uniform(key, s, 1));
    }
    counting_permute(expert.data(), size(), kExperts, expert_begin.data(), position.data());
  }
  std::int64_t size() const { return static_cast<std::int64_t>(expert.size()); }
};

void row_kernels(Report& report, Shape shape, DType dtype) {
  const auto [R, D] = shape;
  const Slots slots(R);
  const std::int64_t S = slots.size();
  const std::int64_t* begin = slots.row_begin.data();
  const std::int64_t* position = slots.position.data();
  const std::int64_t row_bytes = D * size_of(dtype);
  const Buffer rows = random_values(dtype, R * D, 2);
  const Buffer y = random_values(dtype, S * D, 3);
  const auto name = [&](const char* kernel) {
    return fmt::format("{} {}x{} top{} {}", kernel, R, D, kSlotsPerRow, name_of(dtype));
  };

  {
    Buffer out(S * row_bytes), expected(S * row_bytes);
    reference::permute_rows(dtype, rows.data(), begin, position, R, D, expected.data());
    against_memcpy(
        report, name("permute_rows"), (R + S) * row_bytes, out,
        [&] { permute_rows(dtype, rows.data(), begin, position, R, D, out.data()); },
        [&] { return same_bits(out, expected); });
    reference::permute_rows_scaled(dtype, rows.data(), begin, position, slots.weight.data(), R, D,
                                   expected.data());
    against_memcpy(
        report, name("permute_rows_scaled"), (R + S) * row_bytes, out,
        [&] {
          permute_rows_scaled(dtype, rows.data(), begin, position, slots.weight.data(), R, D, out.data());
        },
        [&] { return same_bits(out, expected); });
  }
  {
    Buffer out(R * row_bytes), expected(R * row_bytes);
    reference::ordered_weighted_sum(dtype, y.data(), begin, position, slots.weight.data(), R, D, dtype,
                                    expected.data());
    against_memcpy(
        report, name("ordered_weighted_sum"), (R + S) * row_bytes, out,
        [&] {
          ordered_weighted_sum(dtype, y.data(), begin, position, slots.weight.data(), R, D, dtype,
                               out.data());
        },
        [&] { return same_bits(out, expected); });
  }
  Buffer out(S * 4), expected(S * 4);
  reference::slot_dots(dtype, rows.data(), y.data(), begin, position, R, D, expected.as<float>());
  against_memcpy(
      report, name("slot_dots"), (R + S) * row_bytes, out,
      [&] { slot_dots(dtype, rows.data(), y.data(), begin, position, R, D, out.as<float>()); },
      [&] { return same_bits(out, expected); });
}

void activations(Report& report, Shape shape, DType dtype) {
  const auto [P, F] = shape;
  const std::int64_t bytes = P * F * size_of(dtype);
  const Buffer in = random_values(dtype, P * 2 * F, 4);
  const Buffer dh = random_values(dtype, P * F, 5);
  Buffer h(bytes), h_expected(bytes), din(2 * bytes), din_expected(2 * bytes);
  const auto name = [&](const char* kernel) {
    return fmt::format("{} {}x{} {}", kernel, P, F, name_of(dtype));
  };

  reference::swiglu(dtype, in.data(), P, F, h_expected.data());
  against_memcpy(
      report, name("swiglu"), 3 * bytes, h, [&] { swiglu(dtype, in.data(), P, F, h.data()); },
      [&] { return close_values(dtype, h, h_expected); });
  reference::swiglu_backward(dtype, in.data(), dh.data(), P, F, din_expected.data());
  against_memcpy(
      report, name("swiglu_backward"), 5 * bytes, din,
      [&] { swiglu_backward(dtype, in.data(), dh.data(), P, F, din.data()); },
      [&] { return close_values(dtype, din, din_expected); });
  reference::relu(dtype, in.data(), P, F, h_expected.data());
  against_memcpy(
      report, name("relu"), 2 * bytes, h, [&] { relu(dtype, in.data(), P, F, h.data()); },
      [&] { return same_bits(h, h_expected); });
}

void conversion(Report& report, DType from, DType to, std::int64_t n) {
  const Buffer source = random_values(from, n, 6);
  Buffer out(n * size_of(to)), expected(n * size_of(to));
  reference::convert(from, source.data(), to, expected.data(), n);
  against_memcpy(
      report, fmt::format("convert {} {} to {}", n, name_of(from), name_of(to)), 6 * n, out,
      [&] { convert(from, source.data(), to, out.data(), n); }, [&] { return same_bits(out, expected); });
}

void optimizers(Report& report, std::int64_t n) {
  const AdamW adam{.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 10};
  const Buffer gradient = random_values(DType::kF32, n, 7);
  const Buffer start = random_values(DType::kF32, n, 8);
  // master | exp_avg | exp_avg_sq
  const auto reset = [&](Buffer& state) {
    std::memcpy(state.data(), start.data(), static_cast<std::size_t>(4 * n));
    std::memset(state.data() + 4 * n, 0, static_cast<std::size_t>(state.bytes() - 4 * n));
  };
  {
    Buffer state(12 * n), expected(12 * n);
    float* s = state.as<float>();
    float* e = expected.as<float>();
    reset(expected);
    reference::adamw(adam, 0.1, 0.5f, n, gradient.as<float>(), e, e + n, e + 2 * n);
    const auto step = [&] { adamw(adam, 0.1, 0.5f, n, gradient.as<float>(), s, s + n, s + 2 * n); };
    against_memcpy(report, fmt::format("adamw {}", n), 28 * n, state, step, [&] {
      reset(state);
      step();
      return same_bits(state, expected);
    });
  }
  {
    Buffer state(8 * n), expected(8 * n);
    float* s = state.as<float>();
    float* e = expected.as<float>();
    const Sgd sgd_options{.learning_rate = 1e-3, .momentum = 0.9};
    reset(expected);
    reference::sgd(sgd_options, 0.1, 0.5f, n, gradient.as<float>(), e, e + n);
    const auto step = [&] { sgd(sgd_options, 0.1, 0.5f, n, gradient.as<float>(), s, s + n); };
    against_memcpy(report, fmt::format("sgd {}", n), 20 * n, state, step, [&] {
      reset(state);
      step();
      return same_bits(state, expected);
    });
  }
  Buffer sum(8), expected(8);
  *expected.as<double>() = reference::sum_of_squares(gradient.as<float>(), n);
  against_memcpy(
      report, fmt::format("sum_of_squares {}", n), 4 * n, sum,
      [&] { *sum.as<double>() = sum_of_squares(gradient.as<float>(), n); },
      [&] { return same_bits(sum, expected); });
}

void selections(Report& report, std::int64_t rows, std::int64_t n, std::int64_t k) {
  const Buffer scores = random_values(DType::kF32, rows * n, 9);
  Buffer ids(rows * k * 4), ids_expected(rows * k * 4), values(rows * k * 4), values_expected(rows * k * 4);
  reference::top_k(scores.as<float>(), rows, n, k, ids_expected.as<std::int32_t>(),
                   values_expected.as<float>());
  const auto run = [&] { top_k(scores.as<float>(), rows, n, k, ids.as<std::int32_t>(), values.as<float>()); };
  std::vector<std::int32_t> order(n), sorted(rows * k);
  const auto sort_rows = [&] {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = scores.as<float>() + r * n;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + k, order.end(),
                        [row](auto a, auto b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
      std::copy_n(order.begin(), k, sorted.begin() + r * k);
    }
  };
  report.measure({.name = fmt::format("top_k {}x{} k{}", rows, n, k),
                  .work = {.bytes = static_cast<double>(4 * rows * (n + 2 * k))},
                  .run = run,
                  .baseline = "partial_sort",
                  .run_baseline = sort_rows,
                  .ratio = "time_over_baseline",
                  .check = [&]() -> std::string {
                    poison(ids);
                    poison(values);
                    run();
                    const std::string wrong = same_bits(ids, ids_expected);
                    return wrong.empty() ? same_bits(values, values_expected) : wrong;
                  }});
}

void counting(Report& report, std::int64_t rows) {
  const Slots slots(rows);
  Buffer position(slots.size() * 8), expected(slots.size() * 8), begin((kExperts + 1) * 8);
  reference::counting_permute(slots.expert.data(), slots.size(), kExperts, begin.as<std::int64_t>(),
                              expected.as<std::int64_t>());
  against_memcpy(
      report, fmt::format("counting_permute {} experts{}", slots.size(), kExperts), 12 * slots.size(),
      position,
      [&] {
        counting_permute(slots.expert.data(), slots.size(), kExperts, begin.as<std::int64_t>(),
                         position.as<std::int64_t>());
      },
      [&] { return same_bits(position, expected); });
}

void run_kernels(Report& report, const std::string& size) {
  const Shape shape = size == "small"    ? Shape{256, 128}
                      : size == "medium" ? Shape{2048, 512}
                                         : Shape{16384, 1024};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    row_kernels(report, shape, dtype);
    activations(report, shape, dtype);
  }
  conversion(report, DType::kF32, DType::kBF16, shape.rows * shape.width);
  conversion(report, DType::kBF16, DType::kF32, shape.rows * shape.width);
  optimizers(report, shape.rows * shape.width);
  counting(report, shape.rows);
  selections(report, shape.rows, 8, 2);
  selections(report, shape.rows, 64, 8);
  selections(report, shape.rows, 256, 16);
  expert_kernels(report, size);
}

}  // namespace

Benchmark kernels() {
  return {.name = "kernels",
          .about = "Each CPU kernel against what limits it: memcpy or a read of the same bytes, plain torch",
          .threads = 1,
          .sizes = {"small", "medium", "large"},
          .run = run_kernels};
}

}  // namespace moesaic::bench
