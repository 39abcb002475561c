"""An outside referee: transformers' OLMoE in plain PyTorch, from the same weights and data, trains alike.

fp32, AdamW. Moesaic's checkpoint is loaded into OlmoeForCausalLM; logits, balance loss, gradient norms, the losses of the
first 20 steps and the weights after them must agree.
"""

import functools
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

SOURCE = Path(__file__).resolve().parents[2]
sys.path += [str(SOURCE / "tests" / "launch"), str(SOURCE / "bench" / "peers")]
from data_order import TrainingData  # noqa: E402
from olmoe import OlmoeTrainer, as_olmoe, checkpoint_tensors, load_olmoe  # noqa: E402
from program import metrics, moesaic, newest_checkpoint, train, write_config, write_text  # noqa: E402

STEPS = 20
WARMUP = 5
LR = 5e-3
BETAS, EPS, WEIGHT_DECAY, CLIP_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
SEQ_LEN = 16
SEQUENCES = 8
# Wide enough that attention, rotation and gates do something from the first step on.
INIT_STD = 0.08

INITIAL_RUNS = tempfile.TemporaryDirectory(prefix="moesaic-olmoe-")  # removed at exit


@dataclass(frozen=True)
class Variant:
    num_experts: int = 6
    top_k: int = 2
    normalise: str = "before_drop"
    balance_loss: float = 0.0
    # Exactly 8 training windows: every step sees the same set, in whatever order. Else many, in the seeded order.
    one_batch: bool = False
    more: tuple = field(default=())  # further configuration, in pairs

    def text(self, folder):
        # 90% of it is for training; a window shares no input with the next, the last target needs one token more.
        return write_text(folder, size=(SEQUENCES * SEQ_LEN + 1) * 10 // 9 + 1 if self.one_batch else 6000)

    def config(self, folder):
        return write_config(
            folder, data__files=[str(self.text(folder))], data__seq_len=SEQ_LEN, model__init_std=INIT_STD,
            moe__num_experts=self.num_experts, moe__top_k=self.top_k, moe__normalise=self.normalise,
            moe__balance_loss=self.balance_loss, moe__balance_convention="hf", moe__z_loss=0.0,
            train__batch_tokens=SEQUENCES * SEQ_LEN, train__steps=STEPS, optim__lr=LR, optim__schedule="constant",
            optim__warmup_steps=WARMUP, optim__beta1=BETAS[0], optim__beta2=BETAS[1], optim__eps=EPS,
            optim__weight_decay=WEIGHT_DECAY, optim__clip_norm=CLIP_NORM, **dict(self.more))


VARIANTS = {
    "one_batch": Variant(one_batch=True),
    "many_batches": Variant(),
    "many_batches_in_two_micro_steps": Variant(more=(("train__accumulation", 2),)),
    "top_8_of_16_not_normalised": Variant(num_experts=16, top_k=8, normalise="none"),
    "balance_loss_of_hugging_face": Variant(normalise="none", balance_loss=0.05),
    "queries_keys_and_values_clipped": Variant(more=(("model__clip_qkv", 0.5),)),
}
LAYOUTS = {"1_rank": (1, "gather"), "2_ranks_exchange": (2, "exchange")}

variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
layouts = pytest.mark.parametrize("ranks, experts", LAYOUTS.values(), ids=LAYOUTS.keys())


def column(lines, key):
    return [line[key] for line in lines]


@functools.cache
def initial_run(variant):
    """A run directory whose checkpoint holds the initial weights: with lr = 0, a step moves nothing."""
    folder = Path(tempfile.mkdtemp(dir=INITIAL_RUNS.name))
    train(variant.config(folder), folder / "run", optim__lr=0.0, train__stop_at=1)
    return folder / "run"


@dataclass
class Reference:
    losses: list
    gradient_norms: list
    balance_losses: list
    state: dict


def configuration(run_dir):
    return tomllib.loads((run_dir / "config.toml").read_text())


@functools.cache
def reference(variant):
    """transformers' model, trained by torch."""
    torch.set_num_threads(1)
    config = configuration(initial_run(variant))
    config["optim"]["lr"] = LR
    trainer = OlmoeTrainer(config, newest_checkpoint(initial_run(variant)))
    data = TrainingData(initial_run(variant).parent / "words.txt", SEQ_LEN, SEQUENCES)
    assert data.num_windows == SEQUENCES if variant.one_batch else data.num_windows > 20 * SEQUENCES
    result = Reference([], [], [], {})
    for step in range(STEPS):
        done = trainer.step(*(torch.from_numpy(rows) for rows in data.batch(step)))
        result.losses.append(done.loss)
        result.gradient_norms.append(done.gradient_norm)
        if variant.balance_loss > 0:
            # Moesaic reports each layer alone, and trains on all layers together as transformers does.
            layers = [load_balancing_loss_func((logits,), variant.num_experts, variant.top_k) for logits in done.router_logits]
            result.balance_losses.append(sum(layer.item() for layer in layers) / len(layers))
    result.state = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    return result


def assert_same_logits(variant, run_dir, file):
    ran = moesaic("eval", "--run-dir", run_dir, "--logits", file)
    assert ran.returncode == 0, ran.stderr
    dumped = load_file(file)
    assert dumped["tokens"].numel() >= SEQ_LEN
    with torch.no_grad():
        expected = load_olmoe(configuration(run_dir), newest_checkpoint(run_dir))(input_ids=dumped["tokens"]).logits
    assert expected.std() > 0.02  # not equal for want of content
    torch.testing.assert_close(dumped["logits"], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in VARIANTS if not VARIANTS[name].one_batch])
def test_initial_weights_give_the_same_logits(tmp_path, name):
    variant = VARIANTS[name]
    assert_same_logits(variant, initial_run(variant), tmp_path / "logits.safetensors")


def test_a_step_at_learning_rate_0_leaves_the_weights(tmp_path):
    variant = VARIANTS["many_batches"]
    train(variant.config(tmp_path), tmp_path / "run", optim__lr=0.0, train__stop_at=2)
    once, twice = (checkpoint_tensors(newest_checkpoint(run)) for run in (initial_run(variant), tmp_path / "run"))
    assert once.keys() == twice.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)


@variants
@layouts
def test_training_gives_the_same_losses_gradients_and_weights(tmp_path, variant, ranks, experts):
    run_dir = tmp_path / "run"
    train(variant.config(tmp_path), run_dir, ranks=ranks, parallel__experts=experts)
    expected = reference(variant)
    lines = [line for line in metrics(run_dir) if "loss" in line]
    losses = column(lines, "loss")
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(expected.losses[0], rel=1e-5)
    assert losses == pytest.approx(expected.losses, rel=1e-4)
    assert losses[-1] < losses[0] - 0.5
    assert column(lines, "gradient_norm") == pytest.approx(expected.gradient_norms, rel=1e-4)
    assert max(expected.gradient_norms) > CLIP_NORM  # clipping took part
    if variant.balance_loss > 0:
        assert column(lines, "balance_loss") == pytest.approx(expected.balance_losses, rel=1e-4)

    trained = as_olmoe(checkpoint_tensors(newest_checkpoint(run_dir)), 2, variant.num_experts)
    initial = as_olmoe(checkpoint_tensors(newest_checkpoint(initial_run(variant))), 2, variant.num_experts)
    for name, tensor in trained.items():
        way, moved = expected.state[name] - initial[name], tensor - initial[name]
        assert (moved - way).norm() < 1e-3 * way.norm(), name
    if not variant.one_batch:  # its text is too short to hold a window out
        assert_same_logits(variant, run_dir, tmp_path / "logits.safetensors")
