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

// Text as tokens of the built-in byte tokenizer.
std::vector<std::int64_t> bytes_of(const std::string& text);

struct PromptSource {
  std::vector<std::string> texts;
  std::filesystem::path file;                        // empty: none
  std::vector<std::int64_t> max_new_tokens = {200};  // one for all, or one per prompt
  std::uint64_t seed = 0;

  // --prompt ones first, then the file's. A file named *.jsonl has an object per line: "prompt", and
  // optionally "max_new_tokens" and "seed"; any other a prompt per line. InvalidArgument naming the line or
  // the option.
  std::vector<Prompt> load() const;
};

}  // namespace moesaic::cli
