// simd_targets.h: the instruction sets vectorised code is compiled for; the best one the CPU has is
// chosen at run time, and x86-64 without any extension is enough. Include before every Highway header.
//
// AVX-512 and scalable vectors are left out until the tests (which run every target of the machine) have run
// on them; SSSE3 because SSE4 is as old as any machine that matters.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_AVX3 | HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
