"""Tokens of an environment's messages: what the chat template writes between two turns of the policy.

The tokens of earlier turns stay as they were sampled: the template renders a short stand-in of the dialogue, and what
it writes after the stand-in's answer follows the sampled turn. No string of a message becomes a control token.

Also in this file: whether a chat template is append-only: whether a longer dialogue begins as the shorter one, round
after round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlcore.errors import ConfigError, DataError
from rlcore.safe_text import shorten
from rlcore.settings import DataConfig
from rlcore_transformers.data.chat import Chat, apply_template, make_chat, render_prompt
from rlcore_transformers.data.tokens import encode, encode_continuations, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Message = Mapping[str, Any]


ANSWER = "zqanswerzq"
"""The stand-in of a turn, a word that no template writes."""
THOUGHT = "zqthoughtzq"
QUESTION: Message = {"role": "user", "content": "zqquestionzq"}
ROUNDS = 8
"""Turns of the longest dialogue that is rendered."""
CONTENTS = (ANSWER, ""), (f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}", " that begins with <think>")
"""Stand-ins of turns, and how a message names them."""


def describe_change(
    render: Callable[..., str],
    ending: Callable[[str], str],
    first: Sequence[Message],
    last: Sequence[Message],
    calls: Sequence[object],
) -> str:
    """Return how a template renders earlier messages in another way when others follow; empty if it does not.

    Args:
        render: renders messages; with `add_generation_prompt`, the header of the assistant's next turn follows.
        ending: returns the first special token of a text.
        first: stand-ins of the first messages.
        last: stand-ins of what follows each turn.
        calls: calls of tools whose results are in `last`.
    """
    for content, drops in CONTENTS:
        with suppress(DataError):  # such as a result without a call; `_in_rounds` renders calls
            if alone := _in_turn(render, ending, first, last, content):
                return (
                    f"it renders a turn of the assistant{drops} as {alone[0]} when it is the last one, and as "
                    f"{alone[1]} once another message follows"
                )
        with suppress(DataError):
            if found := _in_rounds(render, first, [answer(content if drops or not calls else "", calls), *last]):
                return (
                    f"with {found[2]} turns of the assistant{drops}, it renders {found[1]}, and what it renders with "
                    f"fewer turns would go on as {found[0]}"
                )
    return ""


def answer(content: str, calls: Sequence[object] = ()) -> dict[str, Any]:
    """Return a turn of the assistant."""
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}


def _in_turn(
    render: Callable[..., str],
    ending: Callable[[str], str],
    first: Sequence[Message],
    last: Sequence[Message],
    content: str,
) -> tuple[str, str] | None:
    """Return how a turn is rendered as the last one, and how with others behind it, if these differ."""
    before = [*first, answer(content)]
    ended, asked = render(before), render([*before, *last], add_generation_prompt=True)
    prompt = render(first, add_generation_prompt=True)
    end = ended.rfind(content) + len(content)
    begins = content in ended and ended.startswith(prompt)
    if begins and asked[:end] == ended[:end] and ending(ended[end:]) == ending(asked[end:]):
        return None
    return _differing(ended, asked if begins else prompt)


def _in_rounds(
    render: Callable[..., str], first: Sequence[Message], turn: Sequence[Message]
) -> tuple[str, str, int] | None:
    """Return what the turns appended one by one read, what the template renders, and after how many these differ.

    What a turn adds is that of a dialogue with one question, since the loop of episodes renders no more than that.
    """

    def of_round(k: int) -> list[Message]:
        return [{**each, "content": each["content"] and f"{each['content']}{_mark(k)}"} for each in turn]

    alone = render([QUESTION], add_generation_prompt=True)
    step = render([QUESTION, *of_round(0)], add_generation_prompt=True)[len(alone) :]
    said, read = list(first), render(first, add_generation_prompt=True)
    for k in range(1, ROUNDS + 1):
        said += of_round(k)
        read += step.replace(_mark(0), _mark(k))
        whole = render(said, add_generation_prompt=True)
        if whole != read:
            return *_differing(read, whole), k
    return None


def _mark(k: int) -> str:
    return f"zqround{k}zq"


def _differing(one: str, other: str) -> tuple[str, str]:
    """Return two texts from shortly before the place in which they differ."""
    same = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(same - 20, 0)
    return shorten(one[begin:]), shorten(other[begin:])


ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
"""Roles that stay as they are, also where a tokenizer has them as added words."""
ENOUGH = 16
"""Characters of a text that are tokenised first, for each token for which there is room."""


class Dialogue:
    """Renders and tokenises what an environment says.

    Args:
        tokenizer: the policy's tokenizer. Without a chat template, texts follow one another as they are.
        data: the section `data`: its template's variables and its system prompt count.
        tools: JSON schemas of tools that the template renders.
        keeps_history: accept a template that renders earlier turns in another way than the last one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        *,
        tools: Sequence[Any] = (),
        keeps_history: bool = False,
    ) -> None:
        self.tokenizer, self.data, self.keeps_history = tokenizer, data, keeps_history
        self.is_chat = bool(tokenizer.chat_template)
        self.variables = {"tools": list(tools)} if tools else {}
        specials = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()} - {tokenizer.unk_token}
        texts = sorted((str(each) for each in specials if str(each)), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._ids = special_ids(tokenizer) - {tokenizer.unk_token_id}
        self._checked: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()

    def chat(self, messages: Sequence[Message], where: str = "data.environment") -> Chat:
        """Return a conversation with the variables of the template."""
        return make_chat(where, list(messages), self.data, template=self.variables)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of the first messages and the header of the policy's turn, without BOS of a plain text."""
        if not self.is_chat:
            return self._tokens([str(each["content"]) for each in messages], None, begins=True)
        return self._tokens([], messages, begins=True)

    def shows_tools(self) -> bool:
        """Return whether the policy reads the names of all tools, so that it can know of them."""
        shown = self._render([QUESTION], add_generation_prompt=True) if self.is_chat else ""
        names = [str(each.get("function", each).get("name", "")) for each in self.variables.get("tools", ())]
        return all(name in shown for name in names)

    def has_control_text(self, messages: Sequence[Message]) -> bool:
        """Return whether a message has the text of a special token."""
        return self._special is not None and any(map(self._special.search, _texts_of(messages)))

    def reply(self, messages: Sequence[Message], *, last: int, most: int | None = None) -> list[int]:
        """Return the tokens between a sampled turn and the policy's next turn.

        Args:
            messages: what the environment says.
            last: the last sampled token; if it is the one with which the template ends a turn, it is not repeated.
            most: tokens for which there is room; of a longer reply, more than these are returned, but not all.

        Raises:
            DataError: the template refuses the messages, or a text cannot be tokenised.
        """
        if not self.is_chat:
            return self._tokens([str(each["content"]) for each in messages], None, most=most)
        ids = self._tokens([], messages, most=most)
        at = next((k for k, token in enumerate(ids) if token in self._ids), None)
        if at is not None and ids[at] == last and not self._decoded(ids[:at]).strip():
            return ids[at + 1 :]
        return ids

    def text(self, messages: Sequence[Message]) -> str:
        """Return how a reply reads, for logs and reward functions."""
        if self.is_chat:
            return "".join(f"\n[{each['role']}] {each['content']}\n" for each in messages)
        return "".join(str(each["content"]) for each in messages)

    def _between(self, messages: Sequence[Message]) -> str:
        """Return the text that the template writes after a turn of the policy, until the policy's next turn."""
        calls = _calls_for(messages)
        before = [QUESTION, answer(ANSWER)]
        if not calls:
            return self._render([*before, *messages], add_generation_prompt=True).partition(ANSWER)[2]
        closing = self._render(before).partition(ANSWER)[2]
        before = [QUESTION, answer("", calls)]
        ended, asked = self._render(before), self._render([*before, *messages], add_generation_prompt=True)
        if asked.startswith(ended):
            return closing + asked[len(ended) :]
        raise DataError(
            f"data.environment: the chat template renders a call as {shorten(ended[-60:])}, and as "
            f"{shorten(asked[:200])} once its result follows, so the result cannot be appended to a sampled turn"
        )

    def _tokens(
        self,
        texts: Sequence[str],
        messages: Sequence[Message] | None,
        *,
        begins: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """Return the tokens of plain texts, or of messages in the template; control tokens in them are text."""
        found: list[str] = []
        mark = _unused(str((texts, messages, self.variables, self.data)))

        def hide(match: re.Match[str]) -> str:
            found.append(match.group())
            return f"{mark}{len(found) - 1}zq"

        def hidden(text: str) -> str:
            return text if self._special is None else self._special.sub(hide, text)

        if messages is None:
            whole = "".join(map(hidden, texts))
        else:
            safe = [_changed({**each, "content": str(each.get("content") or "")}, hidden) for each in messages]
            whole = render_prompt(self.tokenizer, self.chat(safe)) if begins else self._between(safe)
        if not found:
            return self._encode(whole, begins=begins, most=most)
        pieces = re.split(rf"{mark}(\d+)zq", whole)
        ids = self._encode(pieces[0], begins=begins, most=most)
        for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            if most is not None and len(ids) > _clearly_more(most):
                break
            ids += self._as_text(found[int(number)]) + self._encode(piece, most=most)
        return ids

    def _ending(self, text: str) -> str:
        """Return the first special token in what follows a turn."""
        found = self._special.search(text) if self._special else None
        return found.group() if found else ""

    def _encode(self, text: str, *, begins: bool = False, most: int | None = None) -> list[int]:
        """Return the tokens of a text; if there are clearly more than `most`, those of its beginning may do."""
        if not text:
            return []
        encoder, size = encode if begins else encode_continuations, len(text)
        if most is not None:
            size = ENOUGH * _clearly_more(most)
        while size < len(text):
            cut = max(text.rfind(space, size // 2, size) for space in " \n")  # so that words are whole
            (ids,) = encoder(self.tokenizer, [text[: cut if cut > 0 else size]], lambda _: "data.environment")
            if len(ids) > _clearly_more(most or 0):
                return list(ids)
            size *= 4
        (ids,) = encoder(self.tokenizer, [text], lambda _: "data.environment")
        return list(ids)

    def _as_text(self, special: str) -> list[int]:
        """Return the tokens of the text of a special token, none of which is special."""
        tokenize: Any = self.tokenizer
        ids = list(tokenize(special, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        if self._ids.intersection(ids):
            ids = [token for letter in special for token in self._encode(letter)]
        if self._ids.intersection(ids):
            raise DataError(f"data.environment: the tokenizer cannot encode {special!r} as text")
        return ids

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _render(self, messages: Sequence[Message], **how: Any) -> str:
        return str(apply_template(self.tokenizer, self.chat(messages), **how))

    def check(self, opening: Sequence[Message], following: Sequence[Message]) -> None:
        """Check that the template renders the dialogue and a turn in the same way when other messages follow.

        Args:
            opening: the first messages; only their roles count.
            following: what follows the turn, likewise.

        Raises:
            ConfigError: it does not, and `data.episodes.history` is `rendered`.
        """
        roles = tuple(str(each["role"]) for each in opening), tuple(str(each["role"]) for each in following)
        if not self.is_chat or self.keeps_history or roles in self._checked:
            return
        first, last = ([{**each, "content": f"zq{each['role']}zq"} for each in said] for said in (opening, following))
        if change := describe_change(self._render, self._ending, first, last, _calls_for(last)):
            raise ConfigError(
                f"data.environment: the chat template is not append-only: {change}, so the policy would read its "
                "earlier turns in another way than it sampled them. Use another template "
                "(model.tokenizer.chat_template), or set data.episodes.history=sampled to keep earlier turns as they "
                "were sampled"
            )
        self._checked.add(roles)


def _clearly_more(most: int) -> int:
    """Return a number of tokens after which no more text can bring the whole below `most`, though it join the last."""
    return 2 * most + 64


def _unused(text: str) -> str:
    """Return the begin of a marker that does not occur in a text."""
    mark = "zqmark"
    while mark in text:
        mark += "k"
    return mark


def _changed(value: object, change: Callable[[str], str]) -> Any:
    """Return a message, or a part of one, with each of its strings changed, except for roles that templates know."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(key) if isinstance(key, str) and not key.isidentifier() else key: (
                each if key == "role" and each in ROLES else _changed(each, change)
            )
            for key, each in value.items()
        }
    return [_changed(each, change) for each in value] if isinstance(value, list | tuple) else value


def _texts_of(messages: Sequence[Message]) -> list[str]:
    """Return all strings of messages that `_changed` changes."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _changed(messages, note)
    return found


def _calls_for(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return stand-ins of the calls whose results are among the messages: templates refuse results without calls."""
    results = [each for each in messages if each["role"] in ("tool", "function", "ipython")]
    return [
        {
            "type": "function",
            "id": str(each.get("tool_call_id") or f"zqcall{k:03d}"),
            "function": {"name": str(each.get("name") or "zqname"), "arguments": {}},
        }
        for k, each in enumerate(results)
    ]
