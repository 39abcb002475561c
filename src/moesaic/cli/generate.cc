#include "moesaic/infer/generate.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/launch.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/core/error.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/trainer.h"

namespace moesaic::cli {
namespace {

struct GenerateCommand {
  RunSource source;
  std::vector<std::string> prompts;
  std::int64_t max_new_tokens = 200;
  GenerateOptions options;

  void run() const {
    const Config config = source.load();
    require(config.data.format == TokenFormat::kBytes,
            "generate reads and writes bytes; this model was trained on token files of another format");
    const std::filesystem::path checkpoint = source.find();
    std::vector<Prompt> inputs;
    for (const std::string& text : prompts) {
      Prompt prompt{{}, max_new_tokens};
      for (const char c : text) prompt.tokens.push_back(static_cast<unsigned char>(c));
      inputs.push_back(std::move(prompt));
    }
    launch(config, [&](Communicator& world) {
      ShardedModel model(config.model, parallel_options(config), world);
      std::vector<std::vector<float>> bias = initial_bias(config.model);
      load_parameters(model, bias, checkpoint);
      const auto outputs = generate(model, bias, inputs, options);
      if (world.rank() != 0) return;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        std::string text = prompts[i];
        for (const std::int64_t token : outputs[i]) text += static_cast<char>(token);
        fmt::print("--- prompt {} ---\n{}\n", i + 1, text);
      }
      std::fflush(stdout);
    });
  }
};

}  // namespace

void add_generate(CLI::App& app) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* sub = app.add_subcommand("generate", "continue prompts with a trained model");
  command->source.add_options(*sub);
  sub->add_option("--prompt", command->prompts, "text to continue; give it several times for several prompts")
      ->required();
  sub->add_option("--max-new-tokens", command->max_new_tokens, "tokens to add to each prompt (default 200)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000'000}));
  sub->add_option("--temperature", command->options.temperature, "0 = greedy (default)")
      ->check(CLI::Range(0.0, 1000.0));
  sub->add_option("--seed", command->options.seed, "seed of the draws (default 0)");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
