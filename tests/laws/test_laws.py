"""Invariants of every algorithm: extra columns, neighbours or micro-batches must not change what is learned."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rlcore.data.samples import stack_samples
from rlcore.types import Trajectories

Make = Callable[..., Any]
Gradients = dict[str, Tensor]
SAMPLES = [["ab", "cde"], "hello there.", ["who? ", "me!", " why? ", "because."], ["q", "!"], "yes", ["long ago", "it"]]
PROMPTS = ["ab", "hello", "q", "see you."]
ENDS = [30, 3, 7, 11, 19]
EOS, PAD = 30, 31


@pytest.fixture(params=["sft", "ppo"])
def algorithm(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[True, False], ids=["packed", "padded"])
def packing(request: pytest.FixtureRequest) -> bool:
    packs: bool = request.param
    return packs


def letters(outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - output.count("a") for output in outputs]


def build(
    make: Make, name: str, model: PreTrainedModel, *, micro: int = 0, tokens: int = 0, **architecture: Any
) -> Any:
    """Make a trainer whose optimizer step uses all of its data."""
    options: dict[str, Any] = {"batch_size": 64, "micro_batch_size": micro, "micro_batch_tokens": tokens}
    inputs: dict[str, Any] = {"samples": SAMPLES}
    if name == "ppo":
        options |= {"rollouts": 24, "epochs": 1, "entropy_coef": 0.01, "kl_coef": 0.1}
        inputs = {"prompts": PROMPTS, "reward_fn": letters}
    sections = {"model": architecture, "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS}}
    trainer = make(name, model, sections=sections, inputs=inputs, **options)
    assert (trainer.policy().module.layout.longest > 0) == architecture.get("speed", {}).get("packing", True)
    return trainer


def data(trainer: Any) -> Trajectories:
    """Return the training data of one step: a round of rollouts, or all demonstrations."""
    if not hasattr(trainer, "rollout"):
        return stack_samples(trainer.run.samples)
    trainer.rollout()
    batch = trainer.store.take()
    # A policy in the middle of an epoch: ratios differ from 1, and some are clipped.
    return batch.with_columns(old_logprobs=batch["old_logprobs"] + torch.linspace(-0.4, 0.4, batch.tokens.shape[1]))


def learn(trainer: Any, batch: Trajectories, monkeypatch: pytest.MonkeyPatch) -> tuple[Gradients, dict[str, float]]:
    """Train on `batch` up to the optimizer step; return gradients and reported losses."""
    metrics: dict[str, float]
    with monkeypatch.context() as patch:
        patch.setattr(trainer.updater, "step", lambda *_: None)
        if hasattr(trainer, "rollout"):
            metrics = trainer.update(batch)
        else:
            patch.setattr(sys.modules[type(trainer).__module__], "stack_samples", lambda samples: batch)
            metrics = next(trainer.steps())
    module = trainer.policy().module
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return gradients, {name: value for name, value in metrics.items() if name.startswith(("loss/", "policy/"))}


def assert_same(
    ours: tuple[Gradients, dict[str, float]], theirs: tuple[Gradients, dict[str, float]], by: float
) -> None:
    assert ours[0].keys() == theirs[0].keys()
    scale = max(float(gradient.abs().max()) for gradient in ours[0].values())
    assert scale > 0.01
    for name, gradient in ours[0].items():
        assert float((gradient - theirs[0][name]).abs().max()) <= by * max(1.0, scale), name
    assert ours[1] == pytest.approx(theirs[1], rel=1e-4, abs=1e-5)


def moved(batch: Trajectories, offsets: Sequence[int], width: int, pad_id: int, garbage: float) -> Trajectories:
    """Shift row i to begin at column offsets[i] of `width`; the padding around it contains `pad_id` and `garbage`."""
    rows = torch.arange(len(batch))

    def move(array: Tensor, fill: float) -> Tensor:
        if array.dim() == 1:
            return array
        out = torch.full((len(batch), width), fill, dtype=array.dtype)
        for i in rows.tolist():
            real = array[i][batch.mask[i]]
            out[i, offsets[i] : offsets[i] + len(real)] = real
        return out

    return Trajectories(
        tokens=move(batch.tokens, pad_id),
        mask=move(batch.mask, 0),
        action_mask=move(batch.action_mask, 0),
        ended=batch.ended,
        columns={name: move(array, garbage) for name, array in batch.columns.items()},
    )


def layouts(batch: Trajectories) -> dict[str, tuple[list[int], int]]:
    lengths = batch.mask.sum(1).tolist()
    widest = max(lengths)
    return {
        "more on the right": ([0] * len(batch), widest + 5),
        "all on the left": ([widest - length for length in lengths], widest),
        "more on the left": ([widest + 4 - length for length in lengths], widest + 4),
        "on both sides, each row its own": ([i * 5 % (widest + 6 - n) for i, n in enumerate(lengths)], widest + 6),
    }


LAYOUTS = ["more on the right", "all on the left", "more on the left", "on both sides, each row its own"]


@pytest.mark.parametrize("pad_id", [PAD, EOS], ids=["pad", "pad = eos"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_changes_no_logprob_and_no_value(
    make_trainer: Make, tiny_model: PreTrainedModel, packing: bool, layout: str, pad_id: int
) -> None:
    trainer = build(make_trainer, "ppo", tiny_model, speed={"packing": packing})
    batch = data(trainer)
    offsets, width = layouts(batch)[layout]
    other = moved(batch, offsets, width, pad_id, garbage=0.0)
    with torch.no_grad():
        for score in (trainer.policy().score, trainer.policy().reference_score):
            ours, theirs = score(batch), score(other)
            assert ours.logprobs[~batch.action_mask].abs().sum() == 0
            assert theirs.logprobs[~other.action_mask].abs().sum() == 0
            assert torch.allclose(ours.logprobs[batch.action_mask], theirs.logprobs[other.action_mask], atol=1e-5)
            if ours.values is not None:
                assert torch.allclose(ours.values[batch.action_mask], theirs.values[other.action_mask], atol=1e-5)


@pytest.mark.parametrize("pad_id", [PAD, EOS], ids=["pad", "pad = eos"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_changes_no_gradient(
    make_trainer: Make, tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch,
    algorithm: str, layout: str, pad_id: int,
) -> None:  # fmt: skip
    trainer = build(make_trainer, algorithm, tiny_model)
    batch = data(trainer)
    offsets, width = layouts(batch)[layout]
    expected = learn(trainer, batch, monkeypatch)
    other = moved(batch, offsets, width, pad_id, garbage=3.0)
    assert_same(expected, learn(trainer, other, monkeypatch), 1e-6)


def test_the_layout_changes_no_gradient_of_an_unpacked_pass(
    make_trainer: Make, tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    trainer = build(make_trainer, algorithm, tiny_model, speed={"packing": False})
    batch = data(trainer)
    expected = learn(trainer, batch, monkeypatch)
    for offsets, width in layouts(batch).values():
        assert_same(expected, learn(trainer, moved(batch, offsets, width, EOS, garbage=3.0), monkeypatch), 2e-6)


def test_padding_changes_no_advantage(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = build(make_trainer, "ppo", tiny_gpt2)
    trainer.rollout()
    batch = trainer.store.take()
    given = attrs_without(batch, "rewards", "advantages", "returns")
    ours, metrics = trainer._shaped(given)
    for offsets, width in layouts(batch).values():
        other, others = trainer._shaped(moved(given, offsets, width, EOS, garbage=7.0))
        for name in ("rewards", "advantages", "returns"):
            assert torch.allclose(ours[name][ours.action_mask], other[name][other.action_mask], atol=1e-6), name
        assert others == pytest.approx(metrics)


def attrs_without(batch: Trajectories, *names: str) -> Trajectories:
    columns = {name: column for name, column in batch.columns.items() if name not in names}
    return Trajectories(batch.tokens, batch.mask, batch.action_mask, batch.ended, columns)


def test_the_order_of_a_batch_changes_no_gradient(
    make_trainer: Make, tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    trainer = build(make_trainer, algorithm, tiny_model, micro=4)
    batch = data(trainer)
    expected = learn(trainer, batch, monkeypatch)
    for seed in (1, 2):
        order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
        assert_same(expected, learn(trainer, batch.rows(order), monkeypatch), 1e-6)


@pytest.mark.parametrize(("micro", "tokens"), [(1, 0), (2, 0), (5, 0), (64, 0), (0, 1), (0, 30), (3, 40)])
def test_splitting_into_micro_batches_changes_no_gradient(
    make_trainer: Make,
    tiny_model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    micro: int,
    tokens: int,
) -> None:
    whole = build(make_trainer, algorithm, tiny_model)
    batch = data(whole)
    expected = learn(whole, batch, monkeypatch)
    split = build(make_trainer, algorithm, copy.deepcopy(tiny_model), micro=micro, tokens=tokens)
    split.policy().module.load_state_dict(whole.policy().module.state_dict())
    assert_same(expected, learn(split, batch, monkeypatch), 1e-6)


@pytest.mark.parametrize("value", [{}, {"value_layers": 1}, {"critic": "copy"}, {"unfrozen_layers": 1}], ids=str)
def test_packing_changes_nothing(
    make_trainer: Make,
    tiny_model: PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    value: dict[str, Any],
) -> None:
    plain = copy.deepcopy(tiny_model)
    packed = build(make_trainer, algorithm, tiny_model, speed={"packing": True}, **value)
    padded = build(make_trainer, algorithm, plain, speed={"packing": False}, **value)
    padded.policy().module.load_state_dict(packed.policy().module.state_dict())
    batch = data(packed)
    with torch.no_grad():
        ours, theirs = packed.policy().score(batch, entropy=True), padded.policy().score(batch, entropy=True)
    assert torch.allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
    assert ours.entropy is not None
    assert torch.allclose(ours.entropy, theirs.entropy, atol=1e-5)
    assert_same(learn(packed, batch, monkeypatch), learn(padded, batch, monkeypatch), 1e-5)


def test_a_sequence_does_not_depend_on_its_neighbours(
    make_trainer: Make, tiny_model: PreTrainedModel, packing: bool
) -> None:
    trainer = build(make_trainer, "ppo", tiny_model, speed={"packing": packing})
    batch = data(trainer)
    with torch.no_grad():
        together = trainer.policy().score(batch)
        for i in range(len(batch)):
            row = batch.rows(torch.tensor([i]))
            alone = trainer.policy().score(row)
            here, there = batch.action_mask[i], row.action_mask[0]
            assert torch.allclose(together.logprobs[i][here], alone.logprobs[0][there], atol=1e-5)
            assert torch.allclose(together.values[i][here], alone.values[0][there], atol=1e-5)


def test_a_sequences_gradient_does_not_depend_on_its_neighbours(
    make_trainer: Make, tiny_model: PreTrainedModel, packing: bool
) -> None:
    trainer = build(make_trainer, "ppo", tiny_model, speed={"packing": packing})
    batch = data(trainer)
    policy, row = trainer.policy(), batch.rows(torch.tensor([3]))
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    said, alone = policy.score(batch), policy.score(row)
    together = torch.autograd.grad(said.logprobs[3].sum() + said.values[3].sum(), parameters)
    apart = torch.autograd.grad(alone.logprobs.sum() + alone.values.sum(), parameters)
    scale = max(float(gradient.abs().max()) for gradient in apart)
    for ours, theirs in zip(together, apart, strict=True):
        assert float((ours - theirs).abs().max()) <= 2e-6 * max(1.0, scale)


@pytest.mark.parametrize("value", [{}, {"value_layers": 1}, {"critic": "copy"}, {"unfrozen_layers": 1}], ids=str)
def test_the_ratio_is_one_on_the_first_minibatch(
    make_trainer: Make, tiny_model: PreTrainedModel, packing: bool, value: dict[str, Any]
) -> None:
    trainer = build(make_trainer, "ppo", tiny_model, speed={"packing": packing}, **value)
    steps = trainer.steps()
    for _ in range(2):
        metrics = next(steps)  # one epoch of one minibatch
        assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert metrics["policy/approx_kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["value/clip_fraction"] == 0


@pytest.mark.parametrize("append_eos", [True, False])
def test_padding_with_eos_trains_on_the_same_tokens(
    make_trainer: Make,
    tiny_model: PreTrainedModel,
    eos_padded_tokenizer: PreTrainedTokenizerFast,
    append_eos: bool,
) -> None:
    losses = []
    for words in (None, eos_padded_tokenizer):
        trainer = make_trainer(
            "sft", copy.deepcopy(tiny_model), tokenizer=words, inputs={"samples": SAMPLES},
            sections={"data": {"append_eos": append_eos}}, batch_size=4,
        )  # fmt: skip
        steps = trainer.steps()
        losses.append([(m["loss/total"], m["data/tokens"]) for m in (next(steps) for _ in range(4))])
    assert losses[0] == losses[1]
