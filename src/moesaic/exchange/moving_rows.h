// moving_rows.h: rows on their way to the owners of their experts and home again, in the background, chunk by
// chunk.
//
// Collective, like dispatch(), dispatch_again(), combine() and return_slot_values() (dispatch.h), which do
// the same at once: every rank starts the same moves in the same order; they run one after another on the
// group's background thread, beside the caller's. With `background` false a move is over when it has been
// started. The handle is borrowed until all is over. Errors as there, from the start or the wait; then the
// destructors wait for what was started. PeerLost leaves from the first wait that needs the peer.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/move_blocks.h"

namespace moesaic {

class MovingRows {
 public:
  MovingRows() = default;
  // Until the rows of `chunk` are in.
  void wait(std::size_t chunk);

 private:
  friend MovingRows start_rows(Communicator&, const DispatchHandle&, ConstRows, Buffer&, bool);
  struct Chunk {
    Buffer sent;
    MovingBlocks blocks;
  };
  Communicator* group_ = nullptr;
  std::vector<Chunk> chunks_;
};
// x [T,D] -> rows [R,D], chunk by chunk. x is read before this returns; `rows` keeps its memory until all is
// over.
MovingRows start_rows(Communicator& group, const DispatchHandle& handle, ConstRows x, Buffer& rows,
                      bool background);

class MovingSums {
 public:
  MovingSums(Communicator& group, const DispatchHandle& handle, bool background)
      : group_(group), handle_(handle), background_(background) {}
  // z: one sum per row of the next chunk, borrowed until all is over.
  void start(ConstRows z);
  // After the last: y [T,D] as combine() makes it; each chunk's as soon as it is home.
  void finish(Rows y);

 private:
  struct Chunk {
    ConstRows z;
    Places to;
    Buffer home;
    MovingBlocks blocks;
  };
  Communicator& group_;
  const DispatchHandle& handle_;
  bool background_;
  std::vector<Chunk> chunks_;
};

class MovingValues {
 public:
  // values [S]: one per received slot.
  MovingValues(Communicator& group, const DispatchHandle& handle, std::vector<float> values, bool background);
  // home [T,K].
  void finish(std::span<float> home);

 private:
  Communicator& group_;
  const DispatchHandle& handle_;
  std::vector<float> values_, received_;
  MovingBlocks blocks_;
};

}  // namespace moesaic
