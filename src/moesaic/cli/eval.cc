#include <fmt/core.h>

#include <memory>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/launch.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/infer/dump_logits.h"
#include "moesaic/infer/dump_routing.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/trainer.h"

namespace moesaic::cli {
namespace {

constexpr std::int64_t kRoutedTokens = 8192;

struct EvalCommand {
  RunSource source;
  std::int64_t max_tokens = 0;
  std::filesystem::path logits_file, routing_file;

  void run() const {
    const Config config = source.load();
    launch(config, [&](Communicator& world) {
      const std::filesystem::path checkpoint = source.find(world);
      const Dataset dataset(config.data, config.model.vocab_size);
      ShardedModel model(config.model, parallel_options(config), world);
      GateStates gates = empty_gate_states(config.model);
      load_parameters(model, gates, checkpoint);
      const bool talks = world.rank() == 0;
      if (talks) fmt::print("{}\n", checkpoint.string());
      const auto losses = evaluate_held_out(
          model, gates, dataset, config.train.batch_tokens / config.train.accumulation, max_tokens);
      for (const HeldOutLoss& loss : losses) {
        if (talks)
          fmt::print("  {:<20} {:.4f} nats per token ({} tokens)\n", loss.name, loss.loss, loss.tokens);
      }
      if (!logits_file.empty()) {
        dump_logits(model, gates, dataset, logits_file);
        if (talks) fmt::print("wrote tokens and logits to {}\n", logits_file.string());
      }
      if (!routing_file.empty()) {
        dump_routing(model, gates, dataset, kRoutedTokens, routing_file);
        if (talks) fmt::print("wrote tokens and their experts to {}\n", routing_file.string());
      }
      std::fflush(stdout);
    });
  }
};

}  // namespace

void add_eval(CLI::App& app) {
  auto command = std::make_shared<EvalCommand>();
  CLI::App* sub = app.add_subcommand("eval", "loss on the held-out part of each file");
  command->source.add_options(*sub);
  sub->add_option("--max-tokens", command->max_tokens, "held-out tokens per file (0 = all)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000'000'000}));
  sub->add_option(
      "--logits", command->logits_file,
      "also write tokens [B,S] and logits [B,S,V] of the first held-out windows to this safetensors file");
  sub->add_option(
      "--routing", command->routing_file,
      "also write tokens [B,S] and each layer's chosen experts [B*S,K] of the first held-out windows, "
      "8,192 tokens at most, to this safetensors file");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
