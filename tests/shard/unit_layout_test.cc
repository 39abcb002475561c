#include "moesaic/shard/unit_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "moesaic/shard/memory_plan.h"

namespace moesaic {
namespace {

ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 2;
  config.d_model = 24;
  config.num_heads = 2;
  config.vocab_size = 50;
  config.moe.d_expert = 10;
  config.moe.gate.num_experts = 6;
  return config;
}

// What every rank holds, by tensor: (first element, one past the last).
using Pieces = std::map<std::string, std::map<std::int64_t, std::int64_t>>;

Pieces pieces_of(const UnitLayout& layout, int world_size) {
  Pieces pieces;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const Segment& segment : layout.shard_segments(rank)) {
      const bool fresh = pieces[segment.tensor->name]
                             .emplace(segment.tensor_begin, segment.tensor_begin + segment.count)
                             .second;
      EXPECT_TRUE(fresh) << segment.tensor->name << " rank " << rank;
      EXPECT_LE(segment.offset + segment.count, layout.part_of(rank).size());
    }
  }
  return pieces;
}

TEST(UnitLayout, EveryElementHasExactlyOneHolderInEveryLayout) {
  const auto specs = unit_specs(small_model());
  for (const int world_size : {1, 2, 3, 4, 6, 7, 12}) {
    const Placement placement = Placement::contiguous(6, world_size);
    for (const UnitSpec& spec : specs) {
      const UnitLayout layout(spec, placement);
      const Pieces pieces = pieces_of(layout, world_size);
      for (const TensorSpec& tensor : spec.tensors) {
        std::int64_t at = 0;
        for (const auto& [begin, end] : pieces.at(tensor.name)) {
          EXPECT_EQ(begin, at) << tensor.name;
          at = end;
        }
        EXPECT_EQ(at, tensor.numel()) << tensor.name << " over " << world_size;
      }
    }
  }
}

TEST(UnitLayout, OwnersOfABlockHoldItInRankOrder) {
  const auto specs = unit_specs(small_model());
  const Placement placement = Placement::contiguous(6, 4, 2);  // two groups of two
  for (const UnitSpec& spec : specs) {
    const UnitLayout layout(spec, placement);
    EXPECT_EQ(layout.num_blocks(), spec.kind == UnitKind::kExpert ? 2 : 1);
    for (int block = 0; block < layout.num_blocks(); ++block) {
      std::int64_t at = 0;
      for (const int owner : layout.owners(block)) {
        EXPECT_EQ(layout.block_of(owner), block);
        EXPECT_EQ(layout.part_of(owner).begin, at);
        at = layout.part_of(owner).end;
      }
      EXPECT_EQ(at, layout.block_elements(block));
    }
  }
  const UnitLayout experts(*std::ranges::find(specs, UnitKind::kExpert, &UnitSpec::kind), placement);
  EXPECT_EQ(experts.owners(1), (std::vector<int>{1, 3}));
}

TEST(UnitLayout, TheLastShardsMayBeEmpty) {
  UnitSpec spec;
  spec.tensors = {{"tiny", {40}, Init::kOnes, 0.0, false}};
  const Placement placement = Placement::contiguous(7, 7);
  const UnitLayout layout(spec, placement);
  EXPECT_EQ(layout.part_of(0).size(), 32);
  EXPECT_EQ(layout.part_of(1).size(), 8);
  EXPECT_EQ(layout.part_of(6).size(), 0);
  EXPECT_TRUE(layout.shard_segments(6).empty());
}

// One rank gathers nothing; what is in flight is the gradients of the two largest neighbouring stages.
TEST(MemoryPlan, OneRankHoldsOnlyGradientsInFlight) {
  const ModelConfig config = small_model();
  const ParallelOptions options{std::vector(2, ExpertsMode::kGather), 0, DType::kF32};
  const MemoryPlan one = plan_memory(config, options, Topology::one_node(1), 2, 16),
                   two = plan_memory(config, options, Topology::one_node(2), 2, 16);
  EXPECT_GT(one.gathered, 0);
  EXPECT_EQ(two.gathered, 2 * one.gathered);
}

TEST(MemoryPlan, ReferencesAreTwoAndAHalfBytesAWeightOfTheUnitOrOfTheShareOfANode) {
  const ModelConfig config = small_model();
  ParallelOptions options{std::vector(2, ExpertsMode::kGather), 0, DType::kBF16};
  const Topology topology = Topology::uniform(4, 2);
  const auto references = [&] { return plan_memory(config, options, topology, 2, 16).references; };
  EXPECT_EQ(references(), 0);  // raw
  options.codec = codec::Method::kMomentum;
  options.reference = ReferenceMode::kRank;
  const std::int64_t all = references();
  options.reference = ReferenceMode::kNode;
  const std::int64_t share = references();  // own quarter, and one of the other node's
  EXPECT_NEAR(static_cast<double>(share) / static_cast<double>(all), 0.5, 0.05);
  options.codec = codec::Method::kExponentReuse;
  EXPECT_NEAR(static_cast<double>(references()) / static_cast<double>(share), 1 / 2.5, 1e-3);
  options.codec = std::nullopt;
  EXPECT_EQ(references(), share);
}

TEST(MemoryPlan, ABackwardPassInChunksKeepsTheActivationsOfOneLayersSlotsAndTheirGradients) {
  ModelConfig config = small_model();
  config.vocab_size = 1;  // so that no logits are more
  constexpr std::int64_t kTokens = 16;
  ParallelOptions options{std::vector(2, ExpertsMode::kExchange), 0, DType::kF32};
  const auto activations = [&](const Topology& topology) {
    return plan_memory(config, options, topology, 2, kTokens).activations;
  };
  const std::int64_t one_chunk = activations(Topology::uniform(4, 2));
  // F and, of gates and values, H = 2F.
  const std::int64_t slots = kTokens * config.moe.gate.top_k, kept = slots * 3 * config.moe.d_expert;
  const std::int64_t logits = kTokens * 2;  // stand in its place with one chunk
  const std::int64_t chunks = one_chunk + (kept - logits) * std::int64_t{sizeof(float)};
  options.exchange_chunks = 3;
  EXPECT_EQ(activations(Topology::uniform(4, 2)), chunks);
  EXPECT_EQ(activations(Topology::one_node(4)), chunks);
  EXPECT_EQ(activations(Topology::one_node(1)), one_chunk);  // nothing travels
  options.exchange_chunks = std::nullopt;
  EXPECT_EQ(activations(Topology::uniform(4, 2)), chunks);
  EXPECT_EQ(activations(Topology::one_node(4)), one_chunk);  // nothing to hide behind
  options.exchange_size = 2;                                 // of one node each
  EXPECT_EQ(activations(Topology::uniform(4, 2)), one_chunk);
  EXPECT_EQ(activations(Topology::uniform(4, 1)), chunks);
  options.overlap = false;
  EXPECT_EQ(activations(Topology::uniform(4, 1)), one_chunk);
  options.overlap = true;
  options.experts.assign(2, ExpertsMode::kGather);
  EXPECT_EQ(activations(Topology::uniform(4, 1)), one_chunk);
}

}  // namespace
}  // namespace moesaic
