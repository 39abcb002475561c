#include "moesaic/cli/prompts.h"

#include <charconv>
#include <sstream>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/core/json.h"

namespace moesaic::cli {
namespace {

// A line of a .jsonl file over the values that hold for all.
void read_object(const std::string& line, const std::string& where, TokenText how, Prompt& prompt) {
  const nlohmann::json object = parse_json(line, where, 2);
  require(object.is_object() && object.contains("prompt"), "{}: expected an object with \"prompt\", got {}",
          where, line);
  for (const auto& [key, value] : object.items()) {
    if (key == "prompt") {
      require(value.is_string(), "{}: prompt is {}, expected a string", where, value.dump());
      prompt.tokens = tokens_of(value.get<std::string>(), how);
      continue;
    }
    require(key == "max_new_tokens" || key == "seed",
            "{}: unknown key \"{}\", expected prompt, max_new_tokens, seed", where, key);
    require(value.is_number_unsigned(), "{}: {} is {}, expected a whole number, 0 or more", where, key,
            value.dump());
    require(key == "seed" || value.get<std::uint64_t>() <= 1'000'000'000,
            "{}: max_new_tokens is {}, expected at most 1000000000", where, value.dump());
    if (key == "seed") {
      prompt.seed = value.get<std::uint64_t>();
    } else {
      prompt.max_new_tokens = value.get<std::int64_t>();
    }
  }
}

}  // namespace

std::vector<std::int64_t> tokens_of(const std::string& text, TokenText how) {
  std::vector<std::int64_t> tokens;
  if (how == TokenText::kBytes) {
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    require(
        error == std::errc() && end == word.data() + word.size() && id >= 0,
        "this model's tokens are no bytes: expected token ids with spaces between, such as \"12 7 305\", got "
        "\"{}\" (python -m moesaic.generate takes text, and the tokenizer)",
        word);
    tokens.push_back(id);
  }
  return tokens;
}

std::vector<Prompt> PromptSource::load(TokenText how) const {
  std::vector<Prompt> prompts;
  const auto next = [&]() -> Prompt& {
    const std::size_t number = prompts.size();
    const std::int64_t wanted = max_new_tokens.size() == 1       ? max_new_tokens.front()
                                : number < max_new_tokens.size() ? max_new_tokens[number]
                                                                 : 0;
    return prompts.emplace_back(Prompt{{}, wanted, seed + number});
  };
  for (const std::string& text : texts) next().tokens = tokens_of(text, how);
  if (!file.empty()) {
    std::istringstream lines(read_text(file));
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      if (file.extension() == ".jsonl") {
        read_object(line, fmt::format("{}, line {}", file.string(), number), how, next());
      } else {
        next().tokens = tokens_of(line, how);
      }
    }
  }
  require(!prompts.empty(),
          "generate has no prompt, expected --prompt TEXT or --prompts-file FILE with some");
  require(max_new_tokens.size() == 1 || max_new_tokens.size() == prompts.size(),
          "--max-new-tokens is given {} times for {} prompts, expected once, or once per prompt",
          max_new_tokens.size(), prompts.size());
  return prompts;
}

}  // namespace moesaic::cli
