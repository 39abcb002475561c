// method.h: the ways in which the words of a parameter gather can travel, and what each asks a receiver to
// keep.
//
// Local. One pipeline and one wire format carry all of them, so that they can be compared.
#pragma once

#include <cstdint>
#include <string_view>

namespace moesaic::codec {

enum class Method : std::uint8_t {
  kRaw,            // 16 bits a word
  kEntropy,        // sign+mantissa plane and entropy-coded exponents; no history
  kInt8,           // LOSSY: int8 with one bf16 scale for each 128 words
  kExponentReuse,  // sign+mantissa plane, and the exponents that changed
  kResidual,       // entropy-coded difference from the reference
  kMomentum,       // the same, predicted by the difference before it
};

inline constexpr Method kMethods[] = {Method::kRaw,           Method::kEntropy,  Method::kInt8,
                                      Method::kExponentReuse, Method::kResidual, Method::kMomentum};

// "raw", "entropy", "int8", "exponent_reuse", "residual", "momentum": the names of the configuration.
std::string_view name_of(Method method);
// The inverse; throws InvalidArgument naming the allowed values.
Method method_from_name(std::string_view name);

// Whether a receiver gets exactly the sender's words. False for int8 only.
bool lossless(Method method);

// What an end of the wire keeps between two messages. Each holds what the one before it can tell.
enum class Keeps : std::uint8_t {
  kNothing,              // 0 bytes a word
  kExponents,            // 1
  kWords,                // 2
  kWordsAndDifferences,  // 2.5: also the sign and level of each word's previous difference, in a nibble
};

// The least that `method` needs: nothing for raw, entropy and int8.
Keeps needs(Method method);
double bytes_per_word(Keeps keeps);

}  // namespace moesaic::codec
