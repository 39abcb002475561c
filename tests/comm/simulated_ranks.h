// simulated_ranks.h: runs the schedules of all ranks in one thread, on the least obliging of transports.
//
// A send is over only when its message has been received; a receive may have its target written from when it
// is posted; everything that may happen next is drawn by a seed. So a wait in a circle, memory that is used
// twice at a time, or two messages that share a slot at a time show as what they are.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "moesaic/comm/ordered_sum.h"
#include "moesaic/comm/schedule.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {

class SimulatedRanks {
 public:
  using Bytes = std::vector<std::byte>;

  // What a kNotify of `rank` does.
  using OnNotify = std::function<void(std::size_t rank, const Op&)>;

  // inputs, outputs and stagings (empty: outputs) by rank; the latter two are written.
  SimulatedRanks(const std::vector<Schedule>& schedules, const std::vector<Bytes>& inputs,
                 std::vector<Bytes>& outputs, std::uint64_t seed, std::vector<Bytes>* stagings = nullptr,
                 OnNotify on_notify = {})
      : schedules_(schedules),
        inputs_(inputs),
        outputs_(outputs),
        stagings_(stagings),
        on_notify_(std::move(on_notify)),
        seed_(seed) {
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      const auto& ops = schedules[rank].ops;
      scratch_.emplace_back(static_cast<std::size_t>(schedules[rank].scratch_bytes));
      missing_.emplace_back();
      followers_.emplace_back(ops.size());
      for (std::size_t i = 0; i < ops.size(); ++i) {
        missing_[rank].push_back(ops[i].after.size());
        for (const std::int32_t earlier : ops[i].after) {
          followers_[rank][static_cast<std::size_t>(earlier)].push_back(i);
        }
        if (ops[i].after.empty()) ready_.push_back({rank, i});
      }
      left_ += ops.size();
    }
  }

  // Throws Error when nothing can happen any more before all is done.
  void run() {
    while (!ready_.empty() || !meetings_.empty()) {
      const std::size_t choice = random_bits(seed_, draws_++) % (ready_.size() + meetings_.size());
      if (choice < ready_.size()) {
        begin(take(ready_, choice));
      } else {
        meet(take(meetings_, choice - ready_.size()));
      }
    }
    if (left_ > 0) throw Error(fmt::format("{} operations wait for each other", left_));
  }

 private:
  struct At {
    std::size_t rank, op;
  };
  struct Meeting {
    At send, receive;
  };
  using Key = std::tuple<std::size_t, std::size_t, std::int32_t>;  // from, to, slot

  template <typename T>
  static T take(std::vector<T>& from, std::size_t i) {
    std::swap(from[i], from.back());
    const T taken = from.back();
    from.pop_back();
    return taken;
  }

  const Op& op(At at) const { return schedules_[at.rank].ops[at.op]; }
  std::byte* write(std::size_t rank, const Range& range) {
    const bool staged = stagings_ != nullptr && range.buffer == BufferId::kStaging;
    Bytes& buffer = range.buffer == BufferId::kScratch ? scratch_[rank]
                    : staged                           ? (*stagings_)[rank]
                                                       : outputs_[rank];
    return buffer.data() + checked(range, buffer.size());
  }
  const std::byte* read(std::size_t rank, const Range& range) {
    if (range.buffer != BufferId::kInput) return write(rank, range);
    return inputs_[rank].data() + checked(range, inputs_[rank].size());
  }
  static std::int64_t checked(const Range& range, std::size_t size) {
    if (range.offset < 0 || range.offset + range.bytes > static_cast<std::int64_t>(size)) {
      throw Error(fmt::format("bytes {} + {} of {}", range.offset, range.bytes, size));
    }
    return range.offset;
  }

  void begin(At at) {
    const Op& o = op(at);
    const auto peer = static_cast<std::size_t>(o.peer);
    if (o.kind == OpKind::kSend) {
      post(sends_, receives_, {at.rank, peer, o.slot}, at);
    } else if (o.kind == OpKind::kReceive) {
      if (o.target.bytes > 0) {
        std::memset(write(at.rank, o.target), 0xa5, static_cast<std::size_t>(o.target.bytes));
      }
      post(receives_, sends_, {peer, at.rank, o.slot}, at);
    } else if (o.kind == OpKind::kCopy) {
      std::memmove(write(at.rank, o.target), read(at.rank, o.source),
                   static_cast<std::size_t>(o.source.bytes));
      finish(at);
    } else if (o.kind == OpKind::kSum) {
      std::vector<std::vector<const std::byte*>> parts;
      for (const auto& node : o.parts) {
        auto& of_node = parts.emplace_back();
        for (const Range& part : node) of_node.push_back(read(at.rank, part));
      }
      reference::ordered_sum(o.wire, parts, o.target.bytes / size_of(o.result), o.result,
                             write(at.rank, o.target));
      finish(at);
    } else {
      if (on_notify_) on_notify_(at.rank, o);
      finish(at);
    }
  }

  void post(std::map<Key, At>& own, std::map<Key, At>& other, const Key& key, At at) {
    if (std::get<2>(key) < 0 || std::get<2>(key) > 63) throw Error("a slot out of range");
    if (!own.emplace(key, at).second) throw Error("two messages share a slot at a time");
    if (const auto found = other.find(key); found != other.end()) {
      meetings_.push_back(&own == &sends_ ? Meeting{at, found->second} : Meeting{found->second, at});
    }
  }

  void meet(Meeting meeting) {
    const Range& source = op(meeting.send).source;
    const Range& target = op(meeting.receive).target;
    if (source.bytes != target.bytes) throw Error(fmt::format("{} bytes for {}", source.bytes, target.bytes));
    if (source.bytes > 0) {
      std::memcpy(write(meeting.receive.rank, target), read(meeting.send.rank, source),
                  static_cast<std::size_t>(source.bytes));
    }
    const Key key{meeting.send.rank, meeting.receive.rank, op(meeting.send).slot};
    sends_.erase(key);
    receives_.erase(key);
    finish(meeting.send);
    finish(meeting.receive);
  }

  void finish(At at) {
    --left_;
    for (const std::size_t follower : followers_[at.rank][at.op]) {
      if (--missing_[at.rank][follower] == 0) ready_.push_back({at.rank, follower});
    }
  }

  const std::vector<Schedule>& schedules_;
  const std::vector<Bytes>& inputs_;
  std::vector<Bytes>& outputs_;
  std::vector<Bytes>* stagings_;
  OnNotify on_notify_;
  std::uint64_t seed_, draws_ = 0;
  std::vector<Bytes> scratch_;
  std::vector<std::vector<std::size_t>> missing_;
  std::vector<std::vector<std::vector<std::size_t>>> followers_;
  std::vector<At> ready_;
  std::map<Key, At> sends_, receives_;  // posted, not yet over
  std::vector<Meeting> meetings_;
  std::size_t left_ = 0;
};

}  // namespace moesaic
