#include "moesaic/shard/sharded_model.h"

#include <gtest/gtest.h>

#include "moesaic/nn/params.h"
#include "moesaic/shard/collect.h"
#include "tests/comm/worlds.h"

namespace moesaic::testing {
namespace {

ModelConfig model_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.d_model = 24;
  config.num_heads = 2;
  config.vocab_size = 50;
  config.moe.d_expert = 10;
  config.moe.gate.num_experts = 12;
  return config;
}

std::vector<float> initial_values(const TensorSpec& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  initialise(tensor, 3, 0, tensor.numel(), values.data());
  return values;
}

// Both ways at once: layer 0 gathers its experts, layer 1 exchanges tokens.
ParallelOptions both_ways(int exchange_size = 0) {
  return {{ExpertsMode::kGather, ExpertsMode::kExchange}, exchange_size, DType::kF32};
}

// The tensors a unit's leaves should hold on this rank, in order.
std::vector<float> expected_leaf_values(const ShardedModel& model, const UnitSpec& spec, bool exchanged) {
  std::vector<float> all;
  const auto add = [&](const TensorSpec& tensor) {
    const auto values = initial_values(tensor);
    all.insert(all.end(), values.begin(), values.end());
  };
  if (spec.kind == UnitKind::kDense) {
    for (const TensorSpec& tensor : spec.tensors) add(tensor);
    return all;
  }
  const Placement whole = model.placement().gathered();
  const auto experts =
      exchanged ? model.placement().experts_of(model.world().rank() % model.placement().exchange_size())
                : whole.experts_of(0);
  for (const int expert : experts) {
    for (std::int64_t i = 0; i < spec.per_expert(); ++i) {
      add(spec.tensors[static_cast<std::size_t>(expert * spec.per_expert() + i)]);
    }
  }
  return all;
}

std::vector<float> values_of(const std::vector<at::Tensor>& leaves) {
  std::vector<float> values;
  for (const at::Tensor& leaf : leaves) {
    const float* at = leaf.const_data_ptr<float>();
    values.insert(values.end(), at, at + leaf.numel());
  }
  return values;
}

TEST(ShardedModel, TellsExchangedLayersHowTheirSumsTravelAndThatRowsWillBeCut) {
  run_world(Topology::one_node(2), [](Communicator& world) {
    ParallelOptions options = both_ways();
    const auto exchanged = [&] { return ShardedModel(model_config(), options, world).routes()[1]; };
    EXPECT_FALSE(exchanged().only_panels);  // one chunk
    options.exchange_chunks = std::nullopt;
    EXPECT_FALSE(exchanged().only_panels || exchanged().fp32_sums);
    options.exchange_chunks = 3;
    options.fp32_sums = true;
    EXPECT_TRUE(exchanged().only_panels && exchanged().fp32_sums);
    EXPECT_EQ(exchanged().dispatch.chunks, 3);
    // That rows come in one chunk without overlap must not change bits.
    options.overlap = false;
    EXPECT_TRUE(exchanged().only_panels);
    EXPECT_EQ(exchanged().dispatch.chunks, 1);
  });
}

TEST(ShardedModel, AcquireBringsTheInitialValuesInEveryWorld) {
  for_each_world([](Communicator& world) {
    ShardedModel model(model_config(), both_ways(), world);
    model.initialise(3);
    for (int round = 0; round < 2; ++round) {
      for (int stage = 0; stage < static_cast<int>(model.stages().size()); ++stage) {
        const auto units = model.acquire(stage);
        model.prefetch(stage + 1);
        for (std::size_t i = 0; i < units.size(); ++i) {
          const auto index =
              static_cast<std::size_t>(model.stages()[static_cast<std::size_t>(stage)].units[i]);
          const UnitSpec& spec = model.units()[index]->layout().spec();
          EXPECT_EQ(values_of(units[i]), expected_leaf_values(model, spec, spec.layer == 1)) << spec.name;
        }
        model.release(stage);
      }
    }
  });
}

// Rank r's gradient is r + 1 everywhere: the owners' shards must hold the sum over the ranks that computed
// with the unit, twice as much after a second micro-step.
TEST(ShardedModel, ReduceSumsOverRanksAndMicroSteps) {
  for_each_world([](Communicator& world) {
    ShardedModel model(model_config(), both_ways(), world);
    model.initialise(3);
    const Placement& placement = model.placement();
    for (const bool first : {true, false}) {
      for (int stage = static_cast<int>(model.stages().size()) - 1; stage >= 0; --stage) {
        for (const UnitTensors& tensors : model.acquire(stage)) {
          for (at::Tensor leaf : tensors) leaf.mutable_grad() = at::full_like(leaf, world.rank() + 1.0f);
        }
        model.reduce(stage);
        model.release(stage);
      }
      model.finish_reduce(first);
    }
    for (auto& unit : model.units()) {
      const UnitSpec& spec = unit->layout().spec();
      float sum = 0;
      for (int rank = 0; rank < world.size(); ++rank) {
        const bool co_owner = rank % placement.exchange_size() == world.rank() % placement.exchange_size();
        if (spec.kind == UnitKind::kDense || spec.layer == 0 || co_owner) sum += static_cast<float>(rank + 1);
      }
      for (const Segment& segment : unit->layout().shard_segments(world.rank())) {
        for (std::int64_t i = 0; i < segment.count; ++i) {
          ASSERT_EQ(unit->gradient()[static_cast<std::size_t>(segment.offset + i)], 2 * sum) << spec.name;
        }
      }
    }
  });
}

TEST(ShardedModel, LeavesWithoutGradientsCountAsZero) {
  run_world(Topology::one_node(3), [](Communicator& world) {
    ShardedModel model(model_config(), both_ways(), world);
    model.initialise(3);
    for (int stage = static_cast<int>(model.stages().size()) - 1; stage >= 0; --stage) {
      model.acquire(stage);
      model.reduce(stage);
      model.release(stage);
    }
    model.finish_reduce(true);
    for (auto& unit : model.units()) {
      for (const float value : unit->gradient()) ASSERT_EQ(value, 0.0f);
    }
  });
}

TEST(ShardedModel, CollectBringsEveryTensorToItsWriterOnce) {
  for_each_world([](Communicator& world) {
    ShardedModel model(model_config(), both_ways(), world);
    model.initialise(3);
    std::int64_t mine = 0;
    for (std::size_t u = 0; u < model.units().size(); ++u) {
      ShardedUnit& unit = *model.units()[u];
      const Buffer block = collect_block(world, unit.layout(), static_cast<int>(u), unit.master());
      if (block.bytes() == 0) continue;
      const int index = block_written_by(unit.layout(), static_cast<int>(u), world.rank()).value();
      for (const Segment& segment : unit.layout().block_segments(index)) {
        const float* at = block.as<float>() + segment.offset;
        EXPECT_EQ(std::vector<float>(at, at + segment.count), initial_values(*segment.tensor));
        ++mine;
      }
    }
    all_reduce(world, std::span<std::int64_t>(&mine, 1));
    std::int64_t tensors = 0;
    for (const auto& unit : model.units()) tensors += std::ssize(unit->layout().spec().tensors);
    EXPECT_EQ(mine, tensors);
  });
}

}  // namespace
}  // namespace moesaic::testing
