"""Whether a chat template is append-only: whether a longer dialogue begins as the shorter one, round after round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlcore.errors import DataError
from rlcore.safe_text import shorten

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
    calls: Sequence[Any],
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


def answer(content: str, calls: Sequence[Any] = ()) -> dict[str, Any]:
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
