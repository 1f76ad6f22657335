"""Invariants of every algorithm: padding, order, neighbours and micro-batches must not change what is learned."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rlcore import ops
from rlcore.optim.updater import Meter
from rlcore.types import Trajectories, stack_samples

Make = Callable[..., Any]
Gradients = dict[str, Tensor]
SAMPLES = [["ab", "cde"], "hello there.", ["who? ", "me!", " why? ", "because."], ["q", "!"], "yes", ["long ago", "it"]]
REWARDS = [1.0, -0.5, 2.0, 0.25, -1.0, 0.0]
PROMPTS = ["ab", "hello", "q", "see you."]
ENDS = [30, 3, 7, 11, 19]
EOS, PAD = 30, 31
VALUES = [{}, {"value_layers": 1}, {"critic": "copy"}, {"unfrozen_layers": 1}]


def letters(outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - output.count("a") for output in outputs]


ROLLOUTS: dict[str, Any] = {"prompts": PROMPTS, "reward_fn": letters}
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sft": ({}, {"samples": SAMPLES}),
    "ilql": ({"awac_beta": 0.5, "gamma": 0.9, "num_q_heads": 2}, {"samples": SAMPLES, "rewards": REWARDS}),
    "ppo": (
        {
            "rollouts": 24, "epochs": 1, "entropy_coef": 0.01, "kl_coef": 0.1, "gamma": 0.9,
            "bootstrap_truncated": True, "missing_eos_penalty": 0.5, "score_scaling": "running",
        },
        ROLLOUTS,
    ),
    "rft": ({"generations": 6}, ROLLOUTS),
}  # fmt: skip
"""Options and inputs of each algorithm."""


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[True, False], ids=["packed", "padded"])
def packing(request: pytest.FixtureRequest) -> bool:
    packs: bool = request.param
    return packs


def build(
    make: Make, name: str, model: PreTrainedModel, *, micro: int = 0, tokens: int = 0, **architecture: Any
) -> Any:
    """Make a trainer whose optimizer step uses all of its data."""
    own, inputs = ALGORITHMS[name]
    options = {"batch_size": 64, "micro_batch_size": micro, "micro_batch_tokens": tokens, **own}
    sections = {"model": architecture, "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS}}
    trainer = make(name, model, sections=sections, inputs=inputs, **options)
    assert (trainer.policy().module.layout.longest > 0) == architecture.get("speed", {}).get("packing", True)
    return trainer


def data(trainer: Any) -> Trajectories:
    """Return the training data of one step: a round of rollouts, its best responses, or all demonstrations."""
    if hasattr(trainer, "grow"):
        trainer.grow()
        trainer.num_improved = 0
        return trainer.select()[0].own
    if hasattr(trainer, "rollout"):
        trainer.rollout()
        batch: Trajectories = trainer.store.take()
        # A policy in the middle of an epoch: ratios differ from 1, and some are clipped.
        return batch.with_columns(old_logprobs=batch["old_logprobs"] + torch.linspace(-0.4, 0.4, batch.tokens.shape[1]))
    batch = stack_samples(trainer.run.samples)
    if not hasattr(trainer, "returns"):
        return batch
    earned = torch.tensor([reward for i in range(len(batch)) for reward in trainer._chosen_rewards(i)])
    return batch.with_columns(rewards=ops.spread(earned.float(), batch.action_mask))


def learn(trainer: Any, batch: Trajectories, monkeypatch: pytest.MonkeyPatch) -> tuple[Gradients, dict[str, float]]:
    """Train on `batch` up to the optimizer step; return gradients and reported losses."""
    metrics: dict[str, float]
    with monkeypatch.context() as patch:
        patch.setattr(trainer.updater, "step", lambda *_: None)
        if hasattr(trainer, "rollout"):
            metrics = trainer.update(batch)
        elif hasattr(trainer, "imitate"):
            metrics = trainer.imitate(trainer.run.deal(batch))
        elif hasattr(trainer, "returns"):
            meter, config = Meter(trainer.run.ranks), trainer.config
            trainer.updater.accumulate(
                batch, trainer.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            metrics = meter.means()
        else:
            patch.setattr(sys.modules[type(trainer).__module__], "stack_samples", lambda samples: batch)
            metrics = next(trainer.steps())
    module = trainer.policy().module
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return gradients, {name: value for name, value in metrics.items() if name.startswith(("loss/", "policy/"))}


def assert_same(
    ours: tuple[Gradients, dict[str, float]], theirs: tuple[Gradients, dict[str, float]], by: float, where: object = ""
) -> None:
    assert ours[0].keys() == theirs[0].keys(), where
    scale = max(float(gradient.abs().max()) for gradient in ours[0].values())
    assert scale > 0.01, where
    for name, gradient in ours[0].items():
        assert float((gradient - theirs[0][name]).abs().max()) <= by * max(1.0, scale), (name, where)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-4, abs=1e-5), where


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


def layouts(batch: Trajectories, garbage: float) -> Iterator[tuple[str, Trajectories]]:
    """Yield the batch with more padding, on either side or both, of padding tokens and of EOS; and what it is."""
    lengths = batch.mask.sum(1).tolist()
    widest = max(lengths)
    for name, offsets, width in (
        ("more on the right", [0] * len(batch), widest + 5),
        ("all on the left", [widest - length for length in lengths], widest),
        ("more on the left", [widest + 4 - length for length in lengths], widest + 4),
        ("on both sides, each row its own", [i * 5 % (widest + 6 - n) for i, n in enumerate(lengths)], widest + 6),
    ):
        for pad_id in (PAD, EOS):
            yield f"{name}, padded with {pad_id}", moved(batch, offsets, width, pad_id, garbage)


@torch.no_grad()
def test_padding_changes_no_logprob_and_no_value(
    make_trainer: Make, tiny_model: PreTrainedModel, packing: bool
) -> None:
    trainer = build(make_trainer, "ppo", tiny_model, speed={"packing": packing})
    batch = data(trainer)
    for score in (trainer.policy().score, trainer.policy().reference_score):
        ours = score(batch)
        assert ours.logprobs[~batch.action_mask].abs().sum() == 0
        for where, other in layouts(batch, garbage=0.0):
            theirs = score(other)
            assert theirs.logprobs[~other.action_mask].abs().sum() == 0, where
            for one, two in ((ours.logprobs, theirs.logprobs), (ours.values, theirs.values)):
                assert (one is None) == (two is None)
                if one is not None:
                    assert torch.allclose(one[batch.action_mask], two[other.action_mask], atol=1e-5), where


def test_padding_changes_no_gradient(
    make_trainer: Make, tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, algorithm: str, packing: bool
) -> None:
    trainer = build(make_trainer, algorithm, tiny_model, speed={"packing": packing})
    batch = data(trainer)
    expected = learn(trainer, batch, monkeypatch)
    for where, other in layouts(batch, garbage=3.0):
        assert_same(expected, learn(trainer, other, monkeypatch), 1e-6 if packing else 2e-6, where)


def test_padding_changes_no_advantage(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = build(make_trainer, "ppo", tiny_gpt2)
    trainer.rollout()
    batch = trainer.store.take().rename(old_logprobs="logprobs")
    shaped = ("rewards", "advantages", "returns")
    given = batch.with_only(*(name for name in batch.columns if name not in shaped))
    scale = copy.copy(trainer.scale)
    found, metrics = trainer._shaped(trainer.run.round(given))
    ours = found.own
    for where, layout in layouts(given, garbage=7.0):
        trainer.scale = copy.copy(scale)
        found, others = trainer._shaped(trainer.run.round(layout))
        other = found.own
        for name in shaped:
            assert torch.allclose(ours[name][ours.action_mask], other[name][other.action_mask], atol=1e-6), (
                name,
                where,
            )
        assert others == pytest.approx(metrics), where


def test_neither_the_order_of_a_batch_nor_its_micro_batches_change_a_gradient(
    make_trainer: Make, tiny_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    trainer = build(make_trainer, algorithm, tiny_model)
    batch = data(trainer)
    expected = learn(trainer, batch, monkeypatch)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    assert_same(expected, learn(trainer, batch.rows(order), monkeypatch), 1e-6, "in another order")
    for micro, tokens in [(1, 0), (5, 0), (0, 1), (0, 30), (3, 40)]:
        trainer.config = attrs.evolve(trainer.config, micro_batch_size=micro, micro_batch_tokens=tokens)
        assert_same(expected, learn(trainer, batch.rows(order), monkeypatch), 1e-6, (micro, tokens))


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        ("sft", {}),
        ("rft", {"unfrozen_layers": 1}),
        ("ilql", {"unfrozen_layers": 1}),
        *(("ppo", value) for value in VALUES),
    ],
    ids=str,
)
def test_packing_changes_neither_scores_nor_gradients(
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
    batch, policy = data(trainer), trainer.policy()
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    together = policy.score(batch)
    for i in range(len(batch)):
        row = batch.rows(torch.tensor([i]))
        alone = policy.score(row)
        here, there = batch.action_mask[i], row.action_mask[0]
        assert torch.allclose(together.logprobs[i][here], alone.logprobs[0][there], atol=1e-5)
        assert torch.allclose(together.values[i][here], alone.values[0][there], atol=1e-5)
        if i % 8 == 3:
            ours = torch.autograd.grad(
                together.logprobs[i].sum() + together.values[i].sum(), parameters, retain_graph=True
            )
            theirs = torch.autograd.grad(alone.logprobs.sum() + alone.values.sum(), parameters)
            scale = max(float(gradient.abs().max()) for gradient in theirs)
            for one, other in zip(ours, theirs, strict=True):
                assert float((one - other).abs().max()) <= 2e-6 * max(1.0, scale)


@pytest.mark.parametrize("value", VALUES, ids=str)
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
