"""Laws of `Policy.score`; part of `rlcore_testing.laws.architectures`."""

from __future__ import annotations

import torch

from rlcore.types import Trajectories
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import GENERATORS, undisturbed
from rlcore_testing.rig.policies import (
    CLOSE,
    build,
    examples,
    expected_logprobs,
    make_dialogues,
    require_close,
    score,
    tokenizer_settings,
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
    """Log-probs and values of action tokens do not depend on the width of the batch or the side of the padding.

    Nor do they depend on the other sequences: a batch may have one sequence with one action token, or a dozen.
    """
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
        alone = narrow.rows(torch.tensor([2]))
        many = Trajectories.concat([narrow, narrow, narrow])
        for batch, rows, what in ((alone, [2], "alone"), (many, list(range(4)) * 3, "of a dozen sequences")):
            outputs = score(policy, batch)
            for name in ("logprobs", "values"):
                found, each = getattr(outputs, name), getattr(expected, name)
                advice = "keep the shape [B, T] for every number of sequences, and compute all of them"
                require(
                    found.shape == batch.tokens.shape, f"{name} {what} have the shape {tuple(found.shape)}; {advice}"
                )
                due = torch.cat([each[row][narrow.action_mask[row]] for row in rows])
                require_close(found[batch.action_mask], due, f"{name} {what}", advice)


@law(ARCHITECTURES)
def scoring_changes_nothing_else(subject: Subject) -> None:
    """Building and scoring leave the batch, the modes of modules, the tokenizer and the process as they are.

    Of the process, the global random state, torch's default dtype and grad mode, the root logger and the files of the
    working folder count; building may draw random weights from torch's global generator.
    """
    for make in examples(subject):
        model, tokenizer, batch = make(), make_tokenizer(), make_dialogues("both")
        settings, before = tokenizer_settings(tokenizer), batch.each(torch.clone)
        with undisturbed("building", but=GENERATORS[2:]):
            policy = build(subject, model, tokenizer=tokenizer, value_head=True, reference=True)
        are_modes_kept = True
        for is_training in (False, True):
            policy.module.train(is_training)
            modes = [part.training for part in policy.module.modules()]  # a frozen part may always be in eval mode
            with undisturbed("scoring", but=GENERATORS[2:] if is_training else ()):  # dropout draws from torch's
                policy.score(batch)
                policy.reference_score(batch)
            are_modes_kept &= modes == [part.training for part in policy.module.modules()]
        same = {
            "the batch": all(
                getattr(batch, name).equal(getattr(before, name)) for name in ("tokens", "mask", "action_mask", "ended")
            ),
            "modes of modules": are_modes_kept,
            "settings of the tokenizer": tokenizer_settings(tokenizer) == settings,
        }
        changed = ", ".join(what for what, is_same in same.items() if not is_same)
        require(not changed, f"{changed} should be the same after scoring; work on a copy, or restore what was set")


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
