// experts_parts.h: what the forward and the backward pass of the experts share.
//
// For the sources of this room only. Panels and slots as in panels.h and experts.h; n slots are a whole
// number of panels but for the last of an expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/core/error.h"
#include "moesaic/kernels/convert.h"
#include "moesaic/kernels/experts.h"
#include "moesaic/kernels/panels.h"

namespace moesaic::kernels {

inline const std::byte* at(const void* base, std::int64_t element, DType dtype) {
  return static_cast<const std::byte*>(base) + element * size_of(dtype);
}
inline std::byte* at(void* base, std::int64_t element, DType dtype) {
  return static_cast<std::byte*>(base) + element * size_of(dtype);
}

inline Buffer floats(std::int64_t n) { return Buffer(n * static_cast<std::int64_t>(sizeof(float))); }

// Where the panels of each expert begin in `before`, in elements; the last entry is the total.
inline std::vector<std::int64_t> before_begins(const ExpertShape& shape, const ExpertSlots& slots) {
  std::vector<std::int64_t> begins{0};
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    begins.push_back(begins.back() +
                     panel_elements(slots.begin[e + 1] - slots.begin[e], shape.hidden_width()));
  }
  return begins;
}

// Calls body(first slot within [0,n), its number of lanes) for each panel.
template <typename Body>
void for_each_panel(std::int64_t n, const Body& body) {
  for (std::int64_t i = 0; i < n; i += kPanelRows) body(i, panel_lanes(n - i));
}

// before -> h, panel by panel.
void activate_panels(const ExpertShape& shape, const void* before, std::int64_t n, void* h);

// Panels that are kept or activated in the model's dtype, beside the fp32 ones that products read and write.
// In fp32 both are the same memory.
class RoundedPanels {
 public:
  RoundedPanels(DType dtype, std::int64_t elements) : dtype_(dtype), wide_(floats(elements)) {
    if (dtype != DType::kF32) narrow_ = Buffer(elements * size_of(dtype));
  }
  // From element `begin` on.
  float* wide(std::int64_t begin = 0) { return wide_.as<float>() + begin; }
  void* rounded(std::int64_t begin = 0) {
    return dtype_ == DType::kF32 ? wide(begin) : static_cast<void*>(at(narrow_.data(), begin, dtype_));
  }
  void round(std::int64_t n, std::int64_t begin = 0) {
    if (dtype_ != DType::kF32) convert(DType::kF32, wide(begin), dtype_, rounded(begin), n);
  }
  void widen(std::int64_t n, std::int64_t begin = 0) {
    if (dtype_ != DType::kF32) convert(dtype_, rounded(begin), DType::kF32, wide(begin), n);
  }

 private:
  DType dtype_;
  Buffer wide_, narrow_;
};

inline void require_fp32_or_bf16(const ExpertShape& shape, std::string_view what) {
  require(shape.dtype == DType::kF32 || shape.dtype == DType::kBF16,
          "{}: got dtype {}, expected fp32 or bf16", what, name_of(shape.dtype));
}

}  // namespace moesaic::kernels
