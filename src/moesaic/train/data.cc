#include "moesaic/train/data.h"

#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {

Dataset::Dataset(const DataConfig& config, std::int64_t vocab_size)
    : seq_len_(config.seq_len), weights_(config.weights) {
  require(!config.files.empty(), "data.files is empty, expected at least one token file");
  require(seq_len_ >= 1, "data.seq_len is {}, expected at least 1", seq_len_);
  for (const std::string& file : config.files) {
    const TokenSource& source = sources_.emplace_back(file, config.format, vocab_size);
    const auto held_out = static_cast<std::int64_t>(
        std::floor(config.held_out_fraction * static_cast<double>(source.num_tokens())));
    const std::int64_t training = source.num_tokens() - held_out;
    add_part(training_, num_training_, sources_.size() - 1, 0, training);
    add_part(held_out_, num_held_out_, sources_.size() - 1, training, held_out);
  }
}

void Dataset::add_part(std::vector<Part>& parts, std::int64_t& windows, std::size_t source,
                       std::int64_t first, std::int64_t count) {
  const std::int64_t whole = (count - 1) / seq_len_;  // the last target needs one more token
  if (count < 1 || whole == 0) return;
  parts.push_back({source, first, windows});
  windows += whole;
}

std::int64_t Dataset::num_windows(Split split) const {
  return split == Split::kTraining ? num_training_ : num_held_out_;
}

std::vector<FileWindows> Dataset::files(Split split) const {
  std::vector<FileWindows> files;
  const std::vector<Part>& in_order = parts(split);
  for (std::size_t i = 0; i < in_order.size(); ++i) {
    const std::int64_t end = i + 1 < in_order.size() ? in_order[i + 1].first_window : num_windows(split);
    files.push_back({in_order[i].source, sources_[in_order[i].source].path().filename().string(),
                     in_order[i].first_window, end - in_order[i].first_window});
  }
  return files;
}

Batch Dataset::read(Split split, std::span<const std::int64_t> windows) const {
  Batch batch;
  batch.num_sequences = static_cast<std::int64_t>(windows.size());
  std::vector<std::int64_t> row(static_cast<std::size_t>(seq_len_) + 1);
  for (const std::int64_t window : windows) {
    require(window >= 0 && window < num_windows(split), "window {} requested of {}", window,
            num_windows(split));
    const auto after = std::ranges::upper_bound(parts(split), window, {}, &Part::first_window);
    const Part& part = *std::prev(after);
    sources_[part.source].read(part.first_token + (window - part.first_window) * seq_len_, row);
    batch.tokens.insert(batch.tokens.end(), row.begin(), row.end() - 1);
    batch.targets.insert(batch.targets.end(), row.begin() + 1, row.end());
  }
  return batch;
}

RowRange rows_of_rank(std::int64_t total, int rank, int world_size) {
  const std::int64_t each = total / world_size, more = total % world_size;
  return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

Sampler::Sampler(const Dataset& dataset, const SamplerOptions& options)
    : dataset_(&dataset), options_(options) {
  require(dataset.num_windows(Split::kTraining) > 0,
          "the training part of data.files has no window of data.seq_len + 1 = {} tokens",
          dataset.seq_len() + 1);
  if (dataset.weights().empty()) return;
  mixture_.emplace(dataset.weights());
  windows_.resize(dataset.weights().size());
  for (FileWindows& windows : dataset.files(Split::kTraining)) windows_[windows.file] = std::move(windows);
  for (std::size_t file = 0; file < windows_.size(); ++file) {
    require(dataset.weights()[file] == 0 || windows_[file].count > 0,
            "data.weights gives file {} of data.files the weight {}, but its training part has no window of "
            "data.seq_len + 1 = {} tokens",
            file + 1, dataset.weights()[file], dataset.seq_len() + 1);
  }
}

std::int64_t Sampler::window_of(std::int64_t sample) const {
  const auto seed = static_cast<std::uint64_t>(options_.seed);
  if (mixture_) {
    const auto [file, nth] = mixture_->at(sample);
    const FileWindows& windows = windows_[file];
    const std::uint64_t key =
        random_key(seed, fmt::format("training windows of file {} in epoch {}", file, nth / windows.count));
    return windows.first + random_permutation(key, windows.count, nth % windows.count);
  }
  const std::int64_t windows = dataset_->num_windows(Split::kTraining);
  const std::int64_t epoch = sample / windows;
  const std::uint64_t key = random_key(seed, fmt::format("training windows of epoch {}", epoch));
  return random_permutation(key, windows, sample % windows);
}

std::int64_t Sampler::next_sample(std::int64_t step) const {
  return options_.first_sample + (step - options_.first_step) * options_.accumulation * options_.sequences;
}

Batch Sampler::batch(std::int64_t step, std::int64_t micro, int rank, int world_size) const {
  const RowRange rows = rows_of_rank(options_.sequences, rank, world_size);
  const std::int64_t first = next_sample(step) + micro * options_.sequences + rows.first;
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < rows.count; ++i) windows.push_back(window_of(first + i));
  Batch batch = dataset_->read(Split::kTraining, windows);
  batch.first_sequence = rows.first;
  return batch;
}

std::vector<std::int64_t> Sampler::token_counts(std::int64_t vocab_size) const {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;
  const std::int64_t samples = std::min(dataset_->num_windows(Split::kTraining),
                                        std::max<std::int64_t>(1, kMostTokens / dataset_->seq_len()));
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocab_size), 0);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t window = window_of(i);
    const Batch batch = dataset_->read(Split::kTraining, std::span(&window, 1));
    for (const std::int64_t token : batch.tokens) ++counts[static_cast<std::size_t>(token)];
  }
  return counts;
}

}  // namespace moesaic
