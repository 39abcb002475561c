#include "moesaic/infer/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/launch.h"
#include "moesaic/cli/memory.h"
#include "moesaic/cli/prompts.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/cli/show.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/trainer.h"

namespace moesaic::cli {
namespace {

struct GenerateCommand {
  RunSource source;
  PromptSource prompts;
  std::vector<std::string> stop_texts;
  std::vector<std::int64_t> end_tokens;
  GenerateOptions options;
  std::string weights = "auto";
  bool quiet = false;

  void run() const;
  void on_rank(Communicator& world, const Config& config, const std::filesystem::path& checkpoint,
               const std::vector<Prompt>& inputs, GenerateOptions chosen) const;
  bool keeps_weights(const ShardedModel& model) const;
};

TokenText text_of(const Config& config) {
  return config.data.format == TokenFormat::kBytes ? TokenText::kBytes : TokenText::kIds;
}

// Memory is looked at by every rank, the answer is one: kept on all of them or on none.
bool GenerateCommand::keeps_weights(const ShardedModel& model) const {
  if (weights != "auto") return weights == "keep";
  Communicator& world = model.world();
  const Topology& topology = world.topology();
  // Threads share one machine whatever nodes they were told to play.
  const std::int64_t neighbours =
      under_mpi() ? std::ssize(topology.ranks_of(topology.node_of(world.rank()))) : world.size();
  const bool tight = model.gathered_bytes() > available_memory() / (2 * neighbours);
  std::int64_t tight_ranks = tight ? 1 : 0;
  all_reduce(world, std::span(&tight_ranks, 1));
  return tight_ranks == 0;
}

void GenerateCommand::on_rank(Communicator& world, const Config& config,
                              const std::filesystem::path& checkpoint, const std::vector<Prompt>& inputs,
                              GenerateOptions chosen) const {
  ShardedModel model(config.model, parallel_options(config), world);
  GateStates gates = empty_gate_states(config.model);
  load_parameters(model, gates, checkpoint);
  const bool talks = world.rank() == 0, reports = talks && !quiet;
  if (model.gathered_bytes() > 0) {
    const bool keep = keeps_weights(model);
    model.keep_gathered(keep);
    if (reports) {
      fmt::print(
          stderr, "weights of other ranks ({:.1f} MiB per rank): {}\n",
          static_cast<double>(model.gathered_bytes()) / (1024.0 * 1024.0),
          keep ? "gathered once and kept" : "gathered anew for every token; --weights keep avoids that");
    }
  }
  std::optional<TextShow> show;
  if (talks) {
    show.emplace(inputs, text_of(config));
    chosen.on_token = [&](std::size_t prompt, std::int64_t token, bool last) {
      show->add(prompt, token, last);
    };
  }
  const GenerateStats stats = generate(model, gates, inputs, chosen).stats;
  std::vector<std::int64_t> sums = {stats.prefill_gather_bytes, stats.decode_gather_bytes};
  all_reduce(world, std::span(sums));
  std::vector<std::int64_t> cache_bytes(static_cast<std::size_t>(world.size()));
  cache_bytes[static_cast<std::size_t>(world.rank())] = stats.cache_bytes;
  all_reduce(world, std::span(cache_bytes));
  if (reports) {
    fmt::print(stderr, "{}", describe(stats, *std::ranges::max_element(cache_bytes), sums[0], sums[1]));
  }
}

void GenerateCommand::run() const {
  const Config config = source.load();
  const std::vector<Prompt> inputs = prompts.load(text_of(config));
  GenerateOptions chosen = options;
  if (chosen.context == 0) chosen.context = config.data.seq_len;
  for (const std::string& text : stop_texts) chosen.stops.push_back(tokens_of(text, text_of(config)));
  for (const std::int64_t token : end_tokens) chosen.stops.push_back({token});
  check_request(config.model, inputs, chosen);
  launch(config, [&](Communicator& world) { on_rank(world, config, source.find(world), inputs, chosen); });
}

}  // namespace

void add_generate(CLI::App& app) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* sub = app.add_subcommand("generate", "continue prompts with a trained model");
  constexpr std::int64_t kMost = 1'000'000'000;
  command->source.add_options(*sub);
  auto* texts = sub->add_option("--prompt", command->prompts.texts,
                                "text to continue, or the ids of its tokens where the model was trained on "
                                "token files; give it several times for several prompts");
  sub->add_option("--prompts-file", command->prompts.file,
                  "a prompt per line; in a .jsonl file an object per line: prompt, max_new_tokens, seed")
      ->check(CLI::ExistingFile);
  sub->add_option("--max-new-tokens", command->prompts.max_new_tokens,
                  "tokens to add: once for all prompts, or once per prompt (default 200)")
      ->check(CLI::Range(std::int64_t{0}, kMost));
  sub->add_option("--temperature", command->options.sampling.temperature, "0 = greedy (default)")
      ->check(CLI::Range(0.0, 1000.0));
  sub->add_option("--top-k", command->options.sampling.top_k, "draw from the k likeliest (default 0 = all)")
      ->check(CLI::Range(std::int64_t{0}, kMost));
  sub->add_option("--top-p", command->options.sampling.top_p,
                  "draw from the likeliest that together have this probability (default 1 = all)")
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--seed", command->prompts.seed,
                  "seed of the draws (default 0); prompt i, from 0, draws with seed + i");
  sub->add_option("--stop", command->stop_texts,
                  "a prompt is done when its new text ends with this, which is shown; may be repeated");
  sub->add_option("--end-token", command->end_tokens, "the same for a token id; may be repeated")
      ->check(CLI::Range(std::int64_t{0}, kMost));
  sub->add_option("--context", command->options.context,
                  "tokens a new one looks back on (default data.seq_len; at most model.max_seq_len); longer "
                  "texts lose their older half each time they outgrow it")
      ->check(CLI::Range(std::int64_t{1}, kMost));
  sub->add_option("--weights", command->weights,
                  "of gathered layers, on several ranks: keep (gather once), gather (for every token), auto "
                  "(default: keep where they take at most half of the free memory)")
      ->check(CLI::IsMember({"auto", "keep", "gather"}));
  sub->add_flag("--quiet", command->quiet, "no figures on standard error");
  sub->callback([command, texts] {
    require(texts->count() > 0 || !command->prompts.file.empty(), "--prompt is required (or --prompts-file)");
    command->run();
  });
}

}  // namespace moesaic::cli
