#include "bench/expert_kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "moesaic/core/buffer.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/kernels/convert.h"
#include "moesaic/kernels/experts.h"
#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/softmax_top_k.h"
#include "moesaic/nn/parallel.h"

namespace moesaic::bench {
namespace {

using namespace kernels;

// Uniform in +-0.1. The first 2^20 are drawn, the others repeat them.
Buffer random_values(DType dtype, std::int64_t n, std::uint64_t seed) {
  const std::int64_t drawn = std::min<std::int64_t>(n, 1 << 20);
  Buffer wide(drawn * 4), values(n * size_of(dtype));
  const std::uint64_t key = random_key(seed, "bench experts");
  for (std::int64_t i = 0; i < drawn; ++i) {
    wide.as<float>()[i] =
        0.2f * static_cast<float>(random_uniform(key, static_cast<std::uint64_t>(i))) - 0.1f;
  }
  convert(DType::kF32, wide.data(), dtype, values.data(), drawn);
  for (std::int64_t i = drawn; i < n; i += drawn) {
    std::memcpy(values.data() + i * size_of(dtype), values.data(),
                static_cast<std::size_t>(std::min(drawn, n - i) * size_of(dtype)));
  }
  return values;
}

std::string same_bytes(const char* what, const Buffer& got, const Buffer& expected) {
  return std::memcmp(got.data(), expected.data(), static_cast<std::size_t>(got.bytes())) == 0
             ? ""
             : fmt::format("{} differ", what);
}

// ---- softmax and top-k ----

void softmax_and_choice(Report& report, std::int64_t tokens, std::int64_t experts, std::int64_t k) {
  at::set_num_threads(1);
  const Buffer scores = random_values(DType::kF32, tokens * experts, 1);
  const at::Tensor logits =
      at::from_blob(const_cast<std::byte*>(scores.data()), {tokens, experts}, at::kFloat);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * k)), expected_ids = ids;
  std::vector<float> values(ids.size()), p(ids.size()), log_sums(static_cast<std::size_t>(tokens)),
      sums(static_cast<std::size_t>(experts));
  std::vector<float> expected_values = values, expected_p = p, expected_log_sums = log_sums,
                     expected_sums = sums;
  const auto run = [&] {
    softmax_top_k(scores.as<float>(), tokens, experts, k, nullptr,
                  {ids.data(), values.data(), p.data(), log_sums.data(), sums.data()});
  };
  reference::softmax_top_k(scores.as<float>(), tokens, experts, k, nullptr,
                           {expected_ids.data(), expected_values.data(), expected_p.data(),
                            expected_log_sums.data(), expected_sums.data()});
  const auto close = [](const std::vector<float>& got, const std::vector<float>& expected) {
    return std::ranges::equal(
        got, expected, [](float a, float b) { return std::abs(a - b) <= 1e-5f * (1.0f + std::abs(b)); });
  };
  report.measure({.name = fmt::format("softmax_top_k {}x{} k{}", tokens, experts, k),
                  .work = {.bytes = static_cast<double>(4 * tokens * (experts + 3 * k + 1))},
                  .run = run,
                  .baseline = "torch",
                  .run_baseline =
                      [&] {
                        const at::NoGradGuard no_grad;
                        const at::Tensor all = at::softmax(logits, 1);
                        at::topk(all, k, 1);
                        all.sum(0);
                        at::logsumexp(logits, 1);
                      },
                  .ratio = "time_over_baseline",
                  .check = [&]() -> std::string {
                    run();
                    if (ids != expected_ids || values != expected_values) return "choices differ";
                    return close(p, expected_p) && close(log_sums, expected_log_sums) &&
                                   close(sums, expected_sums)
                               ? ""
                               : "probabilities differ from the oracle's";
                  }});
}

// ---- experts ----

struct Layer {
  std::string name;
  std::int64_t width, expert_width, num_experts, top_k;
  bool gated;
};

