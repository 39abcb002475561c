// every_target.h: every instruction set in turn.
#pragma once

#include "moesaic/core/simd_targets.h"
// After the targets are chosen:
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

namespace moesaic::codec {

// Runs `body` once for each instruction set that is compiled in and that this machine has.
template <typename Body>
void for_every_target(Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace moesaic::codec
