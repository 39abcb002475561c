#include "moesaic/comm/mpi_engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

using std::chrono::microseconds;

// Where it takes longer to copy inside the host what is under way, it goes on for as long, while no other
// thread wants its core; long messages gain nothing by it.
constexpr std::int64_t kCopiedPerMicrosecond = 4'000;
constexpr microseconds kLongestCopy{500};
constexpr microseconds kYieldToNobody{5};
// Between two looks at messages that do not move, the engine's thread sleeps for 1/16 of the time since one
// last did.
constexpr microseconds kShortestPause{20};
constexpr microseconds kLongestPause{200};

microseconds pause_after(Clock::duration still) {
  const auto pause = std::chrono::duration_cast<microseconds>(still / 16);
  return std::clamp(pause, kShortestPause, kLongestPause);
}

std::string text_of(int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

int class_of(int error) {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(error, &error_class);
  return error_class;
}

}  // namespace

MpiEngine::MpiEngine(std::int64_t piece_bytes) : piece_bytes_(piece_bytes) {
  require(piece_bytes >= 1 && piece_bytes <= (std::int64_t{1} << 30), "piece_bytes {} is not in 1..2^30",
          piece_bytes);
  int initialized = 0;
  MPI_Initialized(&initialized);
  require(!initialized, "MPI was started in this process before; it starts only once");
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [&] { return started_; });
  if (!start_error_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(start_error_);
}

MpiEngine::~MpiEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MpiEngine::post(std::shared_ptr<MpiEntry> entry) {
  // A long message is announced by its size, then come the pieces.
  entry->pieces_left =
      entry->bytes <= piece_bytes_ ? 1 : 1 + (entry->bytes + piece_bytes_ - 1) / piece_bytes_;
  const std::lock_guard lock(mutex_);
  bytes_under_way_ += entry->bytes;
  queue_.push_back(std::move(entry));
}

std::uint64_t MpiEngine::wait(std::uint64_t seen, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (may_help_) {
    auto moved = Clock::now();
    bool alone = true;  // on this core
    while (pulse.count() == seen && !frozen_) {
      const auto now = Clock::now();
      const auto copied = std::min(microseconds(bytes_under_way_ / kCopiedPerMicrosecond), kLongestCopy);
      if (now >= std::min(moved + (alone ? std::max(kAttentive, copied) : kAttentive), deadline)) break;
      // In a call: another thread's turn, its messages and ours are looked at together.
      if (in_call_ || now >= moved + kAttentive) {
        lock.unlock();
        std::this_thread::yield();
        alone = Clock::now() - now < kYieldToNobody;
        lock.lock();
        if (in_call_ || frozen_ || !alone) continue;
      }
      if (turn(lock)) moved = now;
    }
    if (pulse.count() != seen) return pulse.count();
  }
  ++sleepers_;
  wake_.notify_one();
  lock.unlock();
  const std::uint64_t count = pulse.wait(seen, deadline);
  lock.lock();
  --sleepers_;
  return count;
}

void MpiEngine::give_up(const MpiEntry& entry) noexcept {
  std::unique_lock lock(mutex_);
  if (entry.pieces_left == 0) return;
  frozen_ = true;
  settled_.wait(lock, [&] { return !in_call_; });
  lock.unlock();
  loss.record(rank_, "a message under MPI was given up before it was done");
  pulse.beat();
}

void MpiEngine::run() {
#ifdef __linux__
  prctl(PR_SET_TIMERSLACK,
        1000UL);  // of this thread, in ns: the default of 50 us would triple the shortest pause
#endif
  std::exception_ptr error;
  try {
    start();
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
    start_error_ = error;
  }
  settled_.notify_all();
  if (error) return;
  serve();
  end();
}

void MpiEngine::start() {
  int provided = MPI_THREAD_SINGLE;
  // Funneled would do, with the engine's thread alone.
  const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (error != MPI_SUCCESS) throw Error("MPI_Init_thread failed: " + text_of(error));
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(
        fmt::format("this MPI supports no threads (level {}); expected MPI_THREAD_FUNNELED", provided));
  }
  for (MPI_Comm* comm : {&whole_, &pieces_}) {
    MPI_Comm_dup(MPI_COMM_WORLD, comm);
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  }
  int* highest_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest_tag, &known);
  if (known != 0 && *highest_tag < (1 << kTagBits) - 1) {
    throw Error(fmt::format("this MPI allows tags up to {}, expected at least {}", *highest_tag,
                            (1 << kTagBits) - 1));
  }
  MPI_Comm_rank(whole_, &rank_);
  MPI_Comm_size(whole_, &world_size_);
  may_help_ = provided >= MPI_THREAD_SERIALIZED;
}

void MpiEngine::serve() {
  auto last_move = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto asked = [&] { return frozen_ || stopping_ || (sleepers_ > 0 && has_work()); };
    if (!asked()) {
      wake_.wait(lock, asked);
      last_move = Clock::now();
    }
    settled_.wait(lock, [&] { return !in_call_; });
    if (frozen_) {
      wake_.wait(lock, [&] { return stopping_; });
      return;
    }
    if (stopping_ && !has_work()) return;
    if (turn(lock)) {
      last_move = Clock::now();
    } else {
      wake_.wait_for(lock, pause_after(Clock::now() - last_move), [&] { return !queue_.empty() || frozen_; });
    }
  }
}

