// trip.h: one rank's tokens on their way through the exchange, each stage checked against the oracle. Checks
// throw Mismatch, so that they run on threads and in the processes of an MPI job alike.
#pragma once

#include <utility>

#include "moesaic/comm/communicator.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/moving_rows.h"
#include "moesaic/exchange/route_price.h"
#include "moesaic/exchange/rows.h"
#include "tests/exchange/all_ranks.h"
#include "tests/exchange/bits.h"
#include "tests/exchange/crossing_bytes.h"
#include "tests/exchange/oracle.h"

namespace moesaic::exchange_checks {

inline float scale_by_id(int expert) { return static_cast<float>(expert + 1); }
inline float identity(int) { return 1.0f; }

// How a trip is made; the bits must not show it, but for the wire.
struct Way {
  std::optional<Route> route = Route::kFlat;  // none: auto, without prices
  std::int64_t chunks = 1;
  bool background = false;  // by moving_rows.h
  bool fp32_sums = false;   // on the wire; else in the rows' dtype
};

inline std::string describe(const Way& way) {
  return fmt::format("route {}, {} chunks{}{}", way.route ? name_of(*way.route) : "auto", way.chunks,
                     way.background ? " in the background" : "", way.fp32_sums ? ", sums in fp32" : "");
}

// The one with the fewest bytes through the busiest card: from the plans of all ranks, without a message.
inline Route fewest_bytes(const Case& c, const Topology& topology, DType dtype, DType wire) {
  return RoutePrices(topology).cheapest(AllRanks(c, topology, Route::kFlat).counts, row_bytes(dtype, c.width),
                                        row_bytes(wire, c.width));
}

// One rank's tokens of a case on their way through the exchange.
class Trip {
 public:
  Trip(Communicator& group, const Case& c, DType dtype, Way way = {})
      : group_(group),
        case_(c),
        dtype_(dtype),
        wire_(way.fp32_sums ? DType::kF32 : dtype),
        way_(way),
        route_(way.route ? *way.route : fewest_bytes(c, group.topology(), dtype, wire_)),
        placement_(placement_of(c, group.size())),
        plan_(plan_of(c, group.rank(), group.size())),
        expected_(received_rows(c, placement_, group.rank(), group.size())),
        due_(crossing_bytes(c, placement_, group.topology(), group.rank(), dtype, wire_, route_,
                            way.chunks)) {}

  void go() {
    const auto before = group_.traffic();
    const Buffer x = packed(payload("x", group_.rank()), dtype_);
    const ConstRows tokens{x.data(), dtype_, plan_.num_tokens, case_.width};
    DispatchOptions options{.route = way_.route, .chunks = way_.chunks};
    if (wire_ != dtype_) options.bytes_per_sum = row_bytes(wire_, case_.width);
    if (way_.background) {
      handle_ = plan_dispatch(group_, plan_, placement_, row_bytes(dtype_, case_.width), options);
      move_rows(tokens);
    } else {
      handle_ = dispatch(group_, plan_, placement_, tokens, rows_, options);
    }
    expect_equal("bytes sent to other nodes by dispatch", crossed(before),
                 due_.counts + due_.lists + due_.rows);
    expect_equal("route", name_of(handle_.route), name_of(group_.size() == 1 ? Route::kFlat : route_));
    check_handle();
    check_rows("x");
  }

  void go_again() {
    const auto before = group_.traffic();
    const Buffer g = packed(payload("g", group_.rank()), dtype_);
    const ConstRows gradients{g.data(), dtype_, plan_.num_tokens, case_.width};
    if (way_.background) {
      move_rows(gradients);
    } else {
      dispatch_again(group_, handle_, gradients, rows_);
    }
    expect_equal("bytes sent to other nodes by dispatch_again", crossed(before), due_.rows);
    check_rows("g");
  }

