// reduce_price.h: what summing one unit's gradients into their owners' shards costs: arithmetic on a
// Calibration.
//
// Local, sends nothing; equal inputs give equal bits. The ranks of a node sum inside it, a part's sum crosses
// from each node to its owner, and the owner adds (shard/coded_reduce.h). One after another: nothing overlaps
// inside one reduce. Each stage is that of the busiest rank, or of the busiest node's card.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/cost/calibration.h"

namespace moesaic {

struct ReduceShape {
  Topology topology = Topology::one_node(1);
  std::vector<std::int64_t> words_of_rank;  // of each rank's part, bf16
};

// Seconds of one reduce.
struct ReducePrediction {
  double inside = 0, encode = 0, between = 0, decode = 0;
  double total() const { return inside + encode + between + decode; }
};

// bits_per_word: of the words that cross, blocks left out as zeros counted with none. `coded`: by the entropy
// wire, or as they are. InvalidArgument: not one count per rank, a negative one; bits_per_word that is not a
// finite number of at least 0.
ReducePrediction predict_reduce(const Calibration& calibration, const ReduceShape& shape, bool coded,
                                double bits_per_word);

}  // namespace moesaic
