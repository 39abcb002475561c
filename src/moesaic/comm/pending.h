// pending.h: an operation that runs in the background.
#pragma once

#include <memory>

namespace moesaic {

// Its buffers are borrowed until wait() returns; the destructor waits (and swallows errors: call wait() to
// see them).
class Pending {
 public:
  Pending() = default;  // already complete
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;  // waits for what it held, like the destructor
  ~Pending();
  // Blocks; rethrows what went wrong. After it returns (or throws) the operation is over; a second call does
  // nothing.
  void wait();
  bool done() const;

  struct State;
  explicit Pending(std::shared_ptr<State> state);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace moesaic