  // Applies the stand-in experts to the rows received last ("x" or "g") and brings the sums home.
  void come_back(const std::string& purpose, ExpertFactor factor, DType result) {
    auto z = unpacked(rows_, dtype_);
    const auto experts = placement_.experts_of(group_.rank());
    for (std::size_t i = 0; i < z.size(); ++i) {
      const auto row = row_at(i / static_cast<std::size_t>(case_.width));
      std::vector<Slot> slots;
      for (auto s = handle_.slot_begin[row]; s < handle_.slot_begin[row + 1]; ++s) {
        const auto at = static_cast<std::size_t>(s);
        slots.push_back(
            {experts[static_cast<std::size_t>(handle_.slot_expert[at])], handle_.slot_weight[at]});
      }
      z[i] = owner_sum(z[i], slots, factor, wire_);
    }
    const Buffer sums = packed(z, wire_);
    Buffer y = poisoned(plan_.num_tokens * case_.width, result);
    const auto before = group_.traffic();
    const Rows home{y.data(), result, plan_.num_tokens, case_.width};
    if (way_.background) {
      MovingSums moving(group_, handle_, true);
      for (const auto& chunk : handle_.chunks) {
        moving.start({sums.data() + chunk.first_row * row_bytes(wire_, case_.width), wire_, chunk.num_rows,
                      case_.width});
      }
      moving.finish(home);
    } else {
      combine(group_, handle_, {sums.data(), wire_, handle_.num_rows(), case_.width}, home);
    }
    expect_equal("bytes sent to other nodes by combine", crossed(before), due_.sums);
    expect_same_bits("combined " + purpose, unpacked(y, result),
                     combined(plan_, placement_, group_.topology(), payload(purpose, group_.rank()),
                              case_.width, factor, wire_, result));
    if (case_.integers && factor == identity) check_scaled(purpose, unpacked(y, result));
  }

  void return_values() {
    std::vector<float> values, expected;
    const auto experts = placement_.experts_of(group_.rank());
    for (std::size_t s = 0; s < handle_.slot_expert.size(); ++s) {
      values.push_back(
          value(experts[static_cast<std::size_t>(handle_.slot_expert[s])], handle_.slot_weight[s]));
    }
    for (std::size_t i = 0; i < plan_.expert_ids.size(); ++i) {
      expected.push_back(plan_.expert_ids[i] < 0 ? 0.0f : value(plan_.expert_ids[i], plan_.weights[i]));
    }
    std::vector<float> home(expected.size(), std::numeric_limits<float>::quiet_NaN());
    if (way_.background) {
      MovingValues(group_, handle_, values, true).finish(home);
    } else {
      return_slot_values(group_, handle_, values, home);
    }
    expect_same_bits("returned slot values", home, expected);
  }

 private:
  static float value(int expert, float weight) { return 0.5f * static_cast<float>(expert + 1) + weight; }
  std::int64_t crossed(const Traffic& before) const {
    return group_.traffic().inter_node_bytes - before.inter_node_bytes;
  }
  void move_rows(const ConstRows& x) {
    MovingRows moving = start_rows(group_, handle_, x, rows_, true);
    for (std::size_t c = 0; c < handle_.chunks.size(); ++c) moving.wait(c);
  }
  // Which row lies at a place of memory.
  std::size_t row_at(std::size_t place) const {
    return handle_.row_there.empty() ? place : static_cast<std::size_t>(handle_.row_there[place]);
  }
  std::vector<float> payload(const std::string& purpose, int rank) const {
    return payload_of(case_, purpose, rank, group_.size(), dtype_);
  }

  // Rows by (source rank, token), slots by ascending k.
  void check_handle() const {
    expect_equal("rows received", handle_.num_rows(), std::ssize(expected_));
    const auto experts = placement_.experts_of(group_.rank());
    std::vector<std::int64_t> rows_from(static_cast<std::size_t>(group_.size()), 0), slots_from = rows_from;
    std::size_t s = 0;
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const auto& row = expected_[i];
      expect_equal(fmt::format("first slot of row {}", i), handle_.slot_begin[i],
                   static_cast<std::int64_t>(s));
      for (const Slot& slot : row.slots) {
        expect_equal(fmt::format("expert of slot {}", s),
                     experts[static_cast<std::size_t>(handle_.slot_expert.at(s))], slot.expert);
        expect_same_bits("weight of a slot", {handle_.slot_weight.at(s)}, {slot.weight});
        ++s;
      }
      ++rows_from[static_cast<std::size_t>(row.source)];
      slots_from[static_cast<std::size_t>(row.source)] += std::ssize(row.slots);
    }
    expect_equal("slots received", handle_.num_slots(), static_cast<std::int64_t>(s));
    expect_equal("end of the last row", handle_.slot_begin.back(), static_cast<std::int64_t>(s));
    if (handle_.receive_rows != rows_from) throw Mismatch("rows received per rank are wrong");
    if (handle_.receive_slots != slots_from) throw Mismatch("slots received per rank are wrong");
    check_chunks();
  }

