"""Laws of policies with a head that an algorithm brings; part of `rlcore_testing.laws.architectures`."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import PluginError
from rlcore.protocols import Policy, PolicyTraits
from rlcore.types import PolicyOutputs
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.policies import (
    CLOSE,
    NAME,
    OUTPUT,
    PROBE,
    build,
    examples,
    make_dialogues,
    require_close,
    score,
)

ARCHITECTURES = "architectures"


def takes_heads(subject: Subject) -> bool:
    """Return whether the builder has a parameter `heads`."""
    try:
        target: Any = subject.it.target()
    except PluginError:  # the_target_imports reports that
        return False
    parameters = inspect.signature(target).parameters.values()
    return any(p.name == "heads" or p.kind is p.VAR_KEYWORD for p in parameters)


def _build(subject: Subject, model: object) -> Policy:
    return build(subject, model, value_head=True, heads=PROBE)


def _ratings(outputs: PolicyOutputs) -> Tensor:
    require(
        OUTPUT in outputs.heads,
        f"`score(...).heads` should have the output '{OUTPUT}' of the head; it has {sorted(outputs.heads)}; call each "
        "head with the hidden states and the chosen tokens, and return what it returns",
    )
    return outputs.heads[OUTPUT]


@torch.no_grad()
def _perturb(policy: Policy) -> None:
    """Add noise to all trainable parameters."""
    torch.manual_seed(11)
    for weight in policy.module.parameters():
        if weight.requires_grad:
            weight.add_(0.05 * torch.randn_like(weight))


@law(ARCHITECTURES, when=takes_heads)
def outputs_of_a_head_are_returned_by_name(subject: Subject) -> None:
    """The outputs of a head that is passed in `heads` are in `score(...).heads`, at action tokens; others are zero.

    The head receives the chosen tokens, and its presence changes no log-probs.
    """
    batch = make_dialogues("both")
    for make in examples(subject):
        outputs, bare = score(_build(subject, make()), batch), score(build(subject, make(), value_head=True), batch)
        require(not bare.heads, f"without heads, `score(...).heads` should be empty; it has {sorted(bare.heads)}")
        ratings, expected = _ratings(outputs), (2, *batch.tokens.shape)
        shape = tuple(ratings.shape)
        require(shape == expected, f"'{OUTPUT}' should have the shape {expected}; it has {shape}; return [..., B, T]")
        kept = ratings.masked_fill(~batch.action_mask, 0.0)
        require_close(ratings, kept, f"'{OUTPUT}' elsewhere", "return zero for tokens that are no actions")
        chosen = (batch.tokens * batch.action_mask).float()
        require_close(ratings[1], chosen, "the tokens that a head receives", "pass the chosen tokens")
        require_close(
            outputs.logprobs, bare.logprobs, "logprobs with a head", "heads must not change log-probs", tolerance=CLOSE
        )


@law(ARCHITECTURES, when=takes_heads)
def a_head_trains_with_the_policy(subject: Subject) -> None:
    """The parameters of a head are parameters of `policy.module`, require gradients and get them."""
    for make in examples(subject):
        policy = _build(subject, make())
        ratings = _ratings(policy.score(make_dialogues("right")))
        require(ratings.requires_grad, f"'{OUTPUT}' should record a graph; it does not: run heads with gradients")
        policy.module.zero_grad()
        ratings[0].sum().backward()
        own = {name: each for name, each in policy.module.named_parameters() if name.split(".")[0] == NAME}
        missing = [name for name, each in own.items() if each.grad is None]
        require(
            bool(own) and not missing,
            f"parameters of the head should be in policy.module as '{NAME}....' and get gradients; found "
            f"{sorted(own)}, without a gradient {missing}; make the head the submodule '{NAME}'",
        )


@law(ARCHITECTURES, when=takes_heads)
def heads_are_saved(subject: Subject) -> None:
    """`load_pretrained` restores the heads that `save_pretrained` wrote."""
    batch = make_dialogues("right")
    for make in examples(subject):
        policy = _build(subject, make())
        _perturb(policy)
        expected = _ratings(score(policy, batch))
        with tempfile.TemporaryDirectory() as folder:
            policy.save_pretrained(Path(folder) / "saved")
            other = _build(subject, make())
            other.load_pretrained(Path(folder) / "saved")
        loaded = _ratings(score(other, batch))
        require_close(loaded, expected, f"'{OUTPUT}' after load_pretrained", "save heads with the model")


@law(ARCHITECTURES, when=takes_heads)
@torch.no_grad()
def advantages_are_those_of_the_head_that_steers(subject: Subject) -> None:
    """A policy with such a head `steers`; its decoder's advantages follow from the outputs for that continuation."""
    prompts = [(1, 2, 3), (4, 5)]
    for make in examples(subject):
        policy = _build(subject, make())
        require(
            PolicyTraits(policy).steers,
            "policy.steers should be True if a head has a method `advantages`; it is False",
        )
        require(
            not PolicyTraits(build(subject, make())).steers,
            "policy.steers should be False without such a head; it is True",
        )
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
                expected = (_ratings(outputs)[0] - outputs.need("values"))[0, -1]
                require_close(
                    step.advantages[row, token], expected, f"a decoder's advantage of token {token}",
                    "compute what the head's `advantages` returns",
                )  # fmt: skip
