// device_error.h: errors out of .cu files, whose compiler cannot read error.h's format strings.
#pragma once

#include <string_view>

namespace moesaic {

// Error: "top_k on the device: got out of memory, expected success".
[[noreturn]] void throw_device_error(std::string_view what, std::string_view got);

// InvalidArgument: "top_k: got ..., expected ...".
[[noreturn]] void throw_invalid_argument(std::string_view what, std::string_view got,
                                         std::string_view expected);

}  // namespace moesaic