  // Every token and row once, chunk by chunk; tokens of a chunk are those of its range, on every rank.
  void check_chunks() const {
    expect_equal("chunks", std::ssize(handle_.chunks), group_.size() == 1 ? 1 : way_.chunks);
    expect_equal("places of rows", handle_.row_there.size(),
                 handle_.chunks.size() == 1 ? 0 : expected_.size());
    std::int64_t token = 0, place = 0;
    for (std::size_t c = 0; c < handle_.chunks.size(); ++c) {
      const auto& chunk = handle_.chunks[c];
      expect_equal("first token of a chunk", chunk.first_token, token);
      expect_equal("first row of a chunk", chunk.first_row, place);
      std::pair<int, std::int64_t> before{-1, -1};
      for (const std::int64_t end = place + chunk.num_rows; place < end; ++place) {
        const auto& row = expected_.at(row_at(static_cast<std::size_t>(place)));
        const std::int64_t tokens = num_tokens_of(case_, row.source, group_.size());
        const auto in_chunk = static_cast<std::int64_t>(c), num_chunks = std::ssize(handle_.chunks);
        if (row.token < tokens * in_chunk / num_chunks || row.token >= tokens * (in_chunk + 1) / num_chunks) {
          throw Mismatch(
              fmt::format("token {} of {} is in chunk {} of {}", row.token, tokens, c, num_chunks));
        }
        const std::pair now{row.source, row.token};
        if (now <= before) throw Mismatch("rows of a chunk are not in order");
        before = now;
      }
      token += chunk.num_tokens;
    }
    expect_equal("tokens of all chunks", token, plan_.num_tokens);
    expect_equal("rows of all chunks", place, handle_.num_rows());
  }

  void check_rows(const std::string& purpose) const {
    std::vector<float> expected;
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const auto& row = expected_[row_at(i)];
      const auto x = payload(purpose, row.source);
      const auto begin = x.begin() + row.token * case_.width;
      expected.insert(expected.end(), begin, begin + case_.width);
    }
    expect_same_bits("rows of " + purpose, unpacked(rows_, dtype_), expected);
    if (reinterpret_cast<std::uintptr_t>(rows_.data()) % kAlignment != 0)
      throw Mismatch("rows are not aligned");
  }

  // combine(dispatch(x)) with identity experts is x scaled by its summed weights: exactly so for integers and
  // eighths.
  void check_scaled(const std::string& purpose, const std::vector<float>& y) const {
    const auto x = payload(purpose, group_.rank());
    std::vector<float> expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto t = static_cast<std::int64_t>(i) / case_.width;
      float sum = 0;
      for (int k = 0; k < case_.top_k; ++k)
        sum += plan_.weights[static_cast<std::size_t>(t * case_.top_k + k)];
      expected.push_back(rounded(sum * x[i], dtype_));
    }
    for (std::size_t i = 0; i < y.size(); ++i)
      expect_equal(fmt::format("scaled element {}", i), y[i], expected[i]);
  }

  Communicator& group_;
  const Case& case_;
  DType dtype_, wire_;
  Way way_;
  Route route_;
  Placement placement_;
  RoutingPlan plan_;
  std::vector<ReceivedRow> expected_;
  CrossingBytes due_;
  Buffer rows_;
  DispatchHandle handle_;
};

}  // namespace moesaic::exchange_checks
