// trial.h: one method at work on one step of some units, to be checked, timed and compared.
//
// Local. A unit travels as one message, checksums and hash included, against what its receiver would hold
// after the steps before. Tables are measured anew for each message, as every 16th step of a run does; or,
// see keep_tables(), re-used. Memory: up to 7 bytes a word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "moesaic/codec/message.h"
#include "moesaic/codec/statistics.h"
#include "moesaic/core/buffer.h"

namespace moesaic::codec {

// Runs work(0..n-1), each once, on that many threads, this one among them. Throws the first of their errors.
void on_threads(int threads, std::size_t n, const std::function<void(std::size_t)>& work);

class Trial {
 public:
  // The words of `units` must stay. `threads` share the units, message by message.
  Trial(Method method, std::span<const UnitStep> units, int threads = 1);

  Method method() const { return method_; }

  // Every unit's message, from its words. Each call does all of it again.
  void encode();
  // After encode(): both ends now hold the tables of those messages, and the next ones may re-use them. Of
  // residual and momentum; nothing else keeps tables.
  void keep_tables();
  // Every unit's words, from its message, verified. After encode().
  void decode();

  // Both of the above. "" when the receiver then has the sender's words, bit for bit; for int8, words within
  // its bound of them, and the very words that the sender learned it has. Else what is wrong, and where.
  std::string check();

  // After encode().
  double bits_per_word() const;
  // What an end keeps from step to step.
  double kept_bytes_per_word() const { return bytes_per_word(needs(method_)); }

 private:
  struct Unit {
    UnitStep step;
    Reference held;
    Buffer message, received, decoded;
    std::size_t message_bytes = 0;
    std::vector<std::uint8_t> tables;  // of the last message
  };
  Method method_;
  int threads_;
  std::vector<Unit> units_;
};

}  // namespace moesaic::codec
