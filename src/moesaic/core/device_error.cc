#include "moesaic/core/device_error.h"

#include "moesaic/core/error.h"

namespace moesaic {

void throw_device_error(std::string_view what, std::string_view got) {
  throw Error(fmt::format("{} on the device: got {}, expected success", what, got));
}

void throw_invalid_argument(std::string_view what, std::string_view got, std::string_view expected) {
  throw InvalidArgument(fmt::format("{}: got {}, expected {}", what, got, expected));
}

}  // namespace moesaic