bool MpiEngine::turn(std::unique_lock<std::mutex>& lock) {
  const auto fresh = std::exchange(queue_, {});
  in_call_ = true;
  lock.unlock();
  for (const auto& entry : fresh) begin(entry);
  const bool moved = test();
  const bool lost = loss.is_set();
  if (moved || lost) pulse.beat();
  lock.lock();
  in_call_ = false;
  if (lost) frozen_ = true;
  settled_.notify_all();
  return moved || !fresh.empty();
}

void MpiEngine::end() {
  if (loss.is_set()) {
    MPI_Abort(MPI_COMM_WORLD, 1);
    return;
  }
  for (MPI_Comm* comm : {&whole_, &pieces_}) MPI_Comm_free(comm);
  MPI_Finalize();
}

void MpiEngine::begin(const std::shared_ptr<MpiEntry>& entry) {
  if (entry->bytes <= piece_bytes_) return begin_piece(entry, whole_, entry->data, entry->bytes);
  entry->announced = entry->bytes;
  begin_piece(entry, pieces_, reinterpret_cast<std::byte*>(&entry->announced), sizeof(entry->announced));
  for (std::int64_t offset = 0; offset < entry->bytes; offset += piece_bytes_) {
    begin_piece(entry, pieces_, entry->data + offset, std::min(piece_bytes_, entry->bytes - offset));
  }
}

void MpiEngine::begin_piece(const std::shared_ptr<MpiEntry>& entry, MPI_Comm comm, std::byte* data,
                            std::int64_t bytes) {
  const int count = static_cast<int>(bytes);
  const int tag = static_cast<int>(entry->tag);
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = entry->sending ? MPI_Isend(data, count, MPI_BYTE, entry->peer, tag, comm, &request)
                                   : MPI_Irecv(data, count, MPI_BYTE, entry->peer, tag, comm, &request);
  if (error != MPI_SUCCESS) return fail(entry->peer, entry->sending ? "MPI_Isend" : "MPI_Irecv", error);
  requests_.push_back(request);
  under_way_.push_back({entry, count});
}

// True when some piece has finished.
bool MpiEngine::test() {
  const std::size_t n = requests_.size();
  finished_.resize(n);
  statuses_.resize(n);
  int num_finished = 0;
  const int error =
      MPI_Testsome(static_cast<int>(n), requests_.data(), &num_finished, finished_.data(), statuses_.data());
  if (error != MPI_SUCCESS && class_of(error) != MPI_ERR_IN_STATUS) {
    fail(-1, "MPI_Testsome", error);
    return false;
  }
  if (num_finished == MPI_UNDEFINED || num_finished == 0) return false;
  for (int i = 0; i < num_finished; ++i) {
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    const auto at = static_cast<std::size_t>(finished_[static_cast<std::size_t>(i)]);
    // MPI sets the field only when it reports an error in a status.
    complete(under_way_[at], error == MPI_SUCCESS ? MPI_SUCCESS : status.MPI_ERROR, status);
    under_way_[at].entry = nullptr;
    requests_[at] = MPI_REQUEST_NULL;  // MPI leaves it when the message failed
  }
  std::erase_if(under_way_, [](const Piece& piece) { return piece.entry == nullptr; });
  std::erase(requests_, MPI_REQUEST_NULL);
  return true;
}

void MpiEngine::complete(const Piece& piece, int error, const MPI_Status& status) {
  MpiEntry& entry = *piece.entry;
  int received = piece.bytes;
  if (error != MPI_SUCCESS) {
    if (class_of(error) != MPI_ERR_TRUNCATE) return fail(entry.peer, "a message", error);
    received = -1;
  } else if (!entry.sending) {
    MPI_Get_count(&status, MPI_BYTE, &received);
  }
  const bool first = entry.stage == MpiStage::kUnderWay;
  if (first && entry.announced != 0 && entry.announced != entry.bytes) {
    entry.peer_bytes = entry.announced;
    entry.stage = MpiStage::kSizesDiffer;
  } else if (first && received != piece.bytes) {
    entry.peer_bytes = received;
    entry.stage = MpiStage::kSizesDiffer;
  }
  if (entry.pieces_left == 1) bytes_under_way_ -= entry.bytes;
  // In this order: who sees the stage may let go of the message, and at no pieces left the buffer is free.
  if (--entry.pieces_left == 0 && entry.stage == MpiStage::kUnderWay) entry.stage = MpiStage::kDone;
}

void MpiEngine::fail(int peer, const char* call, int error) {
  loss.record(peer,
              fmt::format("rank {}: {} failed{}: {}", rank_, call,
                          peer < 0 ? std::string() : fmt::format(" with rank {}", peer), text_of(error)));
}

}  // namespace moesaic
