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

// Runs `work` on this rank unless an earlier attempt failed; keeps the message of an IoError, CorruptData or
// InvalidArgument it throws instead of leaving while others wait in a collective. Other errors pass through.
void attempt(std::string& failure, const std::function<void()>& work);

// Throws `ErrorClass` on every rank, naming the lowest rank that failed and its message, when any did.
template <typename ErrorClass>
void agree(Communicator& world, const std::string& failure) {
  const std::vector<std::string> failures = gather_texts(world, failure);
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) throw ErrorClass("rank " + std::to_string(rank) + ": " + failures[rank]);
  }
}

}  // namespace moesaic
