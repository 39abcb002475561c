// buffer.h: an owned, 64-byte-aligned, uninitialised piece of host memory.
//
// Alignment matters twice: vector loads, and bit-equal GEMMs (a BLAS may pick another path for
// another alignment).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace moesaic {

inline constexpr std::int64_t kAlignment = 64;

class Buffer {
 public:
  Buffer() = default;
  // `bytes` may be 0. Throws std::bad_alloc.
  explicit Buffer(std::int64_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const std::size_t rounded = static_cast<std::size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    if (!data_) throw std::bad_alloc();
  }

  std::int64_t bytes() const { return bytes_; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }
  std::span<std::byte> span() { return {data_.get(), static_cast<std::size_t>(bytes_)}; }
  std::span<const std::byte> span() const { return {data_.get(), static_cast<std::size_t>(bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t bytes_ = 0;
};

}  // namespace moesaic
