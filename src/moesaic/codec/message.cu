#include "moesaic/codec/cuda.h"
#include "moesaic/codec/message_decode_device.h"
#include "moesaic/codec/message_encode_device.h"
#include "moesaic/core/launch.cuh"

namespace moesaic::codec {
namespace {

std::int64_t chunks_of(const DevicePart& part) {
  return static_cast<std::int64_t>((part.words + part.chunk_words - 1) / part.chunk_words);
}

}  // namespace

void cuda::encode_chunks(const DevicePart& part, const std::uint16_t* current, double bits_per_word,
                         std::uint8_t* message, std::uint64_t* message_bytes, DeviceChunk* chunks,
                         Stream stream) {
  const std::int64_t num_chunks = chunks_of(part);
  // Of a difference's stream, which is the longer one.
  const std::uint64_t room_bytes = StreamWriter::bound(part.chunk_words, sizeof(std::uint16_t));
  const StreamBuffer<std::uint8_t> room(num_chunks * static_cast<std::int64_t>(room_bytes), stream);
  const EncodeChunk encode = {part, current, bits_per_word, room.data(), room_bytes, chunks};
  launch_warps("encode_chunks", stream, num_chunks, encode);
  launch_warps("encode_chunks", stream, 1, PlaceChunks{part, num_chunks, chunks, message_bytes});
  launch_warps("encode_chunks", stream, num_chunks, WriteChunk{encode, message});
}

void cuda::decode_chunks(const DevicePart& part, const std::uint8_t* message, std::uint64_t message_bytes,
                         std::uint32_t modes, std::uint16_t* words, DeviceChunk* chunks, Stream stream) {
  const std::int64_t num_chunks = chunks_of(part);
  launch_warps("decode_chunks", stream, 1, FindChunks{part, message, message_bytes, num_chunks, chunks});
  launch_warps("decode_chunks", stream, num_chunks, DecodeChunk{part, message, modes, words, chunks});
}

void cuda::update_previous(const std::uint16_t* reference, const std::uint16_t* current, std::uint64_t words,
                           std::uint8_t* previous, Stream stream) {
  launch_threads("update_previous", stream, static_cast<std::int64_t>(previous_bytes(words)),
                 UpdatePrevious{reference, current, words, previous});
}

}  // namespace moesaic::codec
