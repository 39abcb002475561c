#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/train/config.h"

namespace moesaic::cli {
namespace {

// The defaults name no data, which validate() would refuse, so they are only checked where something is set.
Config resolve_defaults(const std::vector<std::string>& overrides) {
  return overrides.empty() ? Config{}
                           : parse_config("", "defaults", std::filesystem::current_path(), overrides);
}

}  // namespace

void add_config(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("config", "print a resolved configuration, or the reference of all keys");
  auto file = std::make_shared<std::filesystem::path>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  auto reference = std::make_shared<bool>(false);
  sub->add_option("--config", *file, "TOML configuration to resolve")->check(CLI::ExistingFile);
  sub->add_option("--set", *overrides, "override a configuration key: section.key=value");
  sub->add_flag("--reference", *reference, "print docs/configuration.md");
  sub->callback([=] {
    if (*reference) {
      fmt::print("{}", reference_markdown());
    } else {
      fmt::print("{}",
                 to_toml(file->empty() ? resolve_defaults(*overrides) : load_config(*file, *overrides)));
    }
  });
}

}  // namespace moesaic::cli
