#include "moesaic/codec/method.h"

#include <array>
#include <string>

#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

struct Entry {
  std::string_view name;
  bool lossless;
  Keeps needs;
};

// In the order of Method.
constexpr std::array kEntries = {
    Entry{"raw", true, Keeps::kNothing},    Entry{"entropy", true, Keeps::kNothing},
    Entry{"int8", false, Keeps::kNothing},  Entry{"exponent_reuse", true, Keeps::kExponents},
    Entry{"residual", true, Keeps::kWords}, Entry{"momentum", true, Keeps::kWordsAndDifferences},
};
static_assert(kEntries.size() == std::size(kMethods));

const Entry& entry(Method method) { return kEntries.at(static_cast<std::size_t>(method)); }

}  // namespace

std::string_view name_of(Method method) { return entry(method).name; }

Method method_from_name(std::string_view name) {
  std::string allowed;
  for (const Method method : kMethods) {
    if (name_of(method) == name) return method;
    allowed += allowed.empty() ? "" : ", ";
    allowed += name_of(method);
  }
  throw InvalidArgument(fmt::format("codec method '{}' is unknown; expected one of {}", name, allowed));
}

bool lossless(Method method) { return entry(method).lossless; }

Keeps needs(Method method) { return entry(method).needs; }

double bytes_per_word(Keeps keeps) {
  constexpr std::array kBytes = {0.0, 1.0, 2.0, 2.5};
  return kBytes.at(static_cast<std::size_t>(keeps));
}

}  // namespace moesaic::codec
