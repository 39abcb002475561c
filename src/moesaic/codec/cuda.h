// cuda.h: the codec's GPU twins. Pointers of tables, words and messages are to memory of the device; work is
// queued on the stream.
//
// The host writes and reads a message's header and tables, 64 to some 220 bytes (wire.h, difference.h,
// entropy.h), chooses the tables, and copies device_tables() to the device; chunks are the device's, bit for
// bit those of message.h. Not there: exponent_reuse, int8, the choice of tables, the gradients' wires.
// Cost: a warp for each chunk, so that small chunks (chunk_words) keep a large device busier.
#pragma once

#include <cstdint>

#include "moesaic/codec/message_device.h"
#include "moesaic/core/device.h"

namespace moesaic::codec::cuda {

// Writes the chunks behind the message's first prefix_bytes, which are in place, and the length of the whole
// to *message_bytes. `message` has message_bound() bytes. `chunks`, one for each, get the CRCs of their
// words, which the reference's next hash is made of. `bits_per_word`: what the encoder expects of the tables
// of differences. Takes memory from the stream's pool: about 4 bytes a word.
void encode_chunks(const DevicePart& part, const std::uint16_t* current, double bits_per_word,
                   std::uint8_t* message, std::uint64_t* message_bytes, DeviceChunk* chunks,
                   Stream stream = {});

// Decodes all chunks into `words` and says in `chunks`, one for each, what is wrong with it. Nothing may be
// used unless every fault is kNone. `modes`: bit m is set where may_hold() allows mode m.
void decode_chunks(const DevicePart& part, const std::uint8_t* message, std::uint64_t message_bytes,
                   std::uint32_t modes, std::uint16_t* words, DeviceChunk* chunks, Stream stream = {});

// difference.h
void update_previous(const std::uint16_t* reference, const std::uint16_t* current, std::uint64_t words,
                     std::uint8_t* previous, Stream stream = {});

}  // namespace moesaic::codec::cuda
