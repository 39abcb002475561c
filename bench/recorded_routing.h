// recorded_routing.h: experts that a trained model chose for the sample text (bench/data/routing.npy).
//
// One layer after the other, token by token: 64 experts, 8 choices, the best first. How it was recorded:
// docs/performance.md, "Exchange on a cluster".
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"

namespace moesaic::bench {

class RecordedRouting {
 public:
  static constexpr int kExperts = 64, kChoices = 8;

  RecordedRouting() : file_(read_text(MOESAIC_SOURCE_DIR "/bench/data/routing.npy")) {
    constexpr std::size_t kVersionOne = 10;  // bytes before the header's text; its length are the last two
    require(file_.size() > kVersionOne && file_.starts_with("\x93NUMPY\x01"), "routing.npy: no NumPy array");
    const auto byte = [&](std::size_t i) {
      return static_cast<std::size_t>(static_cast<std::uint8_t>(file_[i]));
    };
    begin_ = kVersionOne + byte(8) + 256 * byte(9);
    require(file_.size() > begin_ && (file_.size() - begin_) % kChoices == 0 && file_.find("'|u1'") < begin_,
            "routing.npy: expected uint8 [tokens, {}]", kChoices);
    num_tokens_ = static_cast<std::int64_t>((file_.size() - begin_) / kChoices);
  }

  // Of token t, counted past the end from the start again.
  std::int32_t choice(std::int64_t t, int k) const {
    return static_cast<std::uint8_t>(
        file_[begin_ + static_cast<std::size_t>(t % num_tokens_ * kChoices + k)]);
  }

 private:
  std::string file_;
  std::size_t begin_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace moesaic::bench
