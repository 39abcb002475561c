// permute_device.h: permute.h in tasks.
//
// The counting sort in four steps, all slots of a step at once: each tile of slots is counted by a warp
// (CountTile); a warp for each expert turns its counts, tile by tile, into their exclusive prefix
// (PrefixOfExpert); one warp adds the experts up (PrefixOfExperts); each tile's warp places its slots
// (PlaceTile). No atomics: the order of slots is the order of tiles, and in a tile that of lanes.
#pragma once

#include <cstdint>

#include "moesaic/core/device_code.h"
#include "moesaic/kernels/row_element.h"

namespace moesaic::kernels {

struct SlotTiles {
  const std::int32_t* expert_of_slot;
  std::int64_t num_slots, num_experts;
  std::int64_t tile_slots, num_tiles;
  std::int64_t* counts;  // [num_experts, num_tiles]
  std::int64_t* expert_begin;
  std::int64_t* position_of_slot;

  // Few tiles, so that the prefix of an expert is short, and enough for every core.
  static constexpr std::int64_t kFewestSlots = 256, kMostTiles = 2048;
  static constexpr std::int64_t slots_of_a_tile(std::int64_t num_slots) {
    const std::int64_t slots = (num_slots + kMostTiles - 1) / kMostTiles;
    return slots < kFewestSlots ? kFewestSlots : (slots + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
  }
  static constexpr std::int64_t tiles_of(std::int64_t num_slots) {
    return (num_slots + slots_of_a_tile(num_slots) - 1) / slots_of_a_tile(num_slots);
  }

  // Calls visit(lane, slot, expert, peers) for the slots of a tile, 32 at a time; peers: the lanes whose slot
  // has the same expert. An expert that does not exist is -1, and has no peers.
  template <class Warp, class Visit>
  MOESAIC_DEVICE void for_each_slot(const Warp& warp, std::int64_t tile, const Visit& visit) const {
    const std::int64_t end =
        tile * tile_slots + tile_slots < num_slots ? tile * tile_slots + tile_slots : num_slots;
    for (std::int64_t begin = tile * tile_slots; begin < end; begin += kWarpLanes) {
      Each<Warp, std::int32_t> expert;
      warp.each([&](unsigned lane) {
        const std::int64_t slot = begin + lane;
        expert[lane] = slot < end ? expert_of_slot[slot] : -1;
        if (expert[lane] < 0 || expert[lane] >= num_experts) expert[lane] = -1;
      });
      const auto peers = warp.match(expert);
      visit(begin, end, expert, peers);
    }
  }
};

struct CountTile : SlotTiles {
  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t tile) const {
    warp.each([&](unsigned lane) {
      for (std::int64_t e = lane; e < num_experts; e += kWarpLanes) counts[e * num_tiles + tile] = 0;
    });
    for_each_slot(warp, tile, [&](std::int64_t, std::int64_t, const auto& expert, const auto& peers) {
      warp.sync();
      warp.each([&](unsigned lane) {
        if (expert[lane] < 0 || (peers[lane] & lanes_below(lane)) != 0)
          return;  // the first of its peers counts
        counts[expert[lane] * num_tiles + tile] += count_lanes(peers[lane]);
      });
    });
  }
};

// values[0..n) become the sums of those before them; returns the sum of all.
template <class Warp>
MOESAIC_DEVICE std::int64_t exclusive_prefix(const Warp& warp, std::int64_t* values, std::int64_t n) {
  std::int64_t before = 0;
  for (std::int64_t begin = 0; begin < n; begin += kWarpLanes) {
    Each<Warp, std::int64_t> own, sum;
    warp.each([&](unsigned lane) { own[lane] = sum[lane] = begin + lane < n ? values[begin + lane] : 0; });
    for (unsigned step = 1; step < kWarpLanes; step *= 2) {
      const auto left = warp.shuffle(sum, [step](unsigned lane) { return (lane - step) % kWarpLanes; });
      warp.each([&](unsigned lane) {
        if (lane >= step) sum[lane] += left[lane];
      });
    }
    warp.each([&](unsigned lane) {
      if (begin + lane < n) values[begin + lane] = before + sum[lane] - own[lane];
    });
    const auto last = warp.shuffle(sum, [](unsigned) { return kWarpLanes - 1; });
    Each<Warp, std::int64_t> next;
    warp.each([&](unsigned lane) { next[lane] = before + last[lane]; });
    warp.each([&](unsigned lane) { before = next[lane]; });
  }
  return before;
}

struct PrefixOfExpert : SlotTiles {
  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t expert) const {
    const std::int64_t total = exclusive_prefix(warp, counts + expert * num_tiles, num_tiles);
    warp.each([&](unsigned lane) {
      if (lane == 0) expert_begin[expert] = total;
    });
  }
};

struct PrefixOfExperts : SlotTiles {
  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t) const {
    const std::int64_t total = exclusive_prefix(warp, expert_begin, num_experts);
    warp.each([&](unsigned lane) {
      if (lane == 0) expert_begin[num_experts] = total;
    });
  }
};

struct PlaceTile : SlotTiles {
  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t tile) const {
    for_each_slot(warp, tile,
                  [&](std::int64_t begin, std::int64_t end, const auto& expert, const auto& peers) {
                    warp.sync();  // the counts below were changed by the last 32 slots
                    warp.each([&](unsigned lane) {
                      if (begin + lane >= end) return;
                      std::int64_t& position = position_of_slot[begin + lane];
                      position = -1;
                      if (expert[lane] < 0) return;
                      position = expert_begin[expert[lane]] + counts[expert[lane] * num_tiles + tile] +
                                 count_lanes(peers[lane] & lanes_below(lane));
                    });
                    warp.sync();
                    warp.each([&](unsigned lane) {
                      if (expert[lane] < 0 || (peers[lane] & lanes_below(lane)) != 0) return;
                      counts[expert[lane] * num_tiles + tile] += count_lanes(peers[lane]);
                    });
                  });
  }
};

// One pack of one row to all its slots; task i: pack i % (width / kElements) of row i / (width / kElements).
// A slot without a position is left out.
template <class T, int kElements, bool kScaled>
struct PermutePack {
  const T* rows;
  const std::int64_t* slot_begin;
  const std::int64_t* position_of_slot;
  const float* factor;
  std::int64_t width;
  T* permuted;

  MOESAIC_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t packs = width / kElements, row = i / packs, d = i % packs * kElements;
    const auto from = load_pack<T, kElements>(rows + row * width + d);
    for (std::int64_t s = slot_begin[row]; s < slot_begin[row + 1]; ++s) {
      if (position_of_slot[s] < 0) continue;
      auto to = from;
      if constexpr (kScaled) {
        for (int j = 0; j < kElements; ++j) round_into(to.at[j], factor[s] * widened(from.at[j]));
      }
      store_pack<T, kElements>(permuted + position_of_slot[s] * width + d, to);
    }
  }
};

}  // namespace moesaic::kernels
