// token_source.h: one file of token ids, read window by window.
//
// Formats: raw little-endian uint8, uint16, uint32 (bytes is uint8 by another name), or a one-dimensional
// .npy array of uint8, uint16, uint32, int32 or int64, little-endian.
//
// The file is never read whole: a window is one read at its position, served from the system's page cache.
// It is not mapped, because a mapped file that shrinks, or whose disk fails, ends the process with SIGBUS and
// no word; here both are errors with a message. Local; thread-safe.
//
// Errors: InvalidArgument for what cannot be training data (a folder, an empty file, not a whole number of
// tokens, another element type, the side file of python -m moesaic.tokenize says otherwise); IoError from the
// system; CorruptData for a broken .npy header, a file that has shrunk since it was opened, and, when its
// window is read, a token outside the vocabulary, with file and position.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "moesaic/core/file.h"
#include "moesaic/train/config.h"

namespace moesaic {

class TokenSource {
 public:
  TokenSource(const std::filesystem::path& path, TokenFormat format, std::int64_t vocab_size);

  const std::filesystem::path& path() const { return file_.path(); }
  std::int64_t num_tokens() const { return num_tokens_; }
  // Tokens [first, first + tokens.size()).
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;

 private:
  File file_;
  std::int64_t vocab_size_;
  std::int64_t file_bytes_;
  std::int64_t data_offset_ = 0;
  std::int64_t bytes_per_token_ = 1;
  bool is_signed_ = false;
  std::int64_t num_tokens_ = 0;
};

}  // namespace moesaic
