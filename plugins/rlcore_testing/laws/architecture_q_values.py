"""Laws of policies with Q-heads, for architectures that support them; part of `rlcore_testing.laws.architectures`."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any, cast

import torch

from rlcore.errors import PluginError
from rlcore.protocols import QPolicy
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.policies import CLOSE, build, examples, make_dialogues, require_close, score

ARCHITECTURES = "architectures"
HEADS = 2
NAMES = ("q_values", "q_logprobs", "target_q_values")


def makes_q_heads(subject: Subject) -> bool:
    """Return whether the builder has a parameter `q_heads`."""
    try:
        target: Any = subject.it.target()
    except PluginError:  # the_target_imports reports that
        return False
    parameters = inspect.signature(target).parameters.values()
    return any(p.name == "q_heads" or p.kind is p.VAR_KEYWORD for p in parameters)


def _build(subject: Subject, model: Any) -> QPolicy:
    return cast("QPolicy", build(subject, model, value_head=True, q_heads=HEADS))


@torch.no_grad()
def _perturb(policy: QPolicy) -> None:
    """Add noise to all trainable parameters, so that Q-heads and targets differ."""
    torch.manual_seed(11)
    for weight in policy.module.parameters():
        if weight.requires_grad:
            weight.add_(0.05 * torch.randn_like(weight))


@law(ARCHITECTURES, when=makes_q_heads)
def q_values_come_with_q_heads(subject: Subject) -> None:
    """With `q_heads=2`, action tokens have two Q-values, log-probs and targets, others zero; without it, all None."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy, bare = _build(subject, make()), score(build(subject, make(), value_head=True), batch)
        outputs = score(policy, batch)
        require(
            policy.num_q_heads == HEADS,
            f"policy.num_q_heads should be {HEADS}; it is {policy.num_q_heads}; set it to the number of Q-heads",
        )
        for name in NAMES:
            require(getattr(bare, name) is None, f"'{name}' should be None without Q-heads; it is a tensor; omit it")
            array = getattr(outputs, name)
            shape = None if array is None else tuple(array.shape)
            expected_shape = (HEADS, *batch.tokens.shape)
            require(
                shape == expected_shape,
                f"'{name}' should have the shape {expected_shape}; it has {shape}; return [K, B, T]",
            )
            kept = array.masked_fill(~batch.action_mask, 0.0)
            require_close(array, kept, f"`score(...).{name}` elsewhere", "return zero for tokens that are no actions")
            require(bool((kept != 0).any()), f"'{name}' should differ from zero somewhere; it does not; compute it")
        require_close(
            outputs.logprobs,
            bare.logprobs,
            "logprobs with Q-heads",
            "Q-heads must not change log-probs",
            tolerance=CLOSE,
        )


@law(ARCHITECTURES, when=makes_q_heads)
def targets_follow_the_q_heads_when_synced(subject: Subject) -> None:
    """Target heads start as copies, do not change when the Q-heads train, and move by the rate of `sync_targets`.

    `sync_targets` raises `policy.version`, because sampling may use the targets.
    """
    batch = make_dialogues("right")
    for make in examples(subject):
        policy = _build(subject, make())
        start = score(policy, batch)
        require_close(start.target_q_values, start.q_values, "the initial targets", "initialise them as copies")
        with torch.enable_grad():
            scored = policy.score(batch)
        require(
            scored.target_q_values is not None and not scored.target_q_values.requires_grad,
            "targets should record no graph; they do; compute them under torch.no_grad()",
        )
        _perturb(policy)
        policy.sync_targets(0.0)
        moved = score(policy, batch)
        assert moved.q_values is not None  # noqa: S101  for the type checker: q_values_come_with_q_heads checks it
        assert moved.target_q_values is not None  # noqa: S101  the same
        require(
            not torch.allclose(moved.q_values, moved.target_q_values, atol=1e-3),
            "sync_targets(0) should not change the targets; they equal the heads; compute target <- rate * Q + "
            "(1 - rate) * target",
        )
        before = policy.version
        policy.sync_targets(1.0)
        synced = score(policy, batch)
        require_close(synced.target_q_values, moved.q_values, "the targets after sync_targets(1)", "copy the heads")
        require(
            policy.version > before,
            f"policy.version should rise with sync_targets; it was {before} and is {policy.version}; add 1 in it",
        )


@law(ARCHITECTURES, when=makes_q_heads)
def q_heads_and_targets_are_saved(subject: Subject) -> None:
    """`load_pretrained` restores Q-heads and targets that `save_pretrained` wrote."""
    batch = make_dialogues("right")
    for make in examples(subject):
        policy = _build(subject, make())
        _perturb(policy)
        expected = score(policy, batch)
        with tempfile.TemporaryDirectory() as folder:
            policy.save_pretrained(Path(folder) / "saved")
            other = _build(subject, make())
            other.load_pretrained(Path(folder) / "saved")
        loaded = score(other, batch)
        for name in NAMES:
            what = f"`score(...).{name}` after load_pretrained"
            require_close(getattr(loaded, name), getattr(expected, name), what, "save heads and targets with the model")


@law(ARCHITECTURES, when=makes_q_heads)
@torch.no_grad()
def advantages_are_min_target_q_minus_value(subject: Subject) -> None:
    """A decoder's advantage of a token is the minimum target Q minus V that `score` returns for that continuation."""
    prompts = [(1, 2, 3), (4, 5)]
    for make in examples(subject):
        policy = _build(subject, make())
        _perturb(policy)
        policy.module.eval()
        plain = policy.decoder(prompts, max_new_tokens=2).start()
        if plain.values is None:  # a separate value branch is not decoded, so there are no advantages
            continue
        step = policy.decoder(prompts, max_new_tokens=2, advantages=True).start()
        require(step.advantages is not None, "advantages were requested, but are None; return float[B, V]")
        require(plain.advantages is None, "advantages were returned without a request; compute them on request only")
        assert step.advantages is not None  # noqa: S101  for the type checker
        for row, prompt in enumerate(prompts):
            for token in (0, 9, 17):
                batch = type(make_dialogues()).stack([[*prompt, token]], [[False] * len(prompt) + [True]])
                outputs = score(policy, batch)
                assert outputs.target_q_values is not None  # noqa: S101  for the type checker: q_values_come_with_q_heads checks it
                assert outputs.values is not None  # noqa: S101  the same
                expected = (outputs.target_q_values.amin(0) - outputs.values)[0, -1]
                require_close(
                    step.advantages[row, token], expected, f"a decoder's advantage of token {token}",
                    "compute min target Q - V",
                )  # fmt: skip
