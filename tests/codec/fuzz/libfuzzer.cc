// libFuzzer's entry: a program for the decoder of each method, one for round trips, and one for gradients
// (fuzz.cmake).
#include "tests/codec/fuzz/gradient_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
#ifdef MOESAIC_FUZZ_METHOD
  moesaic::codec::fuzz::decode(moesaic::codec::method_from_name(MOESAIC_FUZZ_METHOD), {data, size});
#elif defined(MOESAIC_FUZZ_GRADIENT)
  moesaic::codec::fuzz::gradient({data, size});
#else
  moesaic::codec::fuzz::round_trip({data, size});
#endif
  return 0;
}
