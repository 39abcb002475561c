// reference.h: the oracles. Each reads like the format it is named for, takes the same arguments as the
// function in difference.h or entropy.h, and is what the fast versions are tested against; none is meant to
// be fast.
//
// The *_group functions code the words of one group of at most 32, those from `begin` on; the fast versions
// use them for what does not fill a vector.
#pragma once

#include "moesaic/codec/difference.h"
#include "moesaic/codec/entropy.h"
#include "moesaic/codec/rans.h"

namespace moesaic::codec::reference {

// difference.h
std::size_t encode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                              std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                              std::span<std::uint8_t> out);
void encode_difference_group(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                             std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                             std::size_t begin, StreamWriter& writer);
void decode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                       std::span<const std::uint8_t> previous, std::span<const std::uint8_t> in,
                       std::span<std::uint16_t> out);
void decode_difference_group(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                             std::span<const std::uint8_t> previous, std::size_t begin, StreamReader& reader,
                             std::span<std::uint16_t> out);
void update_previous(std::span<const std::uint16_t> reference, std::span<const std::uint16_t> current,
                     std::span<std::uint8_t> previous);

// entropy.h
std::size_t encode_entropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                           std::span<std::uint8_t> out);
void encode_entropy_group(const EntropyTables& tables, std::span<const std::uint16_t> words,
                          std::size_t begin, std::uint8_t* plane, StreamWriter& writer);
void decode_entropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                    std::span<std::uint16_t> out);
void decode_entropy_group(const EntropyTables& tables, const std::uint8_t* plane, std::size_t begin,
                          StreamReader& reader, std::span<std::uint16_t> out);

}  // namespace moesaic::codec::reference
