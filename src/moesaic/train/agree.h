// agree.h: ranks tell each other in words how it went.
//
// Collective: all ranks, same order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moesaic/comm/communicator.h"

namespace moesaic {

// Every rank's text, by rank.
std::vector<std::string> gather_texts(Communicator& world, const std::string& mine);

// Every rank's text, by rank, on rank 0; nothing elsewhere. For texts too long for every rank to hold.
std::vector<std::string> texts_on_rank_0(Communicator& world, const std::string& mine);

// How this rank's work failed; empty as long as it did not.
struct Failure {
  enum class Kind : char { kInvalidArgument = 'a', kCorruptData = 'd', kIoError = 'i' };
  Kind kind = Kind::kIoError;
  std::string text = {};
  bool empty() const { return text.empty(); }
};

// Runs `work` on this rank unless an earlier attempt failed; keeps an IoError (or one of std::filesystem),
// CorruptData or InvalidArgument it throws instead of leaving while others wait in a collective. Other errors
// pass through.
void attempt(Failure& failure, const std::function<void()>& work);

// When the work failed on any rank: throws the error of the lowest one that it failed on, in its class and
// with the rank before its message, on every rank.
void agree(Communicator& world, const Failure& failure);

}  // namespace moesaic
