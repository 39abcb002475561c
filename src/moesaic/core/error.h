// error.h: the errors the library throws, one class per thing a caller can do about it.
//
// Every message names what was got and what was expected (and the rank, key or tensor it is about).
// The library never prints or exits; the command line turns these into text and an exit status.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace moesaic {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bad input, found before any message is sent or any file changed.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A peer died, aborted, or did not answer within the deadline. `rank` is the lost world rank, -1 if unknown.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& what) : Error(what), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// Bytes that fail their checksum or their format's rules. Never decoded into weights.
class CorruptData : public Error {
 public:
  using Error::Error;
};

// The operating system refused: missing file, full disk, no permission.
class IoError : public Error {
 public:
  using Error::Error;
};

// A value that must be finite is not (router logits, too many skipped steps).
class NonFinite : public Error {
 public:
  using Error::Error;
};

// require(ok, "expected {}, got {}", a, b): throws InvalidArgument when `ok` is false.
template <typename... Args>
void require(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) throw InvalidArgument(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace moesaic
