// prompts.h: the prompts of `moesaic generate`, from the command line and from files.
//
// A prompt's seed is --seed plus its number (from 0), so that any of them can be drawn again alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/infer/generate.h"

namespace moesaic::cli {

// How tokens are written on the command line and shown.
enum class TokenText {
  kBytes,  // text: a token is a byte
  kIds,    // numbers with spaces between: of a tokenizer that is not built in
};

// InvalidArgument naming the word of `text` that is no token id.
std::vector<std::int64_t> tokens_of(const std::string& text, TokenText how);

struct PromptSource {
  std::vector<std::string> texts;
  std::filesystem::path file;                        // empty: none
  std::vector<std::int64_t> max_new_tokens = {200};  // one for all, or one per prompt
  std::uint64_t seed = 0;

  // --prompt ones first, then the file's. A file named *.jsonl has an object per line: "prompt", and
  // optionally "max_new_tokens" and "seed"; any other a prompt per line. InvalidArgument naming the line or
  // the option.
  std::vector<Prompt> load(TokenText how) const;
};

}  // namespace moesaic::cli
