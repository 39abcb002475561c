#include "moesaic/train/config.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/core/schema.h"
#include "moesaic/routing/gate_form.h"
#include "moesaic/train/config_schema.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void resolve(std::vector<std::string>& files, const fs::path& folder) {
  for (std::string& file : files) {
    file = fs::absolute(folder / file).lexically_normal().string();  // an absolute `file` replaces the folder
  }
}

}  // namespace

Config load_config(const fs::path& path, std::span<const std::string> overrides) {
  return parse_config(read_text(path), path.string(), path.parent_path(), overrides);
}

Config parse_config(std::string_view text, std::string_view source, const fs::path& folder,
                    std::span<const std::string> overrides) {
  Config config;
  const Schema schema = config_schema(config);
  apply_toml(schema, text, source);
  resolve(config.data.files, folder);
  for (const std::string& assignment : overrides) apply_override(schema, assignment);
  resolve(config.data.files, fs::path());
  try {
    read_layers(config);
    validate(config);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", source, error.what()));
  }
  return config;
}

void read_layers(Config& config) {
  config.model.own_moe.clear();
  std::map<std::int64_t, std::vector<std::string>> of_layer;
  for (const std::string& assignment : config.moe_per_layer) {
    std::int64_t layer = 0;
    const char* end = assignment.data() + assignment.size();
    const auto read = std::from_chars(assignment.data(), end, layer);
    require(read.ec == std::errc() && read.ptr != end && *read.ptr == '.',
            "moe.per_layer: got \"{}\", expected LAYER.key=value", assignment);
    of_layer[layer].push_back(assignment);
  }
  for (const auto& [layer, assignments] : of_layer) {
    const auto changed = [&assignments](MoeConfig moe) {
      for (const std::string& assignment : assignments) {
        apply_override(layer_schema(moe, assignment.substr(0, assignment.find('.'))), assignment,
                       "moe.per_layer");
      }
      return moe;
    };
    // Another gate does not inherit options that it does not read; those that the layer itself gives it are
    // for validate() to refuse.
    MoeConfig start = config.model.moe;
    start.gate.name = changed(start).gate.name;
    if (start.gate.name != config.model.moe.gate.name) start.gate = without_foreign_options(start.gate);
    config.model.own_moe.emplace(layer, changed(start));
  }
}

std::vector<std::string> notes(const Config& config) {
  std::map<std::string, std::string> layers_of;  // by what there is to say
  const auto say = [&](std::int64_t layer, const std::string& text) {
    std::string& layers = layers_of[text];
    layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
  };
  for (std::int64_t layer = config.model.num_dense_layers; layer < config.model.num_layers; ++layer) {
    const GateOptions& options = moe_of(config.model, layer).gate;
    const Gate& gate = gate_named(options.name);
    if (!gate.note.empty()) say(layer, fmt::format("gate {} {}", gate.name, gate.note));
    if (options.priority == Priority::kScore) {
      say(layer,
          "priority \"score\" looks across the batch, at later tokens too: what a token gets while "
          "training depends on tokens that it will not have when it generates");
    }
  }
  std::vector<std::string> lines;
  for (const auto& [text, layers] : layers_of) lines.push_back(fmt::format("layers {}: {}", layers, text));
  if (config.train.dtype != DType::kBF16) return lines;
  std::string lossy;
  if (config.codec.method && !codec::lossless(*config.codec.method)) {
    lossy = fmt::format("weights as {} (codec.method)", codec::name_of(*config.codec.method));
  }
  if (config.codec.gradients && !codec::lossless(*config.codec.gradients)) {
    lossy += fmt::format("{}gradients as {} (codec.gradients)", lossy.empty() ? "" : " and ",
                         codec::name_of(*config.codec.gradients));
  }
  if (!lossy.empty()) {
    lines.push_back(fmt::format("{} travel lossy: this is another run than one with lossless wires", lossy));
  }
  return lines;
}

std::string to_toml(const Config& config) {
  Config copy = config;  // a schema's targets are writable
  return render_toml(config_schema(copy));
}

std::string reference_markdown() {
  Config defaults;
  return "# Configuration\n\n"
         "A run is described by one TOML file; `--set section.key=value` overrides a key on the command "
         "line. An unknown "
         "key, a wrong type or a value out of range is an error that names the file, the line and what is "
         "allowed. Every "
         "key may be left out. This page is written by `moesaic config --reference > "
         "docs/configuration.md`.\n\n" +
         render_reference(config_schema(defaults));
}