// So many rows for each expert.
struct Problem {
  ExpertShape shape;
  std::vector<std::int64_t> begin{0}, row;
  std::vector<float> weight;
  Buffer rows;

  Problem(const Layer& layer, DType dtype, const std::vector<std::int64_t>& slots_of_expert)
      : shape{dtype, layer.gated, std::ssize(slots_of_expert), layer.width, layer.expert_width} {
    for (const std::int64_t n : slots_of_expert) begin.push_back(begin.back() + n);
    row.resize(static_cast<std::size_t>(begin.back()));
    for (std::size_t s = 0; s < row.size(); ++s) row[s] = static_cast<std::int64_t>(s * 7919 % row.size());
    weight.assign(row.size(), 0.5f);
    rows = random_values(dtype, begin.back() * layer.width, 2);
  }
  ExpertSlots slots() const { return {begin.data(), row.data()}; }
  std::int64_t num_slots() const { return begin.back(); }
  std::int64_t in_bytes() const { return shape.hidden_width() * shape.width * size_of(shape.dtype); }
  std::int64_t out_bytes() const { return shape.width * shape.expert_width * size_of(shape.dtype); }
  Buffer new_outputs() const { return Buffer(num_slots() * shape.width * size_of(shape.dtype)); }
};

void one_by_one(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < n; ++i) task(i);
}

