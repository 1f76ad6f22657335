"""Preferences: two answers to a prompt, read from any source, tokenised and stacked.

Also in this file: answers with a verdict each: the pipeline `unpaired`.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore.types import Sample, Trajectories, is_conversation, stack_samples, without_none
from rlcore_transformers.data.chat import template_variables
from rlcore_transformers.data.mixtures import mixing
from rlcore_transformers.data.rows import ANSWERS, TEMPLATE_KEYS, load_rows, name_unread
from rlcore_transformers.data.sources import BOOLEANS, read_number
from rlcore_transformers.preferences.answers import (
    Content,
    Exchange,
    are_token_ids,
    number_rows,
    read_content,
    read_token_ids,
    token_keys,
    tokenise_answers,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

HUMAN, ASSISTANT = "Human:", "\n\nAssistant:"
"""How a dialogue of HH-RLHF begins, and what stands before its answers."""
REF_LOGPROBS = ("ref_chosen_logps", "ref_rejected_logps")
TIE = "tie"
"""Value of the column `label` of a row whose answers are equally good."""


@attrs.frozen
class Pair:
    """Two answers to one prompt, of which the first is preferred.

    Attributes:
        chosen: the prompt with the preferred answer; an answer without chosen tokens is empty.
        rejected: the same prompt, with the same tokens, and the other answer.
        margin: by how much the score of the chosen answer should exceed the other's, at least 0; None if unknown.
        is_tie: whether neither answer is better.
        ref_logprobs: log-probs of both answers under a reference model; None if unknown.
    """

    chosen: Sample
    rejected: Sample
    margin: float | None = None
    is_tie: bool = False
    ref_logprobs: tuple[float, float] | None = None


@mixing
def build_preferences(
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[Pair]:
    """Read and tokenise preferences, in their order.

    A row is a mapping with `chosen` and `rejected`, and usually `prompt` (or `data.prompt_column`): all strings, or all
    lists of {role, content} messages. Without a prompt, the answers contain it: it is what both begin with, in whole
    words or whole messages. A prompt that is a string beside answers that are whole conversations is read from these.
    `margin` is a number of at least 0, and `label: tie` marks answers that are equally good. Instead of texts, all rows
    may have token ids, `prompt_ids`, `chosen_ids` and `rejected_ids` (`read_token_ids`). `ref_chosen_logps` and
    `ref_rejected_logps` are the log-probs of the answers under a reference model.

    A sample that is longer than `data.max_sample_tokens` or the model's context is cut at the end. An answer that is
    empty, or is cut off, has no chosen token; `usable_pairs` drops its pair.

    The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is invalid; the message names the first such row and the reason.
    """
    rows = list(number_rows(load_rows(source, tokenizer, data, what, answers=ANSWERS), what))
    is_ids = are_token_ids(rows, ANSWERS)
    read = [read_keys(row, data.prompt_column, is_ids=is_ids) for _, row in rows]
    name_unread([row for _, row in rows], read, tokenizer, what)
    if is_ids:
        sequences = read_token_ids(rows, ANSWERS, tokenizer, data, max_length=max_length)
    else:
        exchanges = [read_preference(row, data.prompt_column, where) for where, row in rows]
        sequences = tokenise_answers(exchanges, tokenizer, data, max_length=max_length)
    return [
        Pair(
            chosen, rejected, _read_margin(row, where), is_tie=row.get("label") == TIE,
            ref_logprobs=_read_ref_logprobs(row, where),
        )
        for (chosen, rejected), (where, row) in zip(sequences, rows, strict=True)
    ]  # fmt: skip


build_preferences.example_rows = [  # type: ignore[attr-defined]  # read by the conformance kit
    {"prompt": "ab", "chosen": "cde", "rejected": "e"}, {"prompt": "hello ", "chosen": "you.", "rejected": "no!"},
    {"prompt": "q", "chosen": "!", "rejected": "aab"}, {"prompt": "f", "chosen": "aa", "rejected": "zz z"},
    {"chosen": "it is blue", "rejected": "it is black"}, {"prompt": "long ", "chosen": "ago it", "rejected": "x"},
    {"prompt": "m", "chosen": "nop", "rejected": "pon", "margin": 0.5},
    {"prompt": "who? ", "chosen": "me!", "rejected": "not me"}, {"prompt": "z", "chosen": "a b", "rejected": "b a c"},
    {"prompt": "ab", "chosen": "c" * 12, "rejected": "d" * 9},
]  # fmt: skip


def read_preference(row: Mapping[str, object], prompt_column: str, where: str) -> Exchange:
    """Return the prompt and both answers of a row.

    Raises:
        DataError: an answer is missing, or prompt and answers have different forms.
    """
    chosen, rejected = (read_content(row, key, where) for key in ("chosen", "rejected"))
    template = template_variables(row, where)
    prompt = None if row.get(prompt_column) is None else read_content(row, prompt_column, where)
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise DataError(f"{where}: one of 'chosen' and 'rejected' is a string, the other a list of messages")
    if prompt is None or (isinstance(prompt, str) and not isinstance(chosen, str)):
        found, *answers = split_implicit(chosen, rejected)
        if prompt is not None and not found:
            raise DataError(
                f"{where}: '{prompt_column}' is a string, and the answers are messages that do not begin with the same "
                "message; write the prompt as a list of {role, content} messages"
            )
        return Exchange(where, found, tuple(answers), template)
    if isinstance(prompt, str) != isinstance(chosen, str):
        raise DataError(
            f"{where}: '{prompt_column}' is a list of messages, and 'chosen' a string; both must be strings, or lists"
        )
    return Exchange(where, prompt, (chosen, rejected), template)


def read_keys(row: Mapping[str, object], prompt_column: str, *, is_ids: bool) -> set[str]:
    """Return the keys of a row that are read: of its texts or its token ids, and of what belongs to the pair."""
    keys = {"margin", *REF_LOGPROBS, *(("label",) if row.get("label") == TIE else ())}
    if is_ids:
        return keys | token_keys(row, ("prompt", *ANSWERS))
    is_chat = any(is_conversation(row.get(key)) for key in ANSWERS)
    return keys | {prompt_column, *ANSWERS, *(TEMPLATE_KEYS if is_chat else ())}


def split_implicit(one: Content, other: Content) -> tuple[Content, Content, Content]:
    """Return what two answers begin with, and the rest of each: whole messages, or strings cut between words.

    At least one message or word stays in each answer. A string is never cut inside a word, so the prompt of "it is
    blue" and "it is black" is "it is ". Dialogues of HH-RLHF, in which paragraphs begin with `Human:` and `Assistant:`,
    are cut behind the last `Assistant:` that both have.
    """
    if isinstance(one, str) and isinstance(other, str):
        size = _count_alike(one, other)
        spoken = one.rfind(ASSISTANT, 0, size)
        if one.lstrip().startswith(HUMAN) and spoken >= 0:
            size = spoken + len(ASSISTANT)
            return one[:size], one[size:], other[size:]
        while size and not (_is_between_words(one, size) and _is_between_words(other, size)):
            size -= 1
        return one[:size], one[size:], other[size:]
    most = min(len(one), len(other)) - 1
    ones, others = ([without_none(message) for message in messages] for messages in (one, other))  # type: ignore[arg-type]
    size = next((k for k in range(most) if ones[k] != others[k]), most)
    return one[:size], one[size:], other[size:]


def _count_alike(one: str, other: str) -> int:
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _is_between_words(text: str, place: int) -> bool:
    return bool(text[place:].strip()) and not (_is_letter(text[place - 1]) and _is_letter(text[place]))


def _is_letter(character: str) -> bool:
    # Accents and joiners are no letters of their own: they belong to the character before them.
    return character.isalnum() or character in "_'" or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")


def _read_margin(row: Mapping[str, object], where: str) -> float | None:
    margin = read_number(row.get("margin"))
    if margin is None or (isinstance(margin, float) and math.isnan(margin)):
        return None
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin < math.inf:
        raise DataError(f"{where}: 'margin' is {shorten(margin)}; it must be a finite number of at least 0")
    return float(margin)


def _read_ref_logprobs(row: Mapping[str, Any], where: str) -> tuple[float, float] | None:
    values = [read_number(row.get(key)) for key in REF_LOGPROBS]
    if all(value is None for value in values):
        return None
    for key, value in zip(REF_LOGPROBS, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(
                f"{where}: '{key}' is {shorten(value)}; it must be the log-prob of the answer, a finite number"
            )
    return float(values[0]), float(values[1])


def stack_pairs(pairs: Sequence[Pair]) -> Trajectories:
    """Pad pairs into one batch, on the CPU: row 2k is the chosen answer of pair k, row 2k + 1 the rejected one.

    With `group=2`, minibatches, micro-batches and ranks keep both rows of a pair together. If a pair has a margin, the
    batch has a column `margins`: float[2 P], 0 for pairs without one; if one is a tie, a column `ties`: bool[2 P].
    """
    batch = stack_samples([sample for pair in pairs for sample in (pair.chosen, pair.rejected)])
    if any(pair.margin is not None for pair in pairs):
        margins = torch.tensor([pair.margin or 0.0 for pair in pairs])
        batch = batch.with_columns(margins=margins.repeat_interleave(2))
    if any(pair.is_tie for pair in pairs):
        batch = batch.with_columns(ties=torch.tensor([pair.is_tie for pair in pairs]).repeat_interleave(2))
    return batch


def flaw_of(pair: Pair, *, whole: bool = False) -> str | None:
    """Return why nothing can be learned from a pair: `empty_answer`, `equal_answers`, or with `whole` `truncated`."""
    both = (pair.chosen, pair.rejected)
    if whole and not all(sample.ended for sample in both):
        return "truncated"
    if not all(any(sample.action_mask) for sample in both):
        return "empty_answer"
    if pair.chosen.tokens == pair.rejected.tokens and not pair.is_tie:
        return "equal_answers"
    return None


def usable_pairs(pairs: Sequence[Pair], what: str = "samples", *, whole: bool = False) -> list[Pair]:
    """Return the pairs that can be learned from; a warning counts the others, by reason, and those that are truncated.

    Args:
        pairs: what a pipeline such as `preferences` returned.
        what: the option that holds them, for the warning.
        whole: also drop pairs with a truncated answer, as a reward model must, which reads its score at the end.

    Raises:
        DataError: no pair is left.
    """
    dropped = {"empty_answer": 0, "equal_answers": 0, "truncated": 0}
    kept = []
    for pair in pairs:
        flaw = flaw_of(pair, whole=whole)
        if flaw is None:
            kept.append(pair)
        else:
            dropped[flaw] += 1
    counts = {name: count for name, count in dropped.items() if count}
    if counts and kept:
        get_logger("data").warning(
            f"{what}: pairs are dropped, from which nothing can be learned", kept=len(kept), **counts
        )
    if cut := sum(not (pair.chosen.ended and pair.rejected.ended) for pair in kept):
        get_logger("data").warning(
            f"{what}: pairs are longer than data.max_sample_tokens or the model's context; the ends of their answers "
            "are cut off", cut=cut, kept=len(kept),
        )  # fmt: skip
    if not kept:
        raise DataError(
            f"{what}: none of the {len(pairs)} pairs can be learned from ("
            + ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items())
            + "); look at the columns 'chosen' and 'rejected'; if answers are cut off, raise data.max_sample_tokens or "
            "take a model with a longer context"
        )
    return kept


@attrs.frozen
class LabelledSample:
    """An answer with a verdict.

    Attributes:
        sample: the prompt with the answer.
        label: whether the answer is desirable.
    """

    sample: Sample
    label: bool


@mixing
def build_unpaired(
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[LabelledSample | Pair]:
    """Read and tokenise answers with a verdict each, in their order.

    A row is a mapping with `prompt` (or `data.prompt_column`), `completion` and `label`, true or false; prompt and
    completion are strings, or lists of {role, content} messages. A row with `chosen` and `rejected` gives a pair, as in
    `build_preferences`: its answers are a desirable and an undesirable one. Instead of texts, all rows may have token
    ids, `prompt_ids` and `completion_ids`.

    The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is invalid; the message names the first such row and the reason.
    """
    rows = list(number_rows(load_rows(source, tokenizer, data, what, answers=("completion", *ANSWERS)), what))
    answers = next((parts for parts in (("completion",), ANSWERS) if are_token_ids(rows, parts)), None)
    read = [_read_keys(row, data.prompt_column, answers) for _, row in rows]
    name_unread([row for _, row in rows], read, tokenizer, what)
    if answers is not None:
        sequences = read_token_ids(rows, answers, tokenizer, data, max_length=max_length)
    else:
        exchanges = [_read_labelled(row, data.prompt_column, where) for where, row in rows]
        sequences = tokenise_answers(exchanges, tokenizer, data, max_length=max_length)
    return [
        Pair(made[0], made[1]) if len(made) == 2 else LabelledSample(made[0], _read_label(row, where))
        for made, (where, row) in zip(sequences, rows, strict=True)
    ]


build_unpaired.example_rows = [  # type: ignore[attr-defined]  # read by the conformance kit
    {"prompt": prompt, "completion": completion, "label": label}
    for prompt, completion, label in (
        ("ab", "cde", True), ("hello ", "you.", True), ("q", "!", False), ("f", "aa", True), ("z", "a b", False),
        ("long ", "ago it", True), ("m", "nop", False), ("who? ", "me!", True), ("ab", "e", False),
        ("ab", "c" * 12, False),
    )
]  # fmt: skip


def _read_labelled(row: Mapping[str, object], prompt_column: str, where: str) -> Exchange:
    if row.get("completion") is None and row.get("chosen") is not None:
        return read_preference(row, prompt_column, where)
    prompt, completion = (read_content(row, key, where) for key in (prompt_column, "completion"))
    if isinstance(prompt, str) != isinstance(completion, str):
        raise DataError(f"{where}: one of '{prompt_column}' and 'completion' is a string, the other a list of messages")
    return Exchange(where, prompt, (completion,), template_variables(row, where))


def _read_keys(row: Mapping[str, object], prompt_column: str, ids: Sequence[str] | None) -> set[str]:
    """Return the keys of a row that are read; a row of preferences has no verdict of its own."""
    if ids is not None:
        return token_keys(row, ("prompt", *ids)) | ({"label"} if len(ids) == 1 else set())
    is_pair = row.get("completion") is None and row.get("chosen") is not None
    answers = ANSWERS if is_pair else ("completion",)
    is_chat = any(is_conversation(row.get(key)) for key in answers)
    return {prompt_column, *answers, *(() if is_pair else ("label",)), *(TEMPLATE_KEYS if is_chat else ())}


def _read_label(row: Mapping[str, object], where: str) -> bool:
    label = row.get("label")
    label = BOOLEANS.get(label.strip().lower(), label) if isinstance(label, str) else label  # a cell of a table
    if isinstance(label, bool) or label in (0, 1):
        return bool(label)
    raise DataError(f"{where}: 'label' is {shorten(label)}; it must be true for a desirable completion, else false")
