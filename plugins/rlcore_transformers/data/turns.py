"""Tokenise conversations for training: each of the assistant's turns follows the prompt from which it would be sampled.

A turn is rendered as the last one of the conversation so far. Its prompt is rendered and tokenised as for sampling, and
what the template writes after it is tokenised as a continuation. With `data.turns: joint` the turns of a conversation
share one sample, in which each must have the same tokens; with `each` every turn is a sample of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

import attrs

from rlcore.config import evolve
from rlcore.data.text import warn_of_end
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore_transformers.data.chat import Chat, check_roles, fit_messages
from rlcore_transformers.data.long_chats import TurnSpan, find_other_turns, turns_to_render
from rlcore_transformers.data.rendered_turns import QUESTION, RenderedTurn, find_turns, trained_turns
from rlcore_transformers.data.tokens import (
    count_common,
    decode,
    encode,
    encode_places,
    end_ids,
    end_of_turn,
    eos_id,
    missing_opening,
    rendered_opening,
    special_ids,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

_CHECKED: WeakSet[PreTrainedTokenizerBase] = WeakSet()
"""Tokenizers the ends of whose chat templates were checked."""
_CHATS = 256
"""Conversations that are tokenised at a time: the prompts of a conversation's turns repeat its beginning."""


@attrs.frozen(eq=False)
class _Row:
    """The tokens of a turn: those of its prompt, and those after it with a mask of the chosen ones.

    `mark` is the token of the next speaker that ends the turn, where the template writes no end of its own.
    """

    turn: RenderedTurn
    prompt: list[int]
    answer: list[int]
    chosen: list[bool]
    mark: int | None = None

    @property
    def trained(self) -> list[int]:
        """Return the tokens through the last chosen one."""
        return self.prompt + self.answer[: len(self.answer) - self.chosen[::-1].index(True)]

    @property
    def sample(self) -> tuple[list[int], list[bool]]:
        """Return all tokens, and which of them are chosen; the mark of the next speaker ends the last turn."""
        before = [False] * len(self.prompt)
        if self.mark is None:
            return self.prompt + self.answer, before + self.chosen
        return [*self.trained, self.mark], [*before, *self.chosen[: len(self.trained) - len(self.prompt)], True]