std::uint64_t read_once(const std::byte* from, std::int64_t bytes) {
  std::uint64_t sums[8] = {};
  const auto* words = reinterpret_cast<const std::uint64_t*>(from);
  for (std::int64_t i = 0; i + 8 <= bytes / 8; i += 8) {
    for (std::int64_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  return std::accumulate(sums, sums + 8, std::uint64_t{0});
}

// A few rows for each expert, against reading the weights they touch. Every call takes other weights, four
// last-level caches in all.
void decode(Report& report, const Layer& layer, DType dtype, std::int64_t tokens, int threads,
            std::int64_t pool_bytes) {
  // Each of the chosen experts gets its share of the rows.
  const std::int64_t slots = tokens * layer.top_k, used = std::min(slots, layer.num_experts);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(used), slots / used);
  const Problem problem(layer, dtype, counts);
  const std::int64_t touched = used * (problem.in_bytes() + problem.out_bytes());
  const std::int64_t sets = 2 + pool_bytes / touched;
  const Buffer w_in = random_values(dtype, sets * used * problem.in_bytes() / size_of(dtype), 3);
  const Buffer w_out = random_values(dtype, sets * used * problem.out_bytes() / size_of(dtype), 4);
  Buffer outputs = problem.new_outputs();
  std::int64_t set = 0;
  const auto with_set = [&](const auto& body) {
    set = (set + 1) % sets;
    body(w_in.data() + set * used * problem.in_bytes(), w_out.data() + set * used * problem.out_bytes());
  };
  const auto run = [&] {
    with_set([&](const std::byte* in, const std::byte* out) {
      experts_forward(problem.shape, problem.slots(), problem.rows.data(), in, out, nullptr, outputs.data(),
                      run_tasks);
    });
  };
  std::atomic<std::uint64_t> read{0};
  at::set_num_threads(threads);
  report.measure({.name = fmt::format("experts {} {} {} decode {} thread{}", layer.name, tokens,
                                      name_of(dtype), threads, threads == 1 ? "" : "s"),
                  .work = {.bytes = static_cast<double>(touched)},
                  .run = run,
                  .baseline = "read",
                  .run_baseline =
                      [&] {
                        with_set([&](const std::byte* in, const std::byte* out) {
                          run_tasks(used, [&](std::int64_t e) {
                            read += read_once(in + e * problem.in_bytes(), problem.in_bytes()) +
                                    read_once(out + e * problem.out_bytes(), problem.out_bytes());
                          });
                        });
                      },
                  .ratio = "time_over_baseline",
                  .check = [&]() -> std::string {
                    run();
                    // One slot with its expert is a problem of its own: rows do not depend on one another.
                    const std::vector<std::int64_t> one{0, 1};
                    ExpertShape shape = problem.shape;
                    shape.num_experts = 1;
                    const std::int64_t row_bytes = shape.width * size_of(dtype);
                    Buffer panels(row_bytes), kept(shape.hidden_width() * 16 * size_of(dtype));
                    for (const std::int64_t e : {std::int64_t{0}, used - 1}) {
                      const std::int64_t s = problem.begin[static_cast<std::size_t>(e)];
                      experts_forward(shape, {one.data(), problem.row.data() + s}, problem.rows.data(),
                                      w_in.data() + (set * used + e) * problem.in_bytes(),
                                      w_out.data() + (set * used + e) * problem.out_bytes(), kept.data(),
                                      panels.data(), one_by_one);
                      if (std::memcmp(panels.data(), outputs.data() + s * row_bytes,
                                      static_cast<std::size_t>(row_bytes)) != 0) {
                        return fmt::format("slot {} differs from what panels give", s);
                      }
                    }
                    return "";
                  }});
  at::set_num_threads(1);
}

// Forward and backward on two threads with most rows on one expert, against the same rows spread evenly.
void skewed(Report& report, const Layer& layer, DType dtype, std::int64_t num_slots) {
  const std::int64_t experts = layer.num_experts, even = num_slots / experts;
  const std::int64_t others = num_slots / 5 / (experts - 1);
  std::vector<std::int64_t> balanced_counts(static_cast<std::size_t>(experts), even);
  std::vector<std::int64_t> skewed_counts(static_cast<std::size_t>(experts), others);
  skewed_counts[0] = even * experts - others * (experts - 1);
  const Problem skew(layer, dtype, skewed_counts), balance(layer, dtype, balanced_counts);
  const Buffer w_in = random_values(dtype, experts * skew.in_bytes() / size_of(dtype), 3);
  const Buffer w_out = random_values(dtype, experts * skew.out_bytes() / size_of(dtype), 4);
  Buffer outputs = skew.new_outputs(), d_inputs = skew.new_outputs(), d_in(w_in.bytes()),
         d_out(w_out.bytes());
  Buffer kept(size_of(dtype) * std::max(before_elements(skew.shape, skew.slots()),
                                        before_elements(balance.shape, balance.slots())));
  const auto step = [&](const Problem& p, const RunTasks& run) {
    experts_forward(p.shape, p.slots(), p.rows.data(), w_in.data(), w_out.data(), kept.data(), outputs.data(),
                    run);
    experts_backward(p.shape, p.slots(), p.rows.data(), p.weight.data(), p.rows.data(), kept.data(),
                     w_in.data(), w_out.data(), {d_inputs.data(), d_in.data(), d_out.data()}, run);
  };
  at::set_num_threads(2);
  report.measure({.name = fmt::format("experts {} {} {} forward+backward skewed 2 threads", layer.name,
                                      num_slots, name_of(dtype)),
                  .work = {.flops = 6.0 * static_cast<double>(skew.num_slots() * layer.width) *
                                    static_cast<double>(skew.shape.hidden_width() + layer.expert_width)},
                  .run = [&] { step(skew, run_tasks); },
                  .baseline = "balanced",
                  .run_baseline = [&] { step(balance, run_tasks); },
                  .ratio = "time_over_baseline",
                  .check = [&]() -> std::string {
                    step(skew, one_by_one);
                    Buffer one_in(d_in.bytes()), one_out(d_out.bytes());
                    std::memcpy(one_in.data(), d_in.data(), static_cast<std::size_t>(d_in.bytes()));
                    std::memcpy(one_out.data(), d_out.data(), static_cast<std::size_t>(d_out.bytes()));
                    step(skew, run_tasks);
                    const std::string wrong =
                        same_bytes("gradients of w_in by one thread and two", d_in, one_in);
                    return wrong.empty()
                               ? same_bytes("gradients of w_out by one thread and two", d_out, one_out)
                               : wrong;
                  }});
  at::set_num_threads(1);
}

// Many rows for each expert, against the library's product of each expert's matrices with its rows, which lie
// ready: no layout transform, no activation.
void large(Report& report, const Layer& layer, DType dtype, std::int64_t num_slots) {
  const std::int64_t even = num_slots / layer.num_experts;
  const Problem p(layer, dtype, std::vector<std::int64_t>(static_cast<std::size_t>(layer.num_experts), even));
  const Buffer w_in = random_values(dtype, layer.num_experts * p.in_bytes() / size_of(dtype), 3);
  const Buffer w_out = random_values(dtype, layer.num_experts * p.out_bytes() / size_of(dtype), 4);
  Buffer outputs = p.new_outputs(), expected = p.new_outputs();
  const auto type = dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
  const auto matrices = [&](const Buffer& w, std::int64_t m, std::int64_t k) {
    return at::from_blob(const_cast<std::byte*>(w.data()), {layer.num_experts, m, k}, type);
  };
  const at::Tensor in = matrices(w_in, p.shape.hidden_width(), layer.width);
  const at::Tensor out = matrices(w_out, layer.width, layer.expert_width);
  const at::Tensor x = at::ones({even, layer.width}, type), h = at::ones({even, layer.expert_width}, type);
  at::Tensor before = at::empty({even, p.shape.hidden_width()}, type),
             y = at::empty({even, layer.width}, type);
  const auto run = [&] {
    experts_forward(p.shape, p.slots(), p.rows.data(), w_in.data(), w_out.data(), nullptr, outputs.data(),
                    run_tasks);
  };
  at::set_num_threads(1);
  report.measure({.name = fmt::format("experts {} {} {} forward", layer.name, num_slots, name_of(dtype)),
                  .work = {.flops = 2.0 * static_cast<double>(p.num_slots() * layer.width) *
                                    static_cast<double>(p.shape.hidden_width() + layer.expert_width)},
                  .run = run,
                  .baseline = "mm",
                  .run_baseline =
                      [&] {
                        const at::NoGradGuard no_grad;
                        for (std::int64_t e = 0; e < layer.num_experts; ++e) {
                          at::mm_out(before, x, in.select(0, e).t());
                          at::mm_out(y, h, out.select(0, e).t());
                        }
                      },
                  .ratio = "time_over_baseline",
                  .check = [&]() -> std::string {
                    run();
                    Buffer kept(size_of(dtype) * before_elements(p.shape, p.slots()));
                    experts_forward(p.shape, p.slots(), p.rows.data(), w_in.data(), w_out.data(), kept.data(),
                                    expected.data(), one_by_one);
                    return same_bytes("outputs with and without what backward needs", outputs, expected);
                  }});
}

}  // namespace

