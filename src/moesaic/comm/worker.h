// worker.h: one thread that runs jobs in the order they were handed in.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "moesaic/comm/pending.h"

namespace moesaic {

class Worker {
 public:
  Worker();
  // Runs what is still queued, then joins.
  ~Worker();
  // An exception from `job` comes out of the Pending's wait().
  Pending run(std::function<void()> job);

 private:
  struct Job {
    std::function<void()> run;
    std::shared_ptr<Pending::State> pending;
  };
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace moesaic
