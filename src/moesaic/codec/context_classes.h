// context_classes.h: contexts with similar values, put into few classes.
//
// Local. Greedy: the two classes whose union costs least are merged until few enough are left. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/bucket_fit.h"

namespace moesaic::codec {

// Fills `class_of_context`, one per context, and returns the counts of each class (1 to max_classes of them).
// A context that was not seen goes to the class of the nearest one before it that was.
std::vector<StepCounts> merge_contexts(std::span<const StepCounts> contexts, std::size_t max_classes,
                                       std::uint8_t* class_of_context);

}  // namespace moesaic::codec
