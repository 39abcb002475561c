// coded_gather.h: brings the parts of a unit, one per rank, to every rank, coded against what the receivers
// already hold.
//
// Collective over a group, on one thread of each rank (start_job): every rank makes a CodedGather of a unit
// with equal arguments and runs the same ones in the same order. No torch. What a run sends:
//
//   headers    56 bytes from everyone to everyone: size, method, what is held
//   slices     of the coded parts: while one travels, the next but one is encoded, and what came is decoded;
//              each brings the size of the next
//   verdict    the number of ranks that could not decode something
//
// and a verdict alone where the version has not changed and every rank holds the words: on whether what is
// held is still what was committed (a checksum of every chunk). All ranks commit or none does; where headers
// or verdict show that some rank holds or received something else, all send key messages (which need no
// reference) instead. Headers, sizes and verdicts are facts that all ranks share, so all take the same turn.
//
// Errors: CorruptData on every rank when ranks run different units or methods, or when a key message fails,
// too; on the rank that sees it, a damaged header or size (the caller must abort the transport: start_job
// does).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moesaic/codec/message.h"
#include "moesaic/codec/method.h"
#include "moesaic/codec/reference_state.h"
#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/communicator.h"
#include "moesaic/core/buffer.h"
#include "moesaic/shard/parallel.h"

namespace moesaic {

// What one rank did.
struct GatherCounts {
  std::int64_t runs = 0;
  std::int64_t unsent = 0;       // runs in which no coded byte was sent: the version was held
  std::int64_t keys = 0;         // sent messages that needed no reference
  std::int64_t resyncs = 0;      // key messages sent because a rank held or received something else
  std::int64_t words = 0;        // of the own part, over all messages
  std::int64_t coded_bytes = 0;  // of those messages
  double encode_seconds = 0, decode_seconds = 0;
  double seconds = 0;  // of all runs, waiting for others included

  GatherCounts& operator+=(const GatherCounts& other);
};

// Memory for messages under way, shared by the gathers of one group.
struct CodingSpace {
  Buffer message;  // the own one, whole
  Buffer staging;  // its slice that is being sent, and where others' messages land
};

class CodedGather {
 public:
  // part_words[r] words of rank r of the group lie at part_offsets[r] of the whole unit. `unit` is the same
  // number on all ranks. `space` is borrowed. Method::kRaw has no code: InvalidArgument.
  CodedGather(Communicator& group, std::vector<std::int64_t> part_words,
              std::vector<std::int64_t> part_offsets, codec::Method method, ReferenceMode mode,
              std::uint64_t unit, std::string name, CodingSpace& space);

  codec::Method method() const { return method_; }
  // In which parts of at most so many words travel.
  static std::int64_t slices_of(std::int64_t most_words);

  // `mine`: the own part; `whole`: gets all parts, the own one included (which for a lossy method is not
  // `mine`: every rank has the same words). `version` changes whenever `mine` may have changed on some rank,
  // on all ranks alike.
  void run(std::span<const std::uint16_t> mine, std::span<std::uint16_t> whole, std::uint64_t version);

  const GatherCounts& counts() const { return counts_; }
  // Why keys were last sent out of turn; empty on ranks that saw nothing wrong themselves.
  const std::string& resync_reason() const { return resync_reason_; }
  // Of the references this rank holds.
  std::int64_t reference_bytes() const;
  // What is held of a part; null where this rank holds nothing of it. For fault drills.
  codec::Reference* reference(int part) { return references_.at(static_cast<std::size_t>(part)).get(); }

 private:
  struct Attempt;

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  // Whether `holder` keeps a reference of the part of rank `part`.
  bool holds(int holder, int part) const;
  std::uint64_t unit_of(int part) const;
  template <typename T>
  std::span<T> in(std::span<T> whole, int part) const {
    return whole.subspan(static_cast<std::size_t>(part_offsets_[static_cast<std::size_t>(part)]),
                         static_cast<std::size_t>(part_words_[static_cast<std::size_t>(part)]));
  }
  std::uint64_t own_digest() const;
  // False when all must send keys.
  bool attempt(std::span<const std::uint16_t> mine, std::span<std::uint16_t> whole, bool key);
  // Whether no rank had a failure; known to all.
  bool all_succeeded(std::int64_t failed_here);
  // All ranks hold the words: only a verdict crosses nodes. False when all must send keys.
  bool share_held(std::span<std::uint16_t> whole);

  Communicator* group_;
  std::vector<std::int64_t> part_words_, part_offsets_;
  codec::Method method_;
  ReferenceMode mode_;
  std::uint64_t unit_;
  std::string name_;
  CodingSpace* space_;
  std::int64_t num_slices_, slice_words_;
  std::vector<std::unique_ptr<codec::Reference>> references_;  // by part
  std::uint64_t held_version_ = 0;                             // 0: none
  std::string last_error_;                                     // of the last attempt, on this rank
  std::string resync_reason_;
  GatherCounts counts_;
};

}  // namespace moesaic
