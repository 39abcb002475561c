// thrown.h: an exception as text, so that a test can compare class and message at once.
#pragma once

#include <fmt/format.h>

#include <string>

#include "moesaic/core/error.h"

namespace moesaic {

// "PeerLost(1): …", "InvalidArgument: …", …; "nothing" when `call` returns.
template <typename Call>
std::string thrown_by(Call call) {
  try {
    call();
  } catch (const PeerLost& e) {
    return fmt::format("PeerLost({}): {}", e.rank(), e.what());
  } catch (const InvalidArgument& e) {
    return fmt::format("InvalidArgument: {}", e.what());
  } catch (const CorruptData& e) {
    return fmt::format("CorruptData: {}", e.what());
  } catch (const NonFinite& e) {
    return fmt::format("NonFinite: {}", e.what());
  } catch (const Error& e) {
    return fmt::format("Error: {}", e.what());
  }
  return "nothing";
}

}  // namespace moesaic

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
