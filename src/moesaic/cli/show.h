// show.h: generated text on standard output as it comes, and what it cost.
//
// Bytes are shown as UTF-8, ids as numbers with spaces between. One prompt: its text flows. Several: a
// labelled block each, in order; the first unfinished one flows while what the others have waits, so that the
// output is the same whatever finishes first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/cli/prompts.h"
#include "moesaic/infer/generate.h"
#include "moesaic/infer/text_stream.h"

namespace moesaic::cli {

class TextShow {
 public:
  TextShow(const std::vector<Prompt>& prompts, TokenText how);
  void add(std::size_t prompt, std::int64_t token, bool last);

 private:
  struct Block {
    TextStream stream;
    std::string waiting;  // valid UTF-8, not shown yet
    bool begun = false;
    bool ended = false;
  };
  void append(std::size_t prompt, std::int64_t token);
  void end(std::size_t prompt);
  void flow();

  std::vector<Block> blocks_;
  TokenText how_;
  std::size_t open_ = 0;  // the block that flows
  bool labelled_ = false;
};

// Lines for standard error. cache_bytes: of the fullest rank; gather bytes: sent by all ranks.
std::string describe(const GenerateStats& stats, std::int64_t cache_bytes, std::int64_t prefill_gather_bytes,
                     std::int64_t decode_gather_bytes);

}  // namespace moesaic::cli
