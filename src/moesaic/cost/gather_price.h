// gather_price.h: what one step's gathers of a unit cost, by method: arithmetic on a Calibration.
//
// Local, sends nothing; equal inputs give equal bits. Four stages: encode the own part; move it between
// nodes, once to each other node; share inside the node; decode. Cut into slices they overlap:
//   time = header + longest stage + (sum of the others) / slices.
// Each stage is that of the busiest rank, or of the busiest node's card. The header is what all ranks tell
// each other before and after: sizes and what they hold, and their verdicts.
//
// `raw` has neither header nor coders. A part of the unit goes where shard's gather takes it:
//   rank  the carrier hands coded bytes to its node; every rank decodes what others own
//   node  the carrier decodes for its node and hands on words, as the owner does on its own node
// A second gather of the same version: `rank` finds the words in its reference, `node` shares them inside the
// node, where the method keeps words (residual, momentum); both after a verdict on them. Other methods and
// raw send again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/method.h"
#include "moesaic/comm/topology.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/reference_mode.h"

namespace moesaic {

struct GatherShape {
  Topology topology = Topology::one_node(1);
  std::vector<std::int64_t> words_of_rank;  // of each rank's part, bf16
  ReferenceMode mode = ReferenceMode::kRank;
  int regathers = 0;  // further gathers of the same version in a step
  int slices = 1;     // in which a coded part travels; raw travels whole
};

// Seconds of a step, all its gathers together.
struct Prediction {
  double header = 0;  // and verdict
  double encode = 0;
  double between = 0;
  double inside = 0;
  double decode = 0;
  double total = 0;  // with the overlap; less than the sum where there are slices

  double network() const { return between + inside; }
};

// What a kind of gather asks of the busiest rank and card, in words; a pure function of the shape.
struct GatherLoad {
  std::int64_t own = 0;           // words of the largest part
  std::int64_t through_card = 0;  // words that the busiest node sends, once to each other node
  std::int64_t from_node = 0;     // words a rank gets from its node's others
  std::int64_t carried = 0;       // words of other nodes that a rank takes in
  std::int64_t foreign = 0;       // words of all others' parts
  std::int64_t all = 0;           // words of the unit
  int messages_between = 0;       // that a rank sends for one part to each other node
  int messages_inside = 0;
};

// InvalidArgument: not one count per rank, a negative one, slices below 1, regathers below 0.
GatherLoad load_of(const GatherShape& shape);

// InvalidArgument where bits_per_word is not a finite number above 0. For raw, bits_per_word is 16.
Prediction predict(const Calibration& calibration, const GatherShape& shape, codec::Method method,
                   double bits_per_word);

}  // namespace moesaic
