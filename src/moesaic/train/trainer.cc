#include "moesaic/train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/cost/measure.h"
#include "moesaic/train/agree.h"
#include "moesaic/train/tensors.h"
#include "moesaic/train/walk.h"

namespace moesaic {
namespace {

// Of the trainer's own group, beside those of its model.
constexpr int kChannel = 7;

// By kind (gather, reduce, exchange, control): all bytes, and those that left the node.
std::vector<std::int64_t> sent_so_far(const ShardedModel& model) {
  std::vector<std::int64_t> sent;
  for (const Traffic& traffic :
       {model.gather_traffic(), model.reduce_traffic(), model.exchange_traffic(), model.world().traffic()}) {
    sent.push_back(traffic.inter_node_bytes + traffic.intra_node_bytes);
    sent.push_back(traffic.inter_node_bytes);
  }
  return sent;
}

// What every rank did with the step, on rank 0.
std::vector<RankTimes> times_on_rank_0(Communicator& world, const RankTimes& mine) {
  constexpr std::int64_t kBytes = sizeof(RankTimes);
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> send(size), receive(size, world.rank() == 0 ? kBytes : 0);
  send[0] = kBytes;
  std::vector<RankTimes> all(world.rank() == 0 ? size : 0);
  all_to_all_v(world, std::as_bytes(std::span(&mine, 1)), send, std::as_writable_bytes(std::span(all)),
               receive);
  return all;
}

// Seconds that measuring links and coders may take when training starts.
constexpr double kCalibrationBudget = 1;

void require_same_ranks(const Calibration& calibration, const Communicator& world, const std::string& file) {
  std::vector<int> nodes;
  for (int rank = 0; rank < world.size(); ++rank) nodes.push_back(world.topology().node_of(rank));
  require(calibration.node_of_rank == nodes,
          "codec.calibration: {} was measured with {} ranks on nodes {}, this job has {} on {}", file,
          calibration.node_of_rank.size(), fmt::join(calibration.node_of_rank, " "), nodes.size(),
          fmt::join(nodes, " "));
}

// Whether gates choose how weights or gradients travel; equal on all ranks.
bool has_gates(const CodecConfig& config, ShardedModel& model) {
  return (!config.method && gathers_need_calibration(model, config.reference)) ||
         (!config.gradients && reduces_need_calibration(model));
}

// What everything `auto` goes by; not measured where nothing hangs on it.
Calibration calibration_for(const CodecConfig& config, ShardedModel& model, Communicator& world) {
  if (!has_gates(config, model) && !model.chooses_routes()) return {};
  if (config.calibration.empty()) return calibrate(world, {.budget_s = kCalibrationBudget});
  Calibration read;
  Failure failure;
  attempt(failure, [&] {
    if (world.rank() == 0) read = calibration_from_json(read_text(config.calibration), config.calibration);
  });
  agree(world, failure);
  Calibration calibration = from_rank_0(world, read);
  require_same_ranks(calibration, world, config.calibration);
  return calibration;
}

// Of one version: every micro-step gathers forward and backward.
int gathers_per_step(const TrainConfig& train) { return static_cast<int>(2 * train.accumulation); }
int reduces_per_step(const TrainConfig& train) { return static_cast<int>(train.accumulation); }

bool routes_tokens(const LayerStats& stats) { return !stats.chosen.empty(); }

}  // namespace

ParallelOptions parallel_options(const Config& config) {
  ParallelOptions options;
  for (std::int64_t layer = 0; layer < config.model.num_layers; ++layer) {
    options.experts.push_back(exchanges_tokens(config, layer) ? ExpertsMode::kExchange
                                                              : ExpertsMode::kGather);
  }
  options.exchange_size = static_cast<int>(config.parallel.exchange_size);
  options.dtype = config.train.dtype;
  options.route = config.comm.route;
  options.fp32_sums = config.comm.wire == DType::kF32;
  options.overlap = config.comm.overlap;
  options.exchange_chunks.reset();
  if (config.comm.exchange_chunks > 0) options.exchange_chunks = config.comm.exchange_chunks;
  options.codec = config.codec.method;
  options.reference = config.codec.reference;
  options.gradients = config.codec.gradients;
  return options;
}

std::int64_t moments_per_element(const Config& config) {
  if (config.optim.name == OptimizerKind::kAdamW) return 2;
  return config.optim.momentum != 0 ? 1 : 0;
}

Trainer::Trainer(const Config& config, Communicator& world)
    : config_(config),
      clock_(world.tracer()),
      world_(world.split_all(kChannel, {.tracer = &clock_, .lane = "control"})),
      dataset_(config.data, config.model.vocab_size),
      sampler_(dataset_, {.seed = config.train.seed,
                          .sequences = micro_batch_sequences(config),
                          .accumulation = config.train.accumulation}),
      model_(config.model, parallel_options(config), world_),
      optimizer_(config.optim, model_),
      calibration_(calibration_for(config.codec, model_, world_)),
      gather_choices_(model_, config.codec.method, config.codec.reference, calibration_,
                      gathers_per_step(config.train)),
      reduce_choices_(model_, config.codec.gradients, calibration_, reduces_per_step(config.train)),
      gates_(first_gate_states(config.model, static_cast<std::uint64_t>(config.train.seed),
                               reads_token_counts(config.model)
                                   ? sampler_.token_counts(config.model.vocab_size)
                                   : std::vector<std::int64_t>())) {
  if (model_.chooses_routes()) model_.set_calibration(calibration_);
  if (has_gates(config.codec, model_)) trial_.emplace();
}

void Trainer::restore(const Position& position) {
  position_ = position;
  gates_.step = position.steps_done;
  optimizer_.set_steps(position.optimizer_steps);
  sampler_ = Sampler(dataset_, {.seed = config_.train.seed,
                                .sequences = micro_batch_sequences(config_),
                                .accumulation = config_.train.accumulation,
                                .first_step = position.steps_done,
                                .first_sample = position.next_sample});
}

Trainer::Position Trainer::position() const {
  Position position = position_;
  position.next_sample = sampler_.next_sample(position.steps_done);
  position.optimizer_steps = optimizer_.steps();
  return position;
}

double Trainer::forward_and_backward(std::int64_t step, StepReport& report) {
  const TrainConfig& train = config_.train;
  const std::int64_t seq_len = config_.data.seq_len;

  double loss = 0;
  for (std::int64_t micro = 0; micro < train.accumulation; ++micro) {
    const Batch batch = [&] {
      const Span span(world_.tracer(), {.phase = Phase::kData, .name = "read batch"});
      return sampler_.batch(step, micro, world_.rank(), world_.size());
    }();
    StepContext context = base_context(model_, gates_);
    context.training = true;
    context.seed = static_cast<std::uint64_t>(train.seed);
    context.step = step;
    context.step_tokens = context.step_targets = train.batch_tokens;
    context.first_token = micro * (train.batch_tokens / train.accumulation) + batch.first_sequence * seq_len;
    loss += train_micro_step(model_, tokens_of(batch, seq_len), targets_of(batch, seq_len), micro == 0,
                             context, recomputed_layers(config_));
    std::size_t moe_layer = 0;
    for (const LayerStats& stats : context.stats) {
      if (!routes_tokens(stats)) continue;
      if (report.chosen.size() <= moe_layer) report.chosen.emplace_back(stats.chosen.size());
      for (std::size_t e = 0; e < stats.chosen.size(); ++e) report.chosen[moe_layer][e] += stats.chosen[e];
      report.dropped += stats.dropped;
      report.dropped_random += stats.dropped_random;
      report.dropped_non_finite += stats.non_finite;
      report.balance_loss += stats.balance_loss;
      report.z_loss += stats.z_loss;
      report.gate_loss += stats.gate_loss;
      report.routes.resize(report.chosen.size());
      report.routes[moe_layer] = stats.route;
      ++moe_layer;
    }
  }
  return loss;
}

void Trainer::sum_over_ranks(StepReport& report, double loss, std::vector<std::int64_t> sent) {
  // The balance loss is global already; the others are this rank's shares of the mean.
  std::vector<double> shares = {loss, report.z_loss, report.gate_loss};
  all_reduce(world_, std::span(shares));
  report.loss = shares[0];
  const double summed = std::max<double>(1.0, static_cast<double>(report.chosen.size())) *
                        static_cast<double>(config_.train.accumulation);
  report.balance_loss /= summed;
  report.z_loss = shares[1] / summed;
  report.gate_loss = shares[2] / summed;

  sent.push_back(report.dropped);
  sent.push_back(report.dropped_random);
  sent.push_back(report.dropped_non_finite);
  all_reduce(world_, std::span(sent));
  report.gather = {sent[0], sent[1]};
  report.reduce = {sent[2], sent[3]};
  report.exchange = {sent[4], sent[5]};
  report.control = {sent[6], sent[7]};
  report.dropped = sent[8];
  report.dropped_random = sent[9];
  report.dropped_non_finite = sent[10];
}

void Trainer::step_on(std::int64_t step, StepReport& report) {
  const Span span(world_.tracer(),
                  {.phase = Phase::kStep, .name = "step", .index = static_cast<int>(report.step)});
  const std::vector<std::int64_t> before = sent_so_far(model_);
  report.learning_rate = learning_rate_at(config_.optim, step, config_.train.steps);
  const double loss = forward_and_backward(step, report);
  report.gradient_norm = optimizer_.global_norm();
  std::vector<std::int64_t> sent = sent_so_far(model_);
  std::ranges::transform(sent, before, sent.begin(), std::minus{});
  sum_over_ranks(report, loss, std::move(sent));

  // Loss and norm are sums over all ranks: every rank sees the same and decides the same.
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  if (report.skipped) {
    ++position_.skipped_in_a_row;
    if (position_.skipped_in_a_row >= config_.train.max_skipped_steps) {
      throw NonFinite(
          fmt::format("step {}: loss {} and gradient norm {}; {} steps in a row were skipped as not finite "
                      "(train.max_skipped_steps)",
                      report.step, report.loss, report.gradient_norm, position_.skipped_in_a_row));
    }
  } else {
    position_.skipped_in_a_row = 0;
    const double limit = config_.optim.clip_norm;
    // torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6.
    const double scale = limit > 0 ? std::min(1.0, limit / (report.gradient_norm + 1e-6)) : 1.0;
    optimizer_.step(report.learning_rate, scale);
    model_.refresh_images();
    update_gate_states(config_.model, gates_, report.chosen);
  }
  gates_.step = ++position_.steps_done;
}

void Trainer::tell_trial(StepReport& report) {
  if (!trial_->measures()) return trial_->stepped();
  double coded = 0;
  for (const UnitGathers& gathers : report.gathers) coded += gathers.method != codec::Method::kRaw;
  for (const UnitReduces& reduces : report.reduces) coded += reduces.wire != codec::GradientWire::kBf16;
  std::vector<double> sums = {report.seconds, coded};
  all_reduce(world_, std::span(sums));
  report.trial = trial_->stepped(sums[0] / world_.size(), sums[1] > 0);
}

StepReport Trainer::step() {
  const auto start = Clock::now();
  const double blocked = model_.blocked_seconds();
  const PhaseTimes before = clock_.times();
  StepReport report;
  report.step = position_.steps_done + 1;
  const bool plain = trial_ && trial_->plain();
  gather_choices_.choose(report.step, plain);
  reduce_choices_.choose(report.step, plain);
  step_on(position_.steps_done, report);
  report.gathers = gather_choices_.observe();
  report.reduces = reduce_choices_.observe();

  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.tokens_per_s = static_cast<double>(config_.train.batch_tokens) / report.seconds;
  if (trial_) tell_trial(report);
  report.blocked_seconds = model_.blocked_seconds() - blocked;
  report.by_rank = times_on_rank_0(world_, {report.seconds, clock_.times() - before});
  return report;
}

std::vector<HeldOutLoss> Trainer::evaluate(std::int64_t max_tokens) {
  const Span span(world_.tracer(), {.phase = Phase::kEvaluate, .name = "held-out loss"});
  return evaluate_held_out(model_, gates_, dataset_, config_.train.batch_tokens / config_.train.accumulation,
                           max_tokens);
}

}  // namespace moesaic
