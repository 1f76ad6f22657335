"""Laws of what a policy says of trajectories; a part of `rlcore.testing.laws.architectures`."""

from __future__ import annotations

import torch

from rlcore.testing.law import Subject, law, require
from rlcore.testing.rig.policies import CLOSE, build, examples, make_dialogues, require_close, say
from rlcore.testing.rig.reference_transformers import chosen_logprobs
from rlcore.testing.small import make_tokenizer

ARCHITECTURES = "architectures"


@law(ARCHITECTURES)
def scores_are_those_of_plain_transformers(subject: Subject) -> None:
    """`score` says of each chosen token what a plain forward pass over its sequence alone says, and zero of all others.

    Sequences are padded on either side, and with EOS too; in one of them others speak in between. The encoder of an
    encoder-decoder reads what lies before the first chosen token, its decoder begins with `decoder_start_token_id`.
    """
    for make in examples(subject):
        for side, pad_is_eos in (("left", False), ("right", True), ("both", False)):
            batch = make_dialogues(side)
            policy = build(subject, make(), tokenizer=make_tokenizer(pad_is_eos=pad_is_eos))
            require_close(
                say(policy, batch).logprobs,
                chosen_logprobs(make(), batch),
                f"`score(...).logprobs` ({type(make()).__name__}, padding: {side})",
                "read real tokens only, at positions that count them, and take the log-softmax that predicts each "
                "chosen token",
            )


@law(ARCHITECTURES)
def padding_changes_nothing(subject: Subject) -> None:
    """Log-probs and values of chosen tokens do not depend on how wide the batch is or where it is padded."""
    for make in examples(subject):
        policy, narrow = build(subject, make(), value_head=True), make_dialogues("right", columns=11)
        expected = say(policy, narrow)
        for side in ("left", "right", "both"):
            wide = make_dialogues(side, columns=19)
            said = say(policy, wide)
            for name in ("logprobs", "values"):
                require_close(
                    getattr(said, name)[wide.action_mask],
                    getattr(expected, name)[narrow.action_mask],
                    f"{name} of the chosen tokens, padded on {side} to 19 columns,",
                    "keep padding out of attention and positions",
                )


@law(ARCHITECTURES)
def what_is_asked_for_is_given(subject: Subject) -> None:
    """Logits, float[N, V], and entropies come when asked for, agree with the log-probs, and are None otherwise."""
    batch = make_dialogues("both")
    for make in examples(subject):
        policy = build(subject, make())
        said, bare = say(policy, batch, entropy=True, logits=True), say(policy, batch)
        for name in ("entropy", "logits", "values"):
            require(
                getattr(bare, name) is None,
                f"'{name}' was to be None where it was not asked for; it is an array; compute it on demand only",
            )
        require(said.logits is not None, "logits were asked for and are None; return them with logits=True")
        logprobs = said.logits.double().log_softmax(-1) if said.logits is not None else torch.empty(0)
        require_close(
            logprobs.gather(1, batch.tokens[batch.action_mask][:, None])[:, 0],
            said.logprobs[batch.action_mask],
            "the log-softmax of the logits at the chosen tokens",
            "give the logits that predict chosen tokens, in row-major order",
        )
        spread = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        spread[batch.action_mask] = -(logprobs.exp() * logprobs).sum(-1)
        require_close(said.entropy, spread, "`score(..., entropy=True).entropy`", "say it in nats, zero elsewhere")


@law(ARCHITECTURES)
def values_come_with_a_value_head(subject: Subject) -> None:
    """With `value_head=True` every chosen token has a finite value and all others zero; log-probs stay the same."""
    batch = make_dialogues("both")
    for make in examples(subject):
        said = say(build(subject, make(), value_head=True), batch)
        require(said.values is not None, "values were to come with value_head=True; they are None; give them")
        if said.values is not None:
            kept = said.values.masked_fill(~batch.action_mask, 0.0)
            require_close(said.values, kept, "`score(...).values` elsewhere", "say zero of tokens that were not chosen")
            require(bool((kept != 0).any()), "values were to differ from zero somewhere; they do not; compute them")
        without = say(build(subject, make()), batch)
        advice = "let the value function leave the policy alone"
        require_close(said.logprobs, without.logprobs, "logprobs with a value head", advice, tolerance=CLOSE)


@law(ARCHITECTURES)
def a_sequence_without_chosen_tokens_changes_nothing(subject: Subject) -> None:
    """What is said of other sequences stays the same where none of one sequence's tokens was chosen."""
    for make in examples(subject):
        policy, batch = build(subject, make()), make_dialogues("both")
        expected = say(policy, batch).logprobs
        batch.action_mask[2] = False
        expected[2] = 0.0
        said = say(policy, batch).logprobs
        require_close(said, expected, "logprobs beside a sequence without chosen tokens", "match rows by `action_mask`")
