// context_classes.h: contexts with similar values, put into few classes.
//
// Local. Greedy: of all neighbours, the two classes whose union costs least are merged, until few enough are
// left. Contexts lie in a grid, rows of `row_length`; alike ones lie side by side, so that only contexts
// beside, above or below each other, or corner to corner, are neighbours at first. Deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/bucket_fit.h"

namespace moesaic::codec {

// Fills `class_of_context`, one per context (64 of them at most), and returns the counts of each class (1 to
// max_classes of them). A context that was not seen goes to the class of the nearest one before it that was.
std::vector<StepCounts> merge_contexts(std::span<const StepCounts> contexts, std::size_t row_length,
                                       std::size_t max_classes, std::uint8_t* class_of_context);

// Bits that the contexts' values would take, each context with a code of its own; a little less than any code
// that has to be stated takes. For comparing two ways to choose contexts.
double estimated_bits(std::span<const StepCounts> contexts);

}  // namespace moesaic::codec
