"""Find the assistant's turns in the rendering of a conversation, and choose their tokens.

A conversation is rendered and tokenised once, whole. If its chat template marks the assistant's text with
{% generation %}, the marked tokens are chosen. Otherwise it is rendered a second time with a unique word in each of the
assistant's messages, which shows where the message is: templates may render a turn in another way once others follow,
for example without its thinking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.data.chat import Chat, apply_template, render_conversation, template_of, without_none
from rlcore.data.offsets import count_common, encode_places
from rlcore.data.tokens import end_of_turn, special_ids
from rlcore.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTION = {"role": "user", "content": "?"}
_LONGEST_END = 500
"""Number of characters at the end of a prompt that are looked for in the text."""
_MARKED_TEMPLATE = re.compile(r"\{%-?\s*generation\s*-?%\}")


@attrs.frozen
class Turn:
    """An assistant turn in a rendered conversation; the attributes are indices of characters.

    Attributes:
        start: where the turn begins, after the header with which a prompt for this turn ends.
        answer_end: the end of the message's content, or of the name of its last tool call.
        end: the end of what the template writes after that, both when another turn follows and when none does.
        diverges: whether the template goes on in another way when another turn follows than when none does.
    """

    start: int
    answer_end: int
    end: int
    diverges: bool


def tokenise_chats(tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]) -> list[tuple[list[int], list[bool]]]:
    """Tokenise conversations, and choose the assistant's tokens.

    Chosen is what a generation would add: everything from the end of the header of the turn through the token that ends
    it. A token that spans the end of the header is chosen.

    Returns:
        for each conversation the ids of all its tokens, and for each token whether it is chosen.

    Raises:
        DataError: a conversation has no assistant turn, or the template's rendering of one cannot be located.
    """
    found = [find_turns(tokenizer, chat) if _needs_turns(tokenizer, chat) else ("", []) for chat in chats]
    places = [[place for turn in turns for place in attrs.astuple(turn)[:3]] for _, turns in found]
    encoded = encode_places(tokenizer, [text for text, _ in found], places, lambda i: chats[i].where)
    special = special_ids(tokenizer)
    made = []
    for chat, (_, turns), (ids, counts) in zip(chats, found, encoded, strict=True):
        if _is_marked(tokenizer, chat):
            made.append(_read_marked(tokenizer, chat, counts[0] if turns else 0))
            continue
        mask = [False] * len(ids)
        for k, turn in enumerate(turns):
            start, answer_end, end = counts[3 * k : 3 * k + 3]
            closing = ids[answer_end:end]
            if turn.diverges and special.isdisjoint(closing) and ids[end : end + 1] and ids[end] in special:
                stop = end + 1  # <|return|> ends the last turn, and <|end|> the others
            else:
                stop = answer_end + end_of_turn(tokenizer, closing, special)
            mask[start:stop] = [True] * (stop - start)
        made.append((ids, mask))
    return made


def find_turns(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> tuple[str, list[Turn]]:
    """Render a conversation, and return its text and the chosen assistant turns in it.

    Raises:
        DataError: there is no such turn, or the template does not render one, or changes when its text does.
    """
    search = _Search(tokenizer, chat)
    return search.whole, search.turns()


def _is_marked(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> bool:
    return tokenizer.is_fast and bool(_MARKED_TEMPLATE.search(template_of(tokenizer, chat.where)))


def _needs_turns(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> bool:
    return chat.first > 0 or not _is_marked(tokenizer, chat)


def _read_marked(tokenizer: PreTrainedTokenizerBase, chat: Chat, start: int) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation whose template marks the assistant's; chosen are those from `start` on."""
    _chosen_turns(chat)
    encoded = apply_template(tokenizer, chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    return list(encoded["input_ids"]), [k >= start and bool(mark) for k, mark in enumerate(encoded["assistant_masks"])]


def _chosen_turns(chat: Chat) -> list[int]:
    turns = [i for i, message in enumerate(chat.messages) if i >= chat.first and message["role"] == "assistant"]
    if not turns:
        roles = ", ".join(repr(message["role"]) for message in chat.messages)
        raise DataError(
            f"{chat.where}: no message has the role 'assistant' (roles: {roles}), so there is nothing to learn"
        )
    return turns


class _Search:
    """The text of a conversation, and where the messages of its chosen assistant turns end in it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
        self.tokenizer, self.chat = tokenizer, chat
        self.messages = [without_none(message) for message in chat.messages]
        self.whole = render_conversation(tokenizer, chat)
        self.word = "zq"
        while self.word in self.whole:
            self.word += "q"
        self.marked = {i: self._mark(i) for i in _chosen_turns(chat)}
        text = render_conversation(tokenizer, self._chat([self.marked.get(i, m) for i, m in enumerate(self.messages)]))
        plain, self.ends = self._unmark(text)
        if plain != self.whole:
            raise DataError(
                f"{chat.where}: the chat template renders other text once a word is added to the assistant's messages, "
                "so the assistant's tokens cannot be located. Mark them in the template with {% generation %}, or give "
                "one [prompt, output] pair for each turn"
            )
        for i in self.marked:
            if i not in self.ends:
                raise DataError(
                    f"{chat.where}: the chat template omits the content of message {i} (assistant); "
                    "change the template, remove the message, or, for a model of images, write contents as parts: "
                    "[{type: text, text: ...}]"
                )

    def turns(self) -> list[Turn]:
        """Return the chosen assistant turns."""
        turns: list[Turn] = []
        for i, answer_end in self.ends.items():
            here, is_last = self.whole[answer_end:], i == len(self.messages) - 1
            alone = here if is_last else self._tail(i, [])
            followed = self._tail(i, [_QUESTION]) if is_last else here
            size = count_common(alone or "", here if followed is None else followed)
            start = self._find_start(i, turns[-1].answer_end if turns else 0)
            turns.append(Turn(start, answer_end, answer_end + size, alone is None or size < len(alone)))
        return turns

    def _find_start(self, i: int, earliest: int) -> int:
        """Return where the turn of message `i` begins in the whole text; it is not before `earliest`.

        That is where the prompt for this turn ends. A prompt may end with text that the turn lacks, such as <think>;
        the turn then begins where they differ.
        """
        prompt = self._try(self.messages[:i], add_generation_prompt=True) if i else None
        if prompt is None:
            return self._find_first_start(i, earliest)
        if self.whole.startswith(prompt):
            return len(prompt)
        body = self._before_difference(prompt, self._try(self.messages[:i]) or prompt)
        place = len(body)
        if not self.whole.startswith(body):  # earlier messages are rendered in another way once others follow
            end, text = body[: -_LONGEST_END - 1 : -1], self.whole  # reversed
            places = range(earliest, self.ends[i] + 1)
            place = max(places, key=lambda k: count_common(end, text[max(earliest, k - _LONGEST_END) : k][::-1]))
        return place + len(self._before_difference(prompt[len(body) :], self.whole[place : self.ends[i]]))

    def _find_first_start(self, i: int, earliest: int) -> int:
        """Return where a turn without a prompt begins: after the header that the template writes in other prompts."""
        question = self._try([_QUESTION]) or ""
        header = (self._try([_QUESTION], add_generation_prompt=True) or "").removeprefix(question)
        place = self.whole.find(header, earliest, self.ends[i])
        return place + len(header) if header and place >= 0 else earliest

    def _before_difference(self, one: str, other: str) -> str:
        """Return the common beginning of two texts; if they differ, through the last special token or white space."""
        head = one[: count_common(one, other)]
        if head == one:
            return head
        special = (re.escape(token.content) for token in self.tokenizer.added_tokens_decoder.values())
        ends = [match.end() for match in re.finditer("|".join([*special, r"\s"]), head)]
        return head[: ends[-1]] if ends else ""

    def _tail(self, i: int, after: Sequence[Mapping[str, Any]]) -> str | None:
        """Return what the template writes after message `i` if the messages `after` follow; None if it refuses them."""
        text = self._try([*self.messages[:i], self.marked[i], *after])
        plain, ends = self._unmark(text or "")
        return plain[ends[i] :] if i in ends else None

    def _mark(self, i: int) -> dict[str, Any]:
        message = dict(self.messages[i])
        content, calls = message.get("content", ""), message.get("tool_calls")
        if isinstance(content, str) and (content.strip() or not calls):
            message["content"] = _insert(content, f"{self.word}{2 * i:06d}")
        elif isinstance(content, (list, tuple)):
            parts = list(content)
            for k in reversed(range(len(parts))):
                if isinstance(parts[k], Mapping) and isinstance(parts[k].get("text"), str):
                    parts[k] = {**parts[k], "text": _insert(parts[k]["text"], f"{self.word}{2 * i:06d}")}
                    break
            message["content"] = parts
        if calls:
            call = dict(calls[-1])
            inner = call["function"] = dict(call["function"]) if "function" in call else call
            inner["name"] = f"{inner.get('name')}{self.word}{2 * i + 1:06d}"
            message["tool_calls"] = [*calls[:-1], call]
        return message

    def _unmark(self, text: str) -> tuple[str, dict[int, int]]:
        """Return a text without marks, and for each marked message the index at which the last of its marks was."""
        pieces = re.split(f"{self.word}([0-9]{{6}})", text)
        found: dict[int, int] = {}
        size = len(pieces[0])
        for mark, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            found.setdefault(int(mark), size)  # the response to a tool call may name the tool again
            size += len(piece)
        ends: dict[int, int] = {}
        for mark, place in sorted(found.items()):
            ends[mark // 2] = max(place, ends.get(mark // 2, 0))
        return "".join(pieces[::2]), ends

    def _chat(self, messages: Sequence[Mapping[str, Any]]) -> Chat:
        return attrs.evolve(self.chat, messages=messages)

    def _try(self, messages: Sequence[Mapping[str, Any]], **how: Any) -> str | None:
        """Return the rendering of other messages, or None where the template refuses them."""
        try:
            return str(apply_template(self.tokenizer, self._chat(messages), **how))
        except DataError:
            return None


def _insert(content: str, mark: str) -> str:
    """Add a mark at the end of a text, before white space, which a template may remove."""
    text = content.rstrip()
    return text + mark + content[len(text) :]
