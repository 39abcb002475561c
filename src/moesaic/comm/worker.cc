#include "moesaic/comm/worker.h"

#include <exception>
#include <utility>

namespace moesaic {

struct Pending::State {
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  std::exception_ptr error;

  void finish(std::exception_ptr with) {
    {
      const std::lock_guard lock(mutex);
      error = std::move(with);
      done = true;
    }
    finished.notify_all();
  }
};

Pending::Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    const Pending held(std::move(state_));
    state_ = std::move(other.state_);
  }
  return *this;
}

Pending::~Pending() {
  try {
    wait();
  } catch (...) {
    // The caller chose not to ask.
  }
}

void Pending::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  std::unique_lock lock(state->mutex);
  state->finished.wait(lock, [&] { return state->done; });
  if (state->error) std::rethrow_exception(std::exchange(state->error, nullptr));
}

bool Pending::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

Worker::Worker() : thread_([this] { serve(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Pending Worker::run(std::function<void()> job) {
  auto state = std::make_shared<Pending::State>();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(job), state});
  }
  wake_.notify_one();
  return Pending(std::move(state));
}

void Worker::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job.run();
    } catch (...) {
      error = std::current_exception();
    }
    job.run = nullptr;  // what it captured is gone before the caller moves on
    job.pending->finish(std::move(error));
    lock.lock();
  }
}

}  // namespace moesaic
