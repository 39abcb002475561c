// moe_layer_peers.h: the same layer in other programs: child processes that take turns with ours.
//
// Weights, tokens and results pass through files (safetensors); peers/moe_layers.py is the other end. Between
// two requests a peer sleeps on its pipe. Its clock is its own, so the pipe is not in its times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/moe_layer_case.h"

namespace moesaic::bench {

class LayerPeer {
 public:
  LayerPeer(std::string variant, std::string python)
      : variant_(std::move(variant)), python_(std::move(python)) {}

  const std::string& variant() const { return variant_; }
  // Whether this peer has such a layer at all.
  bool has(const LayerCase& layer) const;

  // Starts it unless it runs; `folder` has the inputs (layer_files.h). Everything below throws Error with the
  // reason where it cannot; the next load() starts anew then. Returns what a reader of its figures has to
  // know, or "".
  std::string load(const LayerCase& layer, const LayerInputs& inputs, const std::filesystem::path& folder);
  LayerResults results();
  double us_per_call(std::int64_t calls);
  void unload();

 private:
  void start();
  nlohmann::json ask(const nlohmann::json& request);

  std::string variant_, python_;
  std::unique_ptr<ChildProcess> process_;  // none before the first case, and after a failure
  std::string why_not_;                    // it cannot start at all
};

// Of `python` (transformers) and `peers_python` (what bench/peers/setup.sh installs).
std::vector<LayerPeer> layer_peers(const std::string& python, const std::string& peers_python);

}  // namespace moesaic::bench