void expert_kernels(Report& report, const std::string& size) {
  const Layer tiny{"tiny", 64, 32, 8, 2, true};
  const Layer w1{"W1", 512, 512, 16, 1, false}, w2{"W2", 512, 256, 64, 8, true},
      w3{"W3", 2048, 1024, 64, 8, true};
  if (size == "small") {
    softmax_and_choice(report, 256, 16, 2);
    decode(report, tiny, DType::kF32, 1, 1, 1 << 20);
    skewed(report, tiny, DType::kF32, 1024);
    large(report, tiny, DType::kF32, 512);
    return;
  }
  softmax_and_choice(report, 2048, 64, 8);
  softmax_and_choice(report, 4096, 16, 1);
  softmax_and_choice(report, 2048, 256, 16);
  const std::int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  require(cache > 0, "kernels: the system does not tell the size of the last-level cache");
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int threads : {1, 2}) {
      for (const std::int64_t tokens : {1, 32}) decode(report, w2, dtype, tokens, threads, 4 * cache);
      decode(report, w3, dtype, 8, threads, 4 * cache);
    }
    large(report, w1, dtype, 4096);
    large(report, w2, dtype, 16384);
    skewed(report, w1, dtype, 4096);
    skewed(report, w2, dtype, 16384);
  }
}

}  // namespace moesaic::bench
