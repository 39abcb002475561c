// gradient.h: the words of a gradient as self-describing bytes, on their way to the rank that adds them.
//
// Local: the caller moves the bytes. Nothing is held between two messages, so there is no reference: what a
// gradient was a step ago says nothing about what it is now.
//
//   wire      bits a word   exact?
//   bf16      16            yes
//   entropy   about 10.5    yes: sign and mantissa as they are, exponents coded against the scales of their
//                           row and column (gradient_scales.h, entropy.h)
//   int8      8.2           no: int8 with a bf16 scale for each 128 words (int8.h); words that are infinite
//   or
//                           not a number still come back as they are
//
// Words of blocks of 128 that are all +0 are not sent, on any wire: an expert without tokens costs
// 16 bytes for 65536 words.
//
// Errors: InvalidArgument for a caller's mistake. CorruptData for bytes that no encoder wrote, or that belong
// to another unit: nothing is read or written out of bounds whatever they hold, and every byte is under a
// checksum. After it the words mean nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moesaic/codec/gradient_scales.h"
#include "moesaic/codec/message.h"

namespace moesaic::codec {

enum class GradientWire : std::uint8_t { kBf16, kEntropy, kInt8 };

inline constexpr GradientWire kGradientWires[] = {GradientWire::kBf16, GradientWire::kEntropy,
                                                  GradientWire::kInt8};

// "bf16", "entropy", "int8": the names of the configuration.
std::string_view name_of(GradientWire wire);
// The inverse; throws InvalidArgument naming the allowed values.
GradientWire gradient_wire_from_name(std::string_view name);
// Whether a receiver gets exactly the sender's words. False for int8 only.
bool lossless(GradientWire wire);

struct GradientOptions {
  std::uint64_t unit = 0;  // the caller's number for this part of this unit; a decoder insists on it
  std::size_t chunk_words = kMaxChunkWords;  // even, 2 to kMaxChunkWords; the last chunk may be shorter
};

// No message of such pieces is longer, on any wire: the room that encode_gradient() asks for. It is touched
// only as far as the message goes.
std::size_t gradient_bound(std::span<const GradientPiece> pieces, const GradientOptions& options);

struct GradientMessage {
  std::size_t bytes = 0;       // written to the front of `out`
  std::size_t live_words = 0;  // of blocks that are not all +0
};

// The pieces' words lie one after the other in `words`.
GradientMessage encode_gradient(GradientWire wire, std::span<const std::uint16_t> words,
                                std::span<const GradientPiece> pieces, const GradientOptions& options,
                                std::span<std::byte> out);

// Fills `words`, as many as were sent; returns the wire they came by. The shapes travel with the message.
GradientWire decode_gradient(std::span<const std::byte> message, std::uint64_t unit,
                             std::span<std::uint16_t> words);

}  // namespace moesaic::codec
