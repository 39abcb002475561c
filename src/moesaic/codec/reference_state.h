// reference_state.h: what both ends of the wire hold of one part of one unit: the words that were last sent.
//
// Local. A part is what one rank owns of a unit. Its owner and every rank that gathers it keep one Reference
// each, all equal. The owner differs against what it last *sent*, not against what it last *had*, so it
// commits what it sent, too. Coding and decoding only read a Reference; commit() alone changes it, and is
// called after every rank's verdict on the message is known: by all, or by none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/method.h"
#include "moesaic/core/buffer.h"

namespace moesaic::codec {

// What a message does to a Reference. Encoder and Decoder of one message give equal Updates.
struct Update {
  std::uint64_t epoch = 0;  // of the Reference the message was coded against
  bool key = true;          // the message stands alone: it replaces the Reference, whatever that held
  std::uint64_t hash = 0;   // of the Reference that results
  std::vector<std::uint8_t> tables;  // the coder's tables that the next message may re-use
  // CRC32C of the words of each chunk, and how many words a chunk has (the last one may have fewer).
  std::vector<std::uint32_t> words_crcs = {};
  std::size_t chunk_words = 0;
};

// The hash after a message that is to be committed at `epoch`: `held` is 0 for a key, `words_crcs` are the
// CRC32C of the words of each chunk.
std::uint64_t hash_after(std::uint64_t held, std::uint64_t epoch, std::span<const std::uint32_t> words_crcs);

class Reference {
 public:
  // Holds nothing yet: the first message is a key. Memory is taken at once. `words` may be 0.
  Reference(Keeps keeps, std::size_t words);

  Keeps keeps() const { return keeps_; }
  std::size_t size() const { return size_; }  // words
  // False until the first commit, and after reset().
  bool valid() const { return valid_; }

  // Counts commits since a key; a key brings the sender's count. Equal on all ends.
  std::uint64_t epoch() const { return epoch_; }
  // xxHash (XXH3, 64 bits) chained over the checksums of all words sent since the last key, so that equal
  // hashes mean equal histories, and with them equal words and differences. Bits that flip in memory later do
  // not show here; the checksum of the words each chunk must decode to finds those, and copy_words() does.
  std::uint64_t hash() const { return hash_; }

  // Takes `words` (size() of them: what a receiver decoded; what the sender sent, which for int8 is not what
  // it had) as what both ends now hold. Differences become words - held, as sign and level (order.h), 0 by a
  // key. Keeps what `keeps` says. InvalidArgument when the size or the epoch does not fit.
  void commit(const Update& update, std::span<const std::uint16_t> words);

  // The words, as they were committed, into size() of `to`. CorruptData where memory no longer gives them, or
  // nothing is held: then `to` holds rubbish. InvalidArgument: a Reference that does not keep words.
  void copy_words(std::span<std::uint16_t> to) const;

  // Forgets: the next message must be a key (a checkpoint was loaded, the group or the layout changed).
  void reset();

  // Bytes of memory held, for the report.
  std::size_t bytes() const;

  // What is held. Empty where `keeps` says less; words() empty for kExponents.
  std::span<const std::uint16_t> words() const;
  std::span<const std::uint8_t> exponents() const;    // bits 7..14 of each word; kExponents only
  std::span<const std::uint8_t> differences() const;  // packed nibbles (difference.h), two a byte
  std::span<const std::uint8_t> tables() const { return tables_; }

  // All of the above but the tables, as bytes to damage in a fault drill.
  std::span<std::byte> memory() { return memory_.span(); }

 private:
  Keeps keeps_;
  std::size_t size_;
  bool valid_ = false;
  std::uint64_t epoch_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<std::uint8_t> tables_;
  std::vector<std::uint32_t> words_crcs_;  // of what is held, where words are kept
  std::size_t chunk_words_ = 0;
  Buffer memory_;  // exponents; or words, then differences
};

}  // namespace moesaic::codec
