"""Actions of discrete spaces in the text of a turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.spaces import Discrete, Space

from rlcore.errors import ConfigError


def discrete_actions(space: Space[Any], words: Sequence[str], where: str) -> Callable[[str, Any], int | None]:
    """Return a function that finds the last action in a text: a word, without regard to case, or a whole number.

    Args:
        space: the actions of the environment.
        words: a word for each action, from the first to the last; none for numbers.
        where: path of the section, for messages.

    Raises:
        ConfigError: the space is not discrete, or has another number of actions than there are words.
    """
    if not isinstance(space, Discrete):
        raise ConfigError(
            f"{where}.act: the actions of this environment are {space}, which only a function of yours can read from a "
            "text; give `act: module:function`, which is called as act(text, env)"
        )
    count, start = int(space.n), int(space.start)
    if words and (len(words) != count or len({word.lower() for word in words}) != count):
        raise ConfigError(f"{where}.actions = {list(words)}: must be {count} different words, one for each action")
    if words:
        numbers = {word.lower(): start + i for i, word in enumerate(words)}
        longest_first = sorted(map(re.escape, numbers), key=len, reverse=True)
    else:
        numbers = {str(number): number for number in range(start, start + count)}
        longest_first = [r"-?\d+"]
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")

    def act(text: str, _env: Any) -> int | None:
        found = pattern.findall(text.lower())
        return numbers.get(found[-1]) if found else None

    return act
