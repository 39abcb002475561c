// team.h: threads that stay, and run one body together on request.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace moesaic::bench {

class Team {
 public:
  explicit Team(int size) : start_(size + 1), done_(size + 1) {
    for (int member = 0; member < size; ++member) {
      threads_.emplace_back([this, member] { serve(member); });
    }
  }
  ~Team() {
    body_ = nullptr;
    start_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // body(0), body(1), … at once; returns when all have. Rethrows the first exception.
  void run(const std::function<void(int member)>& body) {
    body_ = &body;
    start_.arrive_and_wait();
    done_.arrive_and_wait();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void serve(int member) {
    for (;;) {
      start_.arrive_and_wait();
      if (body_ == nullptr) return;
      try {
        (*body_)(member);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
      done_.arrive_and_wait();
    }
  }

  std::barrier<> start_, done_;
  const std::function<void(int)>* body_ = nullptr;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace moesaic::bench
