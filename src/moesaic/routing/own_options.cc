// Options that only some gates read. Which gate reads which: own_options in the gates' files.
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

struct OwnOption {
  std::string_view key;
  bool (*equal)(const GateOptions&, const GateOptions&);
  void (*copy)(const GateOptions& from, GateOptions& to);
  std::string (*text)(const GateOptions&);
};

template <typename T>
T text_of(T value) {
  return value;
}
std::string_view text_of(ScoreKind score) { return score == ScoreKind::kSigmoid ? "sigmoid" : "softmax"; }
std::string_view text_of(HashTable table) { return table == HashTable::kRandom ? "random" : "balanced"; }
std::string_view text_of(Cooling cooling) {
  return cooling == Cooling::kExponential ? "exponential" : "linear";
}

template <auto kMember>
constexpr OwnOption own(std::string_view key) {
  return {key, [](const GateOptions& a, const GateOptions& b) { return a.*kMember == b.*kMember; },
          [](const GateOptions& from, GateOptions& to) { to.*kMember = from.*kMember; },
          [](const GateOptions& options) { return fmt::format("{}", text_of(options.*kMember)); }};
}

constexpr OwnOption kOwnOptions[] = {
    own<&GateOptions::score>("score"),
    own<&GateOptions::route_scale>("route_scale"),
    own<&GateOptions::bias_balance>("bias_balance"),
    own<&GateOptions::bias_update_rate>("bias_update_rate"),
    own<&GateOptions::bias_centred>("bias_centred"),
    own<&GateOptions::num_groups>("num_groups"),
    own<&GateOptions::kept_groups>("kept_groups"),
    own<&GateOptions::alignment_loss>("alignment_loss"),
    own<&GateOptions::random_second>("random_second"),
    own<&GateOptions::hash_table>("hash_table"),
    own<&GateOptions::threshold>("threshold"),
    own<&GateOptions::first_temperature>("first_temperature"),
    own<&GateOptions::last_temperature>("last_temperature"),
    own<&GateOptions::cooling_steps>("cooling_steps"),
    own<&GateOptions::cooling>("cooling"),
    own<&GateOptions::sparse_after>("sparse_after"),
};

bool reads(const Gate& gate, std::string_view key) {
  return std::ranges::find(gate.own_options, key) != std::end(gate.own_options);
}

std::vector<std::string> readers_of(std::string_view key) {
  std::vector<std::string> names = gate_names();
  std::erase_if(names, [&](const std::string& name) { return !reads(gate_named(name), key); });
  return names;
}

}  // namespace

GateOptions without_foreign_options(GateOptions options) {
  const Gate& gate = gate_named(options.name);
  for (const OwnOption& option : kOwnOptions) {
    if (!reads(gate, option.key)) option.copy(GateOptions{}, options);
  }
  return options;
}

void refuse_foreign_options(const GateOptions& options) {
  const Gate& gate = gate_named(options.name);
  const GateOptions defaults;
  for (const OwnOption& option : kOwnOptions) {
    require(reads(gate, option.key) || option.equal(options, defaults),
            "gate: {} is {} with the {} gate, expected {}: only {} reads it", option.key,
            option.text(options), gate.name, option.text(defaults),
            fmt::join(readers_of(option.key), " or "));
  }
}

}  // namespace moesaic
