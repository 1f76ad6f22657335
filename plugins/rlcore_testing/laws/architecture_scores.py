"""Laws of `Policy.score`; part of `rlcore_testing.laws.architectures`.

Also in this file: laws of policies with a head that an algorithm brings; part of `rlcore_testing.laws.architectures`.
"""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import PluginError
from rlcore.protocols import Policy
from rlcore.types import PolicyOutputs
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.policies import (
    CLOSE,
    NAME,
    OUTPUT,
    PROBE,
    build,
    examples,
    expected_logprobs,
    make_dialogues,
    require_close,
    score,
)
from rlcore_testing.small import make_tokenizer

ARCHITECTURES = "architectures"


@law(ARCHITECTURES)
def scores_are_those_of_plain_transformers(subject: Subject) -> None:
    """`score` returns the log-probs of a plain forward pass over each sequence alone, and zero for other tokens.

    An architecture of other models is compared with its own `reference_logprobs` instead.

    Sequences are padded on either side, also with EOS, and one has several turns. The encoder of an encoder-decoder
    receives the tokens before the first action token; its decoder starts with `decoder_start_token_id`.
    """
    for make in examples(subject):
        for side, pad_is_eos in (("left", False), ("right", True), ("both", False)):
            batch = make_dialogues(side)
            policy = build(subject, make(), tokenizer=make_tokenizer(pad_is_eos=pad_is_eos))
            require_close(
                score(policy, batch).logprobs,
                expected_logprobs(subject, make(), batch),
                f"`score(...).logprobs` ({type(make()).__name__}, padding: {side})",
                "mask padding, count positions of real tokens only, and use the logits that predict each action token",
            )


@law(ARCHITECTURES)
def padding_changes_nothing(subject: Subject) -> None:
    """Log-probs and values of action tokens do not depend on the width of the batch or the side of the padding."""
    for make in examples(subject):
        policy, narrow = build(subject, make(), value_head=True), make_dialogues("right", columns=11)
        expected = score(policy, narrow)
        for side in ("left", "right", "both"):
            wide = make_dialogues(side, columns=19)
            outputs = score(policy, wide)
            for name in ("logprobs", "values"):
                require_close(
                    getattr(outputs, name)[wide.action_mask],
                    getattr(expected, name)[narrow.action_mask],
                    f"{name} of the action tokens, padded on {side} to 19 columns,",
                    "keep padding out of attention and positions",
                )


@law(ARCHITECTURES)
def optional_outputs_come_on_request(subject: Subject) -> None:
    """Logits, float[N, V], and entropies are returned on request, agree with the log-probs, and are None otherwise."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy = build(subject, make())
        outputs, bare = score(policy, batch, entropy=True, logits=True), score(policy, batch)
        for name in ("entropy", "logits", "values"):
            require(
                getattr(bare, name) is None,
                f"'{name}' should be None if it was not requested; it is a tensor; compute it on request only",
            )
        require(outputs.logits is not None, "logits were requested, but are None; return them with logits=True")
        logprobs = outputs.logits.double().log_softmax(-1) if outputs.logits is not None else torch.empty(0)
        require_close(
            logprobs.gather(1, batch.tokens[batch.action_mask][:, None])[:, 0],
            outputs.logprobs[batch.action_mask],
            "the log-softmax of the logits at the action tokens",
            "return the logits that predict action tokens, in row-major order",
        )
        spread = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        spread[batch.action_mask] = -(logprobs.exp() * logprobs).sum(-1)
        require_close(
            outputs.entropy, spread, "`score(..., entropy=True).entropy`", "compute it in nats, zero elsewhere"
        )


@law(ARCHITECTURES)
def values_come_with_a_value_head(subject: Subject) -> None:
    """With `value_head=True` every action token has a finite value, other tokens have zero; log-probs do not change."""
    batch = make_dialogues("both")
    for make in examples(subject):
        outputs = score(build(subject, make(), value_head=True), batch)
        require(
            outputs.values is not None, "values should be returned with value_head=True; they are None; compute them"
        )
        if outputs.values is not None:
            kept = outputs.values.masked_fill(~batch.action_mask, 0.0)
            require_close(
                outputs.values, kept, "`score(...).values` elsewhere", "return zero for tokens that are no actions"
            )
            require(bool((kept != 0).any()), "values should differ from zero somewhere; they do not; compute them")
        without = score(build(subject, make()), batch)
        advice = "the value head must not change the language model's outputs"
        require_close(outputs.logprobs, without.logprobs, "logprobs with a value head", advice, tolerance=CLOSE)


@law(ARCHITECTURES)
def a_sequence_without_actions_changes_nothing(subject: Subject) -> None:
    """A sequence without action tokens does not change the outputs for other sequences."""
    for make in examples(subject):
        policy, batch = build(subject, make()), make_dialogues("both")
        expected = score(policy, batch).logprobs
        batch.action_mask[2] = False
        expected[2] = 0.0
        outputs = score(policy, batch).logprobs
        require_close(
            outputs, expected, "logprobs beside a sequence without action tokens", "match rows by `action_mask`"
        )


@law(ARCHITECTURES)
def temperature_divides_the_scored_logits(subject: Subject) -> None:
    """With `temperature`, log-probs, entropies and logits are those of logits / temperature, the reference's too."""
    batch = make_dialogues("both")
    advice = "divide the logits by the temperature before anything is computed from them"
    for make in examples(subject):
        policy = build(subject, make(), reference=True)
        for temperature in (0.6, 1.7):
            outputs = score(policy, batch, entropy=True, logits=True, temperature=temperature)
            expected, what = expected_logprobs(subject, make(), batch, temperature), f"at temperature {temperature}"
            for name, seen in (
                ("score(...)", score(policy, batch, temperature=temperature)),
                ("score(..., entropy=True, logits=True)", outputs),
                ("reference_score(...)", policy.reference_score(batch, temperature=temperature)),
            ):
                require_close(seen.logprobs, expected, f"`{name}.logprobs` {what}", advice)
            if outputs.logits is None or outputs.entropy is None:
                raise LawBroken(f"logits and entropies were requested {what}, but one of them is None; return both")
            logprobs = outputs.logits.double().log_softmax(-1)
            require_close(
                logprobs.gather(1, batch.tokens[batch.action_mask][:, None])[:, 0],
                expected[batch.action_mask],
                f"the log-softmax of the logits {what} at the action tokens",
                advice,
            )
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            require_close(outputs.entropy[batch.action_mask], entropy, f"the entropy {what}", advice)


def takes_heads(subject: Subject) -> bool:
    """Return whether the builder has a parameter `heads`."""
    try:
        target: Any = subject.it.target()
    except PluginError:  # the_target_imports reports that
        return False
    parameters = inspect.signature(target).parameters.values()
    return any(p.name == "heads" or p.kind is p.VAR_KEYWORD for p in parameters)


def _build(subject: Subject, model: Any) -> Policy:
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
            getattr(policy, "steers", False),
            "policy.steers should be True if a head has a method `advantages`; it is False",
        )
        require(
            not getattr(build(subject, make()), "steers", False),
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
