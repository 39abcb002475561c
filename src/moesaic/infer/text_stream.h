// text_stream.h: bytes that come one at a time, as text that can be shown at once.
//
// Local. A byte model may stop inside a character or write bytes that are no text at all. What is returned is
// always valid UTF-8: a character when its last byte has come, U+FFFD for each maximal part of one that
// cannot be completed (as the Unicode standard and browsers do).
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

class TextStream {
 public:
  // What can be shown now; empty inside a character.
  std::string add(std::uint8_t byte);
  // U+FFFD if a character was begun and not ended, else empty.
  std::string finish();

 private:
  std::string pending_;                    // of a character not complete
  int missing_ = 0;                        // bytes it still needs
  std::uint8_t low_ = 0x80, high_ = 0xBF;  // allowed values of the next one
};

}  // namespace moesaic
