"""Laws of policies with Q-heads, for architectures that make any; a part of `rlcore.testing.laws.architectures`."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any, cast

import torch

from rlcore.errors import PluginError
from rlcore.protocols import QPolicy
from rlcore.testing.law import Subject, law, require
from rlcore.testing.rig.policies import CLOSE, build, examples, make_dialogues, require_close, say

ARCHITECTURES = "architectures"
HEADS = 2
NAMES = ("q_values", "q_logprobs", "target_q_values")


def makes_q_heads(subject: Subject) -> bool:
    """Tell whether the builder takes `q_heads`, and so is asked for some."""
    try:
        target: Any = subject.it.target()
    except PluginError:  # another law says that the target cannot be imported
        return False
    parameters = inspect.signature(target).parameters.values()
    return any(p.name == "q_heads" or p.kind is p.VAR_KEYWORD for p in parameters)


def _build(subject: Subject, model: Any) -> QPolicy:
    return cast("QPolicy", build(subject, model, value_head=True, q_heads=HEADS))


@torch.no_grad()
def _disturb(policy: QPolicy) -> None:
    """Move whatever trains, so that heads and targets differ."""
    torch.manual_seed(11)
    for weight in policy.module.parameters():
        if weight.requires_grad:
            weight.add_(0.05 * torch.randn_like(weight))


@law(ARCHITECTURES, when=makes_q_heads)
def q_values_come_with_q_heads(subject: Subject) -> None:
    """With `q_heads=2` chosen tokens have two Q-values, log-probs and targets each, others zero; without, None."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy, bare = _build(subject, make()), say(build(subject, make(), value_head=True), batch)
        said = say(policy, batch)
        require(
            policy.num_q_heads == HEADS,
            f"policy.num_q_heads was to be {HEADS}; it is {policy.num_q_heads}; say how many Q-heads there are",
        )
        for name in NAMES:
            require(
                getattr(bare, name) is None, f"'{name}' was to be None without Q-heads; it is an array; leave it out"
            )
            array = getattr(said, name)
            shape = None if array is None else tuple(array.shape)
            wanted = (HEADS, *batch.tokens.shape)
            require(shape == wanted, f"'{name}' was to have the shape {wanted}; it has {shape}; give [K, B, T]")
            kept = array.masked_fill(~batch.action_mask, 0.0)
            require_close(array, kept, f"`score(...).{name}` elsewhere", "say zero of tokens that were not chosen")
            require(bool((kept != 0).any()), f"'{name}' was to differ from zero somewhere; it does not; compute it")
        require_close(
            said.logprobs, bare.logprobs, "logprobs with Q-heads", "let them leave the policy alone", tolerance=CLOSE
        )


@law(ARCHITECTURES, when=makes_q_heads)
def targets_follow_the_q_heads_when_synced(subject: Subject) -> None:
    """Targets begin as the heads, keep still while these learn, and move by the rate of `sync_targets`."""
    batch = make_dialogues("right")
    for make in examples(subject):
        policy = _build(subject, make())
        start = say(policy, batch)
        require_close(start.target_q_values, start.q_values, "the targets at first", "begin them as copies")
        with torch.enable_grad():
            scored = policy.score(batch)
        require(
            scored.target_q_values is not None and not scored.target_q_values.requires_grad,
            "targets were to record no gradients; they do; compute them under torch.no_grad()",
        )
        _disturb(policy)
        policy.sync_targets(0.0)
        moved = say(policy, batch)
        assert moved.q_values is not None  # noqa: S101  for the type checker: another law says so
        assert moved.target_q_values is not None  # noqa: S101  the same
        require(
            not torch.allclose(moved.q_values, moved.target_q_values, atol=1e-3),
            "sync_targets(0) was to leave the targets behind; they equal the heads; target <- rate * Q + (1 - rate) * "
            "target",
        )
        policy.sync_targets(1.0)
        synced = say(policy, batch)
        require_close(synced.target_q_values, moved.q_values, "the targets after sync_targets(1)", "copy the heads")


@law(ARCHITECTURES, when=makes_q_heads)
def q_heads_and_targets_are_saved(subject: Subject) -> None:
    """What `save_pretrained` wrote brings Q-heads and targets back, each as it was."""
    batch = make_dialogues("right")
    for make in examples(subject):
        policy = _build(subject, make())
        _disturb(policy)
        expected = say(policy, batch)
        with tempfile.TemporaryDirectory() as folder:
            policy.save_pretrained(Path(folder) / "saved")
            other = _build(subject, make())
            other.load_pretrained(Path(folder) / "saved")
        found = say(other, batch)
        for name in NAMES:
            what = f"`score(...).{name}` after load_pretrained"
            require_close(getattr(found, name), getattr(expected, name), what, "save heads and targets with the model")


@law(ARCHITECTURES, when=makes_q_heads)
@torch.no_grad()
def advantages_are_the_lowest_targets_less_the_value(subject: Subject) -> None:
    """A decoder asked for advantages says of each token what scoring a sequence that goes on with it says."""
    prompts = [(1, 2, 3), (4, 5)]
    for make in examples(subject):
        policy = _build(subject, make())
        _disturb(policy)
        policy.module.eval()
        plain = policy.decoder(prompts, max_new_tokens=2).start()
        if plain.values is None:  # values from elsewhere than the trunk are not decoded, so nor are advantages
            continue
        step = policy.decoder(prompts, max_new_tokens=2, advantages=True).start()
        require(step.advantages is not None, "advantages were asked for and are None; give float[B, V]")
        require(plain.advantages is None, "advantages were not asked for and are there; compute them on demand only")
        assert step.advantages is not None  # noqa: S101  for the type checker
        for row, prompt in enumerate(prompts):
            for token in (0, 9, 17):
                batch = type(make_dialogues()).stack([[*prompt, token]], [[False] * len(prompt) + [True]])
                said = say(policy, batch)
                assert said.target_q_values is not None  # noqa: S101  for the type checker: another law says so
                assert said.values is not None  # noqa: S101  the same
                expected = (said.target_q_values.amin(0) - said.values)[0, -1]
                require_close(
                    step.advantages[row, token], expected, f"a decoder's advantage of token {token}",
                    "take the lowest target Q less V",
                )  # fmt: skip