void validate(const Config& config) {
  validate(config.model);
  const auto& [model, moe_per_layer, parallel, comm, codec, data, optim, train, checkpoint] = config;
  const std::int64_t choices = static_cast<std::int64_t>(parallel.experts.size());
  require(choices == 1 || choices == model.num_layers,
          "parallel.experts has {} entries, expected 1 or one per layer (model.num_layers = {})", choices,
          model.num_layers);
  const std::int64_t recomputes = std::ssize(train.recompute);
  require(recomputes == 1 || recomputes == model.num_layers,
          "train.recompute has {} entries, expected 1 or one per layer (model.num_layers = {})", recomputes,
          model.num_layers);
  require(data.seq_len <= model.max_seq_len, "data.seq_len is {}, expected at most model.max_seq_len ({})",
          data.seq_len, model.max_seq_len);
  require(data.weights.empty() || data.weights.size() == data.files.size(),
          "data.weights has {} entries, expected one per file of data.files ({})", data.weights.size(),
          data.files.size());
  const bool any_weight = std::ranges::any_of(data.weights, [](double weight) { return weight > 0; });
  require(data.weights.empty() || any_weight, "data.weights has only zeros, expected one above");
  // Divisions, not products: the product may overflow.
  const bool whole =
      train.batch_tokens % data.seq_len == 0 && train.batch_tokens / data.seq_len % train.accumulation == 0;
  require(whole,
          "train.batch_tokens is {}, expected a multiple of data.seq_len * train.accumulation ({} * {})",
          train.batch_tokens, data.seq_len, train.accumulation);
  require(train.stop_at <= train.steps, "train.stop_at is {}, expected at most train.steps ({})",
          train.stop_at, train.steps);
  require(optim.warmup_steps <= train.steps, "optim.warmup_steps is {}, expected at most train.steps ({})",
          optim.warmup_steps, train.steps);
}

void require_same_run(const Config& saved, const Config& now) {
  const auto names_only = [](Config config) {
    for (std::string& file : config.data.files) file = fs::path(file).filename().string();
    return config;
  };
  Config a = names_only(saved), b = names_only(now);
  const Schema before = config_schema(a), after = config_schema(b);
  const std::set<std::string> free_to_change = {
      "moe.balance_loss", "moe.balance_scope",    "moe.balance_convention",
      "moe.z_loss",       "moe.bias_update_rate", "moe.bias_centred",
      "moe.jitter",       "moe.non_finite",       "moe.capacity_factor",
      "moe.min_capacity", "moe.capacity_scope",   "model.init_std",
      "moe.priority",     "moe.alignment_loss",   "moe.random_second",
      "model.max_seq_len"};
  for (std::size_t s = 0; s < before.size(); ++s) {
    for (std::size_t f = 0; f < before[s].fields.size(); ++f) {
      const std::string key = before[s].name + "." + before[s].fields[f].key;
      const bool fixed =
          key == "train.seed" || before[s].name == "data" ||
          ((before[s].name == "model" || before[s].name == "moe") && !free_to_change.contains(key));
      if (!fixed) continue;
      const std::string got = render_value(after[s].fields[f]), expected = render_value(before[s].fields[f]);
      require(got == expected, "{} is {}, but the run to resume was started with {}", key, got, expected);
    }
  }
}

bool exchanges_tokens(const Config& config, std::int64_t layer) {
  const std::vector<std::string>& experts = config.parallel.experts;
  return (experts.size() == 1 ? experts.front() : experts.at(static_cast<std::size_t>(layer))) == "exchange";
}

std::vector<bool> recomputed_layers(const Config& config) {
  const std::vector<std::string>& recompute = config.train.recompute;
  std::vector<bool> layers;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(config.model.num_layers); ++layer) {
    layers.push_back((recompute.size() == 1 ? recompute.front() : recompute.at(layer)) == "full");
  }
  return layers;
}

std::int64_t micro_batch_sequences(const Config& config) {
  return config.train.batch_tokens / config.data.seq_len / config.train.accumulation;
}

}  // namespace moesaic
