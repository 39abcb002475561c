// simd_inl.h: core's vectors by their short names. For *_simd.cc only, which include it once per instruction
// set (hence no plain include guard).
#if defined(MOESAIC_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOESAIC_KERNELS_SIMD_INL_H
#undef MOESAIC_KERNELS_SIMD_INL_H
#else
#define MOESAIC_KERNELS_SIMD_INL_H
#endif

#include "moesaic/core/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

using namespace moesaic::HWY_NAMESPACE;

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
