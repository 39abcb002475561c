// torch_pch.h: ATen's operators, precompiled once for every room that uses torch.
//
// Headers include only <ATen/core/Tensor.h> (quick); autograd is included by the few sources that need it.
#pragma once

#include <ATen/ATen.h>
