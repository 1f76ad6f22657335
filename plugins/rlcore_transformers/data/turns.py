"""Tokenise conversations for training: each of the assistant's turns follows the prompt from which it would be sampled.

A turn is rendered as the last one of the conversation so far. Its prompt is rendered and tokenised as for sampling, and
what the template writes after it is tokenised as a continuation. With `data.turns: joint` the turns of a conversation
share one sample, in which each must have the same tokens; with `each` every turn is a sample of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore_transformers.data.chat import Chat, check_roles, fit_calls
from rlcore_transformers.data.offsets import count_common, encode_places
from rlcore_transformers.data.rendered_turns import RenderedTurn, find_turns
from rlcore_transformers.data.tokens import encode, end_of_turn, eos_id, missing_opening, rendered_opening, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

_CHATS = 256
"""Conversations that are tokenised at a time: the prompts of a conversation's turns repeat its beginning."""


@attrs.frozen(eq=False)
class _Row:
    """The tokens of a turn: those of its prompt, and those after it with a mask of the chosen ones."""

    turn: RenderedTurn
    prompt: list[int]
    answer: list[int]
    chosen: list[bool]

    @property
    def trained(self) -> list[int]:
        """Return the tokens through the last chosen one."""
        return self.prompt + self.answer[: len(self.answer) - self.chosen[::-1].index(True)]

    @property
    def sample(self) -> tuple[list[int], list[bool]]:
        """Return all tokens, and which of them are chosen."""
        return self.prompt + self.answer, [False] * len(self.prompt) + self.chosen


def tokenise_chats(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat], data: DataConfig
) -> list[list[tuple[list[int], list[bool]]]]:
    """Tokenise conversations, and choose the assistant's tokens.

    Chosen is what a generation would add: everything after the prompt for a turn through the token that ends it. If the
    template marks the assistant's text with {% generation %}, the marked tokens of these are chosen. The tokens before
    the first chosen token of a turn are those of `build_prompts` for the messages before it.

    Args:
        tokenizer: a tokenizer with a chat template.
        chats: the conversations.
        data: the options. With `turns: joint` a conversation gives one sample, and with `turns: each` as many as there
            are turns to train on. With `append_eos`, EOS ends a sample whose last token is chosen and no special token.

    Returns:
        for each conversation its samples: the ids of all tokens, and for each token whether it is chosen.

    Raises:
        DataError: a conversation has no assistant turn, or the template drops text of one, or renders it after another
            prompt, or with `turns: joint` renders it in another way once other turns follow.
    """
    parts = (chats[k : k + _CHATS] for k in range(0, len(chats), _CHATS))
    return [samples for part in parts for samples in _tokenise(tokenizer, part, data)]


def _tokenise(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat], data: DataConfig
) -> Iterator[list[tuple[list[int], list[bool]]]]:
    for chat in chats:
        check_roles(tokenizer, chat)
    found = [find_turns(tokenizer, fit_calls(tokenizer, chat), data) for chat in chats]
    rows = _encode(tokenizer, [turn for turns in found for turn in turns], data)
    eos, special = eos_id(tokenizer, data.append_eos), special_ids(tokenizer)
    for turns in found:
        each = [next(rows) for _ in turns]
        samples = [_join(each)] if data.turns == "joint" else [row.sample for row in each]
        yield [
            ([*ids, eos], [*mask, True]) if eos is not None and mask[-1] and ids[-1] not in special else (ids, mask)
            for ids, mask in samples
        ]


def _encode(tokenizer: PreTrainedTokenizerBase, turns: Sequence[RenderedTurn], data: DataConfig) -> Iterator[_Row]:
    def name(i: int) -> str:
        return turns[i].name

    opening, special = rendered_opening(tokenizer, data.add_bos), special_ids(tokenizer)
    prompts = encode(tokenizer, [turn.prompt for turn in turns], name)
    answers = encode_places(tokenizer, [turn.text for turn in turns], [turn.places for turn in turns], name)
    for turn, prompt, (answer, counts) in zip(turns, prompts, answers, strict=True):
        chosen = [False] * len(answer)
        for start, end in _chosen(tokenizer, turn, answer, counts, special):
            chosen[start:end] = [True] * (end - start)
        if not any(chosen):
            raise DataError(f"{turn.name}: has no token to learn; remove the message")
        yield _Row(turn, missing_opening(prompt, opening) + prompt, answer, chosen)


def _chosen(
    tokenizer: PreTrainedTokenizerBase, turn: RenderedTurn, ids: list[int], counts: list[int], special: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Yield the beginnings and ends of the chosen tokens of a turn."""
    if turn.is_marked:
        yield from zip(counts[::2], counts[1::2], strict=True)
        return
    answer_end, end = counts
    closing = ids[answer_end:end]
    if turn.diverges and special.isdisjoint(closing) and ids[end : end + 1] and ids[end] in special:
        yield 0, end + 1  # <|return|> ends the last turn, and <|end|> the others
    else:
        yield 0, answer_end + end_of_turn(tokenizer, closing, special)


def _join(rows: Sequence[_Row]) -> tuple[list[int], list[bool]]:
    """Return one sample with all turns of a conversation.

    Raises:
        DataError: a turn has other tokens in it than as the last one.
    """
    last = rows[-1]
    ids, mask = last.sample
    for row in rows[:-1]:
        trained = row.trained
        if ids[: len(trained)] != trained:
            raise DataError(_describe_difference(row.turn, last.turn))
        mask[len(row.prompt) : len(trained)] = row.chosen[: len(trained) - len(row.prompt)]
    return ids, mask


def _describe_difference(turn: RenderedTurn, last: RenderedTurn) -> str:
    alone, whole = turn.prompt + turn.text, last.prompt + last.text
    common = count_common(alone, whole)
    begin = max(common - 10, 0)
    if not turn.diverges and len(turn.prompt) + turn.places[-1] <= common:
        end = shorten(turn.prompt[-20:])
        reason = f"the end of its prompt, {end}, is tokenised together with the answer once other messages follow"
    else:
        reason = (
            f"the chat template renders it as {shorten(alone[begin:])} when the assistant is asked for it, and as "
            f"{shorten(whole[begin:])} once other messages follow"
        )
    return (
        f"{turn.name}: {reason}, so a sample of the whole conversation would train on other tokens than are sampled. "
        "Set data.turns=each, which makes one sample of every assistant turn"
    )
