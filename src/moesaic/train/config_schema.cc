#include "moesaic/train/config_schema.h"

#include "moesaic/train/moe_schema.h"

namespace moesaic {
namespace {

SchemaSection model_section(ModelConfig& c) {
  return {
      "model",
      "The transformer: RMSNorm, rotary attention, a dense or MoE feed-forward per layer.",
      {
          {.key = "vocab_size", .target = &c.vocab_size, .doc = "token ids are 0 .. vocab_size-1", .min = 1},
          {.key = "num_layers", .target = &c.num_layers, .doc = "layers", .min = 1},
          {.key = "d_model", .target = &c.d_model, .doc = "width; a multiple of 2 * num_heads", .min = 1},
          {.key = "num_heads", .target = &c.num_heads, .doc = "attention heads", .min = 1},
          {.key = "max_seq_len",
           .target = &c.max_seq_len,
           .doc = "longest sequence",
           .unit = "tokens",
           .min = 1},
          {.key = "num_dense_layers",
           .target = &c.num_dense_layers,
           .doc = "the first ones have a dense feed-forward instead of experts",
           .min = 0},
          {.key = "d_ff", .target = &c.d_ff, .doc = "width of the dense feed-forward", .min = 1},
          {.key = "activation",
           .target =
               enum_target(&c.activation, {{"swiglu", Activation::kSwiGlu}, {"relu", Activation::kRelu}}),
           .doc = "of experts and dense feed-forwards"},
          {.key = "rope_theta",
           .target = &c.rope_theta,
           .doc = "base of the rotary angles",
           .min = 0,
           .above_min = true},
          {.key = "norm_eps", .target = &c.norm_eps, .doc = "added to the mean square in RMSNorm", .min = 0},
          {.key = "qk_norm", .target = &c.qk_norm, .doc = "normalise queries and keys before the head split"},
          {.key = "clip_qkv",
           .target = &c.clip_qkv,
           .doc = "clamp queries, keys and values to +-this; 0 = off",
           .min = 0},
          {.key = "tie_embeddings",
           .target = &c.tie_embeddings,
           .doc = "the head shares the embedding's weights"},
          {.key = "init_std",
           .target = &c.init_std,
           .doc = "standard deviation of initial weights",
           .min = 0,
           .above_min = true},
      }};
}

SchemaSection parallel_section(ParallelConfig& c) {
  return {"parallel",
          "How the work is cut over ranks.",
          {
              {.key = "experts",
               .target = ListTarget{&c.experts, true},
               .doc = "gather: move expert weights to the tokens; exchange: move tokens to the experts' "
                      "owners; one for "
                      "all layers, or an array with one per layer",
               .allowed = {"gather", "exchange"}},
              {.key = "exchange_size",
               .target = &c.exchange_size,
               .doc = "ranks that together own every expert once; 0 = the largest divisor of the number of "
                      "ranks that is at "
                      "most num_experts",
               .min = 0},
              {.key = "ranks",
               .target = &c.ranks,
               .doc = "ranks to run as threads when not started by an MPI launcher",
               .min = 1,
               .max = 4096},
              {.key = "threads_per_rank",
               .target = &c.threads_per_rank,
               .doc = "compute threads of one rank",
               .min = 1,
               .max = 4096},
          }};
}

SchemaSection comm_section(CommConfig& c) {
  return {
      "comm",
      "Messages between ranks.",
      {
          {.key = "route",
           .target = enum_target(&c.route, {{"auto", std::nullopt},
                                            {"flat", Route::kFlat},
                                            {"leader", Route::kLeader},
                                            {"rail", Route::kRail},
                                            {"rail_dedup", Route::kRailDedup}}),
           .doc = "path of exchanged tokens between nodes; auto: for each layer and step the one that "
                  "promises to be fastest by the calibration of links (codec.calibration); flat: straight "
                  "from rank to rank; leader: through one rank of each node; rail: through one rank of the "
                  "other node; rail_dedup: as rail, and a token crosses to a node once, a sum back; all of "
                  "them give the same bits"},
          {.key = "wire",
           .target = enum_target(&c.wire, {{"model", std::nullopt}, {"fp32", DType::kF32}}),
           .doc = "what the sums of exchanged tokens' experts, and those of their gradients, travel home in: "
                  "model: train.dtype; fp32: in bf16 training, too, so that nothing is rounded between the "
                  "experts and a token's sum; twice the bytes on the way home, and other bits"},
          {.key = "timeout_s",
           .target = &c.timeout_s,
           .doc = "a rank silent for longer counts as lost and ends the job",
           .unit = "s",
           .min = 0,
           .above_min = true},
          {.key = "ranks_per_node",
           .target = &c.ranks_per_node,
           .doc = "consecutive ranks taken as one node; 0 = as discovered, one node for threads",
           .min = 0},
          {.key = "overlap",
           .target = &c.overlap,
           .doc = "gather weights ahead and reduce gradients behind while layers compute, and move tokens "
                  "while shared experts and other chunks compute; the bits are the same without, and less "
                  "memory is needed"},
          {.key = "exchange_chunks",
           .target = &c.exchange_chunks,
           .doc =
               "chunks that exchanged tokens travel in: experts work on one while others are under way; 0 = "
               "for each layer and step 1 to 4, by the bytes that cross nodes and the rows that experts get; "
               "1 without overlap; the bits are the same. On CPUs with 512-bit vectors 0 means 1 wherever a "
               "rank has 16 rows or more per expert: PyTorch's products are taken there, whose bits depend "
               "on how rows are cut; a number above 1 takes Moesaic's own, with other bits",
           .min = 0,
           .max = kMostChunks},
      }};
}

SchemaSection codec_section(CodecConfig& c) {
  return {
      "codec",
      "How gathered weights and their gradients travel in bf16 training.",
      {
          {.key = "method",
           .target = enum_target(&c.method, {{"auto", std::nullopt},
                                             {"raw", codec::Method::kRaw},
                                             {"entropy", codec::Method::kEntropy},
                                             {"int8", codec::Method::kInt8},
                                             {"exponent_reuse", codec::Method::kExponentReuse},
                                             {"residual", codec::Method::kResidual},
                                             {"momentum", codec::Method::kMomentum}}),
           .doc = "auto: for each unit, momentum where it is faster than raw, as measured; momentum, "
                  "residual: the difference from the step before; exponent_reuse: what is not its "
                  "exponent; entropy: without history; raw: as they are; all of them give the same bits, "
                  "except int8, which is LOSSY"},
          {.key = "reference",
           .target =
               enum_target(&c.reference, {{"node", ReferenceMode::kNode}, {"rank", ReferenceMode::kRank}}),
           .doc = "who keeps the weights of the step before: the ranks of a node together, or every rank all "
                  "of them (more memory; nothing moves in the backward pass)"},
          {.key = "gradients",
           .target = enum_target(&c.gradients, {{"auto", std::nullopt},
                                                {"bf16", codec::GradientWire::kBf16},
                                                {"entropy", codec::GradientWire::kEntropy},
                                                {"int8", codec::GradientWire::kInt8}}),
           .doc =
               "how gradients travel between nodes: as they are (bf16); with their exponents coded, the same "
               "bits (entropy); auto: for each unit, entropy where it is faster than bf16, as measured; or "
               "int8, which is LOSSY. Experts without tokens on a node send nothing"},
          {.key = "calibration",
           .target = &c.calibration,
           .doc = "file written by `moesaic calibrate --json` on the same ranks, for what is auto; empty = "
                  "measure links and coders when training starts (about a second)"},
      }};
}

SchemaSection data_section(DataConfig& c) {
  return {"data",
          "Token files.",
          {
              {.key = "files",
               .target = ListTarget{&c.files, false},
               .doc = "paths; relative ones start at the configuration file's folder"},
              {.key = "weights",
               .target = &c.weights,
               .doc = "share of training sequences drawn from each file, relative to the sum; 0 = held-out "
                      "part only; none given = by size",
               .min = 0,
               .max = 1e9},
              {.key = "format",
               .target = enum_target(&c.format, {{"bytes", TokenFormat::kBytes},
                                                 {"uint8", TokenFormat::kUint8},
                                                 {"uint16", TokenFormat::kUint16},
                                                 {"uint32", TokenFormat::kUint32},
                                                 {"npy", TokenFormat::kNpy}}),
               .doc = "bytes: plain text, one token per byte; uint8, uint16, uint32: raw little-endian token "
                      "ids; npy: NumPy arrays, each with its own type"},
              {.key = "held_out_fraction",
               .target = &c.held_out_fraction,
               .doc = "last part of each file, kept for evaluation",
               .min = 0,
               .max = 0.9},
              {.key = "seq_len",
               .target = &c.seq_len,
               .doc = "length of a training sequence",
               .unit = "tokens",
               .min = 1},
          }};
}

SchemaSection optim_section(OptimConfig& c) {
  return {
      "optim",
      "Optimizer and learning-rate schedule.",
      {
          {.key = "name",
           .target = enum_target(&c.name, {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}}),
           .doc = "optimizer"},
          {.key = "lr", .target = &c.lr, .doc = "peak learning rate", .min = 0},
          {.key = "beta1",
           .target = &c.beta1,
           .doc = "AdamW: decay of the first moment",
           .min = 0,
           .max = 0.999999},
          {.key = "beta2",
           .target = &c.beta2,
           .doc = "AdamW: decay of the second moment",
           .min = 0,
           .max = 0.999999},
          {.key = "eps",
           .target = &c.eps,
           .doc = "AdamW: added to the denominator",
           .min = 0,
           .above_min = true},
          {.key = "weight_decay",
           .target = &c.weight_decay,
           .doc = "AdamW: decoupled; SGD: added to the gradient; not on norms and biases",
           .min = 0},
          {.key = "momentum", .target = &c.momentum, .doc = "SGD: momentum", .min = 0, .max = 0.999999},
          {.key = "clip_norm",
           .target = &c.clip_norm,
           .doc = "largest global gradient norm; 0 = off",
           .min = 0},
          {.key = "schedule",
           .target = enum_target(&c.schedule,
                                 {{"cosine", LrSchedule::kCosine}, {"constant", LrSchedule::kConstant}}),
           .doc = "after warm-up"},
          {.key = "warmup_steps",
           .target = &c.warmup_steps,
           .doc = "linear warm-up",
           .unit = "steps",
           .min = 0},
          {.key = "final_lr_fraction",
           .target = &c.final_lr_fraction,
           .doc = "cosine: learning rate at the last step, as a fraction of lr",
           .min = 0,
           .max = 1},
      }};
}

SchemaSection train_section(TrainConfig& c) {
  return {"train",
          "The run.",
          {
              {.key = "steps", .target = &c.steps, .doc = "optimizer steps of the whole run", .min = 1},
              {.key = "stop_at",
               .target = &c.stop_at,
               .doc = "save and end after this step, as on SIGTERM; 0 = off",
               .min = 0},
              {.key = "dtype",
               .target = enum_target(&c.dtype, {{"fp32", DType::kF32}, {"bf16", DType::kBF16}}),
               .doc = "of compute and transport; master weights, router, sums and losses are fp32"},
              {.key = "seed",
               .target = &c.seed,
               .doc = "of initial weights, data order and every random choice",
               .min = 0},
              {.key = "batch_tokens",
               .target = &c.batch_tokens,
               .doc = "tokens of all ranks per optimizer step; a multiple of seq_len * accumulation",
               .unit = "tokens",
               .min = 1},
              {.key = "accumulation",
               .target = &c.accumulation,
               .doc = "micro-steps per optimizer step",
               .min = 1},
              {.key = "recompute",
               .target = ListTarget{&c.recompute, true},
               .doc = "activation checkpointing; full: a layer keeps its input and its routing and runs "
                      "forward again in the backward pass (less memory, about a third more compute, the same "
                      "gradients); one for all layers, or an array with one per layer",
               .allowed = {"none", "full"}},
              {.key = "eval_every",
               .target = &c.eval_every,
               .doc = "steps between evaluations; 0 = only at the end",
               .unit = "steps",
               .min = 0},
              {.key = "eval_tokens",
               .target = &c.eval_tokens,
               .doc = "held-out tokens per evaluation; 0 = all",
               .unit = "tokens",
               .min = 0},
              {.key = "max_skipped_steps",
               .target = &c.max_skipped_steps,
               .doc = "the run stops at this many steps in a row skipped for a non-finite loss or gradient",
               .min = 1},
          }};
}

SchemaSection checkpoint_section(CheckpointConfig& c) {
  return {"checkpoint",
          "Saved states.",
          {
              {.key = "every",
               .target = &c.every,
               .doc = "steps between checkpoints; 0 = only at the end",
               .unit = "steps",
               .min = 0},
              {.key = "keep_last",
               .target = &c.keep_last,
               .doc = "older checkpoints are deleted; 0 = keep all",
               .min = 0},
          }};
}

}  // namespace

Schema layer_schema(MoeConfig& moe, std::string name) {
  Schema schema = {moe_section(moe)};
  schema.front().name = std::move(name);
  return schema;
}

Schema config_schema(Config& config) {
  SchemaSection moe = moe_section(config.model.moe);
  moe.fields.push_back(
      {.key = "per_layer",
       .target = ListTarget{&config.moe_per_layer, false},
       .doc = "other values of keys of this table for single layers, counted from 0, as LAYER.key=value: "
              "[\"0.gate=hash\", \"0.top_k=1\"]"});
  return {model_section(config.model),          std::move(moe),
          parallel_section(config.parallel),    comm_section(config.comm),
          codec_section(config.codec),          data_section(config.data),
          optim_section(config.optim),          train_section(config.train),
          checkpoint_section(config.checkpoint)};
}

}  // namespace moesaic
