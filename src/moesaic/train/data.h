// data.h: token files as windows, and the seeded order in which training reads them.
//
// A window is seq_len inputs and, shifted by one, seq_len targets; windows do not share inputs. Sample i of a
// run (i counts sequences from the start of training) is one window. Without data.weights it comes from a
// permutation of all windows, drawn anew each epoch from (seed, epoch). With weights, mixture.h says which
// file sample i comes from, and it is the next of a permutation of that file's windows, drawn anew each epoch
// of that file from (seed, file, epoch). Either way the order depends on seed, files and weights alone, not
// on ranks, batch size or restarts; to resume is to know the next i. Local; nothing is copied but the windows
// asked for.
//
// Errors: those of token_source.h, and InvalidArgument where there is no training window.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moesaic/train/config.h"
#include "moesaic/train/mixture.h"
#include "moesaic/train/token_source.h"

namespace moesaic {

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
  std::size_t file = 0;  // of data.files
  std::string name;      // without its folder
  std::int64_t first = 0, count = 0;
};

// Files in order. The last held_out_fraction of each file (rounded down, in tokens) is held out, the rest is
// for training.
class Dataset {
 public:
  Dataset(const DataConfig& config, std::int64_t vocab_size);

  std::int64_t seq_len() const { return seq_len_; }
  std::span<const double> weights() const { return weights_; }  // of the files; empty = by size
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
  std::vector<double> weights_;
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
  // `dataset` is borrowed. InvalidArgument when it, or a file with a weight, has no training window.
  Sampler(const Dataset& dataset, const SamplerOptions& options);

  // Training window of sample `sample`.
  std::int64_t window_of(std::int64_t sample) const;
  // The first sample of `step`; after the last step done, what a checkpoint stores.
  std::int64_t next_sample(std::int64_t step) const;
  // What `rank` reads in one micro-step.
  Batch batch(std::int64_t step, std::int64_t micro, int rank, int world_size) const;
  // [V]: how often each token is read in the first samples of a run: an epoch of them, or 2^22 tokens.
  std::vector<std::int64_t> token_counts(std::int64_t vocab_size) const;

 private:
  const Dataset* dataset_;
  SamplerOptions options_;
  std::optional<Mixture> mixture_;
  std::vector<FileWindows> windows_;  // of each file; with a mixture only
};

}  // namespace moesaic
