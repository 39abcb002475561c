// data.h: token files as windows, and the seeded order in which training reads them.
//
// A window is seq_len inputs and, shifted by one, seq_len targets; windows do not share inputs. Sample i of a
// run (i counts sequences from the start of training) is one window, by a permutation drawn anew each epoch
// from (seed, epoch). So the order depends on the seed alone, not on ranks, batch size or restarts; to resume
// is to know the next i. Local; nothing is copied but the windows asked for.
//
// Errors: InvalidArgument for files that cannot be training data (empty, not a whole number of tokens,
// shorter than a window), CorruptData naming file and position for a token id outside the vocabulary, when
// its window is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "moesaic/core/file.h"
#include "moesaic/train/config.h"

namespace moesaic {

// One file of tokens, memory-mapped.
class TokenSource {
 public:
  TokenSource(const std::filesystem::path& path, TokenFormat format, std::int64_t vocab_size);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t num_tokens() const;
  // Tokens [first, first + tokens.size()).
  void read(std::int64_t first, std::span<std::int64_t> tokens) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::int64_t bytes_per_token_;
  std::int64_t vocab_size_;
};

// Sequences of one rank: B rows of S = seq_len.
struct Batch {
  std::int64_t first_sequence = 0;    // position of row 0 within what all ranks read together
  std::int64_t num_sequences = 0;     // B; may be 0
  std::vector<std::int64_t> tokens;   // [B,S]
  std::vector<std::int64_t> targets;  // [B,S]
};

enum class Split { kTraining, kHeldOut };

// One file's windows within a split.
struct FileWindows {
  std::string name;  // without its folder
  std::int64_t first = 0, count = 0;
};

// Files in order. The last held_out_fraction of each file (rounded down, in tokens) is held out, the rest is
// for training.
class Dataset {
 public:
  Dataset(const DataConfig& config, std::int64_t vocab_size);

  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t num_windows(Split split) const;
  // Files that have a window in `split`, in order.
  std::vector<FileWindows> files(Split split) const;
  // Windows in the order given, as one batch.
  Batch read(Split split, std::span<const std::int64_t> windows) const;

 private:
  struct Part {
    std::size_t source;
    std::int64_t first_token;
    std::int64_t first_window;  // number of windows in the parts before
  };
  const std::vector<Part>& parts(Split split) const {
    return split == Split::kTraining ? training_ : held_out_;
  }
  void add_part(std::vector<Part>& parts, std::int64_t& windows, std::size_t source, std::int64_t first,
                std::int64_t count);

  std::int64_t seq_len_;
  std::vector<TokenSource> sources_;
  std::vector<Part> training_, held_out_;
  std::int64_t num_training_ = 0, num_held_out_ = 0;  // windows
};

// Rows of `total` that belong to `rank`: contiguous, the first ranks get one more. 8 over 3: 3, 3, 2.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
RowRange rows_of_rank(std::int64_t total, int rank, int world_size);

struct SamplerOptions {
  std::int64_t seed = 0;
  std::int64_t sequences = 1;     // of all ranks, per micro-step
  std::int64_t accumulation = 1;  // micro-steps per step
  // Resume: step `first_step` starts at sample `first_sample` (next_sample(first_step) of the run that
  // saved).
  std::int64_t first_step = 0;
  std::int64_t first_sample = 0;
};

class Sampler {
 public:
  // `dataset` is borrowed. InvalidArgument when it has no training window.
  Sampler(const Dataset& dataset, const SamplerOptions& options);

  // Training window of sample `sample`.
  std::int64_t window_of(std::int64_t sample) const;
  // The first sample of `step`; after the last step done, what a checkpoint stores.
  std::int64_t next_sample(std::int64_t step) const;
  // What `rank` reads in one micro-step.
  Batch batch(std::int64_t step, std::int64_t micro, int rank, int world_size) const;

 private:
  const Dataset* dataset_;
  SamplerOptions options_;
};

}  // namespace moesaic
