"""Whether teacher and policy have the same tokens, which every loss of their distributions needs."""

from __future__ import annotations

from typing import Any

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import SizedVocabulary
from rlcore.types import Trajectories


def check_same_tokens(policy: Any, teacher: Any, *, option: str, name: str) -> None:
    """Check that two tokenizers of `transformers` give every id the same token.

    Args:
        policy: the policy's.
        teacher: the teacher's.
        option: the option that names the teacher, for the message.
        name: its value.

    Raises:
        ConfigError: they differ; the message names both and the first difference.
    """
    ours, theirs = ({number: token for token, number in each.get_vocab().items()} for each in (policy, teacher))
    different = sorted(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    if not different:
        return
    first = different[0]
    raise ConfigError(
        f"{option} = {name!r}: the teacher has another tokenizer than the policy: {_named(teacher)} with {len(theirs)} "
        f"tokens, and {_named(policy)} with {len(ours)}, which differ in {len(different)}; token {first} is "
        f"{theirs.get(first)!r:.40} of the teacher and {ours.get(first)!r:.40} of the policy. Their distributions "
        "cannot be compared: choose a teacher of the policy's family, or imitate its outputs as text, with trainer "
        "sft on outputs that it has written"
    )


def table_size(policy: Any) -> int:
    """Return the number of rows of a policy's table of tokens, whose weights are whole; 0 if it does not state it."""
    return policy.vocabulary_size if isinstance(policy, SizedVocabulary) else 0


def check_tokens(batch: Trajectories, size: int, whose: str) -> None:
    """Check that a model has every chosen token of some sequences; its table may have fewer rows than another's.

    The other tokens are the tokenizer's, or stand for images, which both models read.

    Args:
        batch: the sequences.
        size: number of rows of the model's table; 0 if it is unknown.
        whose: the model, for errors.

    Raises:
        DataError: it lacks one.
    """
    chosen = batch.tokens[batch.action_mask]
    highest = int(chosen.max()) if size and len(chosen) else -1
    if highest >= size:
        raise DataError(
            f"a sequence has token {highest}, which {whose} does not have: its table has {size} rows. The token is "
            "none of the tokenizer's, but one of the rows with which the table of the other model, which sampled it, "
            "is padded: remove these rows by model.resize_token_embeddings(len(tokenizer))"
        )


def check_texts(batch: Trajectories, tokenizer: Any, option: str) -> None:
    """Check that some sequences show no images, whose tokens are none of the tokenizer's.

    Args:
        batch: the sequences.
        tokenizer: the policy's.
        option: the option that names what reads texts only, for the message.

    Raises:
        DataError: one shows an image.
    """
    given = batch.tokens[batch.mask & ~batch.action_mask]
    if len(given) and int(given.max()) > max(tokenizer.get_vocab().values()):
        raise DataError(
            f"{option}: a prompt shows an image, and a server is sent texts alone: name the teacher's folder or hub id "
            "as trainer.teacher"
        )


def _named(tokenizer: Any) -> str:
    return f"{type(tokenizer).__name__} {getattr(tokenizer, 'name_or_path', '')!s:.60}".strip()
