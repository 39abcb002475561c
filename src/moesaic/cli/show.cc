#include "moesaic/cli/show.h"

#include <fmt/format.h>

#include <cstdio>

namespace moesaic::cli {

TextShow::TextShow(const std::vector<Prompt>& prompts, TokenText how) : blocks_(prompts.size()), how_(how) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (const std::int64_t token : prompts[i].tokens) append(i, token);
    if (prompts[i].max_new_tokens == 0) end(i);
  }
  flow();
}

void TextShow::add(std::size_t prompt, std::int64_t token, bool last) {
  append(prompt, token);
  if (last) end(prompt);
  if (prompt == open_) flow();
}

void TextShow::append(std::size_t prompt, std::int64_t token) {
  Block& block = blocks_[prompt];
  if (how_ == TokenText::kIds) {
    block.waiting += fmt::format("{}{}", block.begun ? " " : "", token);
    block.begun = true;
    return;
  }
  // A vocabulary may be larger than the bytes it was trained on: what is no byte is no text.
  block.waiting += token < 256 ? block.stream.add(static_cast<std::uint8_t>(token))
                               : block.stream.finish() + "\xEF\xBF\xBD";
}

void TextShow::end(std::size_t prompt) {
  blocks_[prompt].waiting += blocks_[prompt].stream.finish() + "\n";
  blocks_[prompt].ended = true;
}

void TextShow::flow() {
  for (; open_ < blocks_.size(); ++open_, labelled_ = false) {
    Block& block = blocks_[open_];
    if (blocks_.size() > 1 && !labelled_) fmt::print("--- prompt {} ---\n", open_ + 1);
    labelled_ = true;
    fmt::print("{}", block.waiting);
    block.waiting.clear();
    if (!block.ended) break;
  }
  std::fflush(stdout);
}

std::string describe(const GenerateStats& stats, std::int64_t cache_bytes, std::int64_t prefill_gather_bytes,
                     std::int64_t decode_gather_bytes) {
  const auto per_s = [](std::int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); };
  std::string text = fmt::format("prefill {} tokens in {:.3f} s: {:.1f} tokens/s\n", stats.prefill_tokens,
                                 stats.prefill_seconds, per_s(stats.prefill_tokens, stats.prefill_seconds));
  if (stats.decode_rounds > 0) {
    text += fmt::format(
        "decode  {} tokens in {:.3f} s: {:.1f} tokens/s, {:.2f} ms until each prompt's next\n",
        stats.decode_tokens, stats.decode_seconds, per_s(stats.decode_tokens, stats.decode_seconds),
        1e3 * stats.decode_seconds / static_cast<double>(stats.decode_rounds));
  }
  if (stats.reread_tokens > 0) {
    text += fmt::format("        {} tokens were read again as contexts outgrew their length\n",
                        stats.reread_tokens);
  }
  text += fmt::format("key-value cache {:.2f} MiB on the fullest rank\n", mib(cache_bytes));
  if (prefill_gather_bytes + decode_gather_bytes > 0) {
    text += fmt::format("weights gathered: {:.2f} MiB in prefill, {:.2f} MiB in decode, sent by all ranks\n",
                        mib(prefill_gather_bytes), mib(decode_gather_bytes));
  }
  return text;
}

}  // namespace moesaic::cli