def tokenise_chats(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat], data: DataConfig
) -> list[list[tuple[list[int], list[bool]]]]:
    """Tokenise conversations, and choose the assistant's tokens.

    Chosen is what a generation would add: everything after the prompt for a turn through the token that ends it. If the
    template marks the assistant's text with {% generation %}, the marked tokens of these are chosen. A turn ends with
    one token at which generation stops (`data.end_token_ids`): the first that the template writes, which may follow the
    marked text, or, where it writes none, the next speaker's mark. The tokens before the first chosen token of a turn
    are those of `build_prompts` for the messages before it.

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


def check_template_end(tokenizer: PreTrainedTokenizerBase, chat: Chat, data: DataConfig, what: str) -> None:
    """Log a warning if the chat template ends turns with a special token at which sampling does not stop.

    Args:
        tokenizer: a tokenizer with a chat template; there is one warning for each.
        chat: a conversation, whose variables of the template are used.
        data: the options, with the tokens at which sampling stops, `end_token_ids`; None if nothing is sampled.
        what: the option that holds the conversation.
    """
    if data.end_token_ids is None or tokenizer in _CHECKED:
        return
    _CHECKED.add(tokenizer)
    turn = Chat(what, [QUESTION, {"role": "assistant", "content": "a"}], template=chat.template)
    try:
        ((sample,),) = tokenise_chats(tokenizer, [turn], evolve(data, turns="each", append_eos=False))
    except DataError:  # such as a template that renders thoughts only; rows of its own are checked as they are read
        return
    ids, mask = sample
    last = ids[len(mask) - 1 - mask[::-1].index(True)]
    if last in special_ids(tokenizer) - end_ids(tokenizer, data):
        warn_of_end(last, tokenizer, what)


def _tokenise(
    tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat], data: DataConfig
) -> Iterator[list[tuple[list[int], list[bool]]]]:
    for chat in chats:
        check_roles(tokenizer, chat)
    chats = [fit_messages(tokenizer, chat) for chat in chats]
    turns_of = [trained_turns(chat) for chat in chats]
    is_joint = data.turns == "joint"
    alone = [turns_to_render(chat, turns) if is_joint else turns for chat, turns in zip(chats, turns_of, strict=True)]
    found = [find_turns(tokenizer, chat, data, turns) for chat, turns in zip(chats, alone, strict=True)]
    rows = _encode(tokenizer, [turn for turns in found for turn in turns], data)
    eos, ends = eos_id(tokenizer, data.append_eos), end_ids(tokenizer, data)
    closing = special_ids(tokenizer) | ends
    for chat, turns, rendered in zip(chats, turns_of, alone, strict=True):
        each = [next(rows) for _ in rendered]
        samples = [_join(each, ends)] if is_joint else [row.sample for row in each]
        if len(rendered) < len(turns) and not _choose_others(tokenizer, chat, turns, rendered, each, samples[0]):
            each = list(_encode(tokenizer, find_turns(tokenizer, chat, data, turns), data))
            samples = [_join(each, ends)]
        yield [
            ([*ids, eos], [*mask, True]) if eos is not None and mask[-1] and ids[-1] not in closing else (ids, mask)
            for ids, mask in samples
        ]


def _encode(tokenizer: PreTrainedTokenizerBase, turns: Sequence[RenderedTurn], data: DataConfig) -> Iterator[_Row]:
    def name(i: int) -> str:
        return turns[i].name

    opening, special = rendered_opening(tokenizer, data.add_bos), special_ids(tokenizer)
    ends = end_ids(tokenizer, data)
    marks = encode(tokenizer, [turn.following if data.append_eos else "" for turn in turns], name)
    prompts = encode(tokenizer, [turn.prompt for turn in turns], name)
    answers = encode_places(tokenizer, [turn.text for turn in turns], [turn.places for turn in turns], name)
    for turn, prompt, (answer, counts), mark in zip(turns, prompts, answers, marks, strict=True):
        chosen = [False] * len(answer)
        for start, end in _chosen(tokenizer, turn, answer, counts, special, ends):
            chosen[start:end] = [True] * (end - start)
        if not any(chosen):
            raise DataError(f"{turn.name}: has no token to learn; remove the message")
        last = answer[len(chosen) - 1 - chosen[::-1].index(True)]
        next_mark = mark[0] if mark and mark[0] in ends and last not in ends else None
        yield _Row(turn, missing_opening(prompt, opening) + prompt, answer, chosen, next_mark)


def _chosen(
    tokenizer: PreTrainedTokenizerBase,
    turn: RenderedTurn,
    ids: list[int],
    counts: list[int],
    special: frozenset[int],
    ends: frozenset[int],
) -> Iterator[tuple[int, int]]:
    """Yield the beginnings and ends of the chosen tokens of a turn."""
    if turn.is_marked:
        *parts, (start, end) = zip(counts[::2], counts[1::2], strict=True)
        yield from parts
        yield start, _marked_end(tokenizer, ids, start, end, special, ends)
        return
    answer_end, end = counts
    closing = ids[answer_end:end]
    if turn.diverges and special.isdisjoint(closing) and ids[end : end + 1] and ids[end] in special:
        yield 0, end + 1  # <|return|> ends the last turn, and <|end|> the others
    else:
        yield 0, answer_end + end_of_turn(tokenizer, closing, special, ends)


def _marked_end(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    start: int,
    end: int,
    special: frozenset[int],
    ends: frozenset[int],
) -> int:
    """Return where the last marked part of a turn ends: after its end token, inside it or next to it, if it has one."""

    def is_blank(token: int) -> bool:
        return token not in special and not decode(tokenizer, [[token]], skip_special_tokens=False)[0].strip()

    closing = end
    while closing > start and (ids[closing - 1] in special or is_blank(ids[closing - 1])):
        closing -= 1
    inside = ids[closing:end]
    if ends.isdisjoint(inside):
        beside = end
        while beside < len(ids) and is_blank(ids[beside]):
            beside += 1
        if ids[beside : beside + 1] and ids[beside] in ends:
            return beside + 1
    return end if special.isdisjoint(inside) else closing + end_of_turn(tokenizer, inside, special, ends)


def _join(rows: Sequence[_Row], ends: frozenset[int]) -> tuple[list[int], list[bool]]:
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
        if row.mark is not None and ids[len(trained)] in ends:
            mask[len(trained)] = True  # the mark of the next speaker
    return ids, mask


def _choose_others(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, turns: Sequence[int], rendered: Sequence[int],
    rows: Sequence[_Row], sample: tuple[list[int], list[bool]],
) -> bool:  # fmt: skip
    """Choose the tokens of the turns that were not rendered alone; return whether they could be found."""
    (ids, mask), last, known = sample, rows[-1], list[TurnSpan]()
    for i, row in zip(rendered, rows, strict=True):
        start = mask.index(True, len(row.prompt))
        known.append(TurnSpan(i, start, next((k for k in range(start, len(mask)) if not mask[k]), len(mask))))
    found = find_other_turns(
        tokenizer, chat, turns, known, last.turn.prompt, last.turn.text, ids, len(last.prompt)
    )  # fmt: skip
    for span in found or ():
        mask[span.start : span.end] = [True] * (span.end - span.start)
    return found is not None


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
