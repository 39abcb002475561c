// mpi_engine.h: who talks to MPI, one thread at a time. For mpi.cc.
//
// A thread that waits for its messages moves them itself, for as long as an answer may be quicker than a
// sleeper wakes; then it sleeps, and the engine's own thread takes over, which looks ever more seldom. So
// messages move while some thread waits for one: whoever posts messages waits for them (executor.cc).
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "moesaic/comm/pulse.h"
#include "moesaic/comm/transport.h"

namespace moesaic {

enum class MpiStage { kUnderWay, kDone, kSizesDiffer };

// One message.
struct MpiEntry {
  bool sending;
  int peer;
  Tag tag;
  std::byte* data;  // a sender's bytes are only ever read
  std::int64_t bytes;
  std::atomic<MpiStage> stage{MpiStage::kUnderWay};
  std::atomic<std::int64_t> pieces_left{0};
  std::atomic<std::int64_t> peer_bytes{0};  // with kSizesDiffer: what the peer sent, -1 for more than fits
  std::int64_t announced = 0;               // the engine's: the size as sent or received ahead of the pieces
};

class MpiEngine {
 public:
  // Starts MPI; throws what went wrong.
  explicit MpiEngine(std::int64_t piece_bytes);
  // Waits for what is under way, then ends MPI, or the job (mpi.h).
  ~MpiEngine();

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  void post(std::shared_ptr<MpiEntry> entry);
  // Transport::wait_for_progress.
  std::uint64_t wait(std::uint64_t seen, Clock::time_point deadline);
  // After this returns no MPI call is made but MPI_Abort: `entry`'s buffer is the caller's again.
  void give_up(const MpiEntry& entry) noexcept;

  Pulse pulse;
  LossRecord loss;

 private:
  struct Piece {
    std::shared_ptr<MpiEntry> entry;
    int bytes;
  };

  void run();
  void start();
  void serve();
  // Begins what was posted and looks at what is under way. `lock` holds mutex_, nobody is in a call, nothing
  // is frozen. True when something moved.
  bool turn(std::unique_lock<std::mutex>& lock);
  bool has_work() const { return !queue_.empty() || !requests_.empty(); }
  void end();
  void begin(const std::shared_ptr<MpiEntry>& entry);
  void begin_piece(const std::shared_ptr<MpiEntry>& entry, MPI_Comm comm, std::byte* data,
                   std::int64_t bytes);
  bool test();
  void complete(const Piece& piece, int error, const MPI_Status& status);
  void fail(int peer, const char* call, int error);

  const std::int64_t piece_bytes_;
  int rank_ = 0;
  int world_size_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;     // for the engine: something to do
  std::condition_variable settled_;  // from the engine: MPI is up; no call is running
  std::vector<std::shared_ptr<MpiEntry>> queue_;
  std::atomic<std::int64_t> bytes_under_way_{0};  // of messages posted and not done
  int sleepers_ = 0;                              // threads that left their messages to the engine's
  bool started_ = false;
  bool may_help_ = false;  // MPI lets other threads in
  bool in_call_ = false;
  bool frozen_ = false;
  bool stopping_ = false;
  std::exception_ptr start_error_;

  // Of the thread that is in a call; of any that holds mutex_ while none is:
  MPI_Comm whole_ = MPI_COMM_NULL;   // messages of one piece
  MPI_Comm pieces_ = MPI_COMM_NULL;  // longer ones, each after its size
  std::vector<MPI_Request> requests_;
  std::vector<Piece> under_way_;  // beside requests_
  std::vector<int> finished_;
  std::vector<MPI_Status> statuses_;

  std::thread thread_;
};

}  // namespace moesaic
