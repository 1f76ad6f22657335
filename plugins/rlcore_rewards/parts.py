"""Parts of outputs: what follows a marker, blocks of code, words and other units.

Also in this file: counts of outputs that a reward could not judge, in warnings; rewards that compare outputs with a
column of the prompts, whose name is an option; libraries that only one of the rewards needs, which are extras of the
package.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal

from rlcore.errors import ConfigError, PluginError, RewardError
from rlcore.logging import get_logger

NO_COLUMNS = frozenset({"samples", "prompts", "outputs", "messages", "output_tokens", "tokenizer"})
"""Arguments of reward functions that are no column."""


class ColumnParameter(inspect.Parameter):
    """A parameter that receives a column of the prompts, with the option that names it."""

    __slots__ = ("option",)

    def __init__(self, name: str, option: str) -> None:
        super().__init__(name, inspect.Parameter.KEYWORD_ONLY)
        self.option = option


def signature(option: str, columns: Iterable[str | None], *arguments: str) -> inspect.Signature:
    """Return the signature of a reward that takes `outputs`, columns and further arguments by name.

    A run passes the arguments in the signature of a reward. As the object's `__signature__`, it has the columns that
    its options name.

    Args:
        option: the option that names the columns, such as `exact_match.column`.
        columns: their names; None for none.
        arguments: further arguments, such as `output_tokens`.

    Raises:
        ConfigError: a column cannot be the name of an argument, or is one already.
    """
    parameters = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in ("outputs", *arguments)]
    for column in filter(None, columns):
        if not column.isidentifier() or column in NO_COLUMNS:
            raise ConfigError(
                f"{option} = {column!r}: must be the name of a column, of letters, digits and underscores, "
                f"and none of {', '.join(sorted(NO_COLUMNS))}; data.columns renames columns"
            )
        if column not in {each.name for each in parameters}:
            parameters.append(ColumnParameter(column, option))
    return inspect.Signature(parameters)


def refuse_missing(parameters: Sequence[inspect.Parameter], arguments: Mapping[str, object]) -> None:
    """Raise RewardError if a reward of this package names a column that is none of the arguments."""
    for each in parameters:
        if isinstance(each, ColumnParameter) and each.name not in arguments:
            columns = [name for name in arguments if name not in NO_COLUMNS]
            has = f"they have {', '.join(map(repr, columns))}" if columns else "they have no columns"
            raise RewardError(
                f"finds no column '{each.name}' of {each.option} in the prompts; {has}. Name another column there, or "
                "rename one with data.columns"
            )


def refuse_misfit(outputs: Sequence[object], columns: Mapping[str, Sequence[object]] = MappingProxyType({})) -> None:
    """Raise RewardError if an output is no text, or a column has another number of rows."""
    for i, output in enumerate(outputs):
        if not isinstance(output, str):
            raise RewardError(
                f"outputs[{i}] = {output!r:.80}: is a {type(output).__name__}, and outputs are texts; of a "
                "conversation pass the content of its last message"
            )
    for name, column in columns.items():
        if len(column) != len(outputs):
            raise RewardError(f"column '{name}' has {len(column)} rows for {len(outputs)} outputs; give one for each")


Unit = Literal["tokens", "characters", "words"]
OPENING, CLOSING = re.compile(r" *```[^`]*"), re.compile(r" *```\s*")
"""Lines that open and close a block."""


def after(text: str, marker: str) -> str:
    """Return what follows the last occurrence of a marker; nothing without it, and the whole text for no marker."""
    return text.rpartition(marker)[2] if marker and marker in text else "" if marker else text


def last_block(text: str) -> str | None:
    """Return what stands in the last block between lines of three backticks; None if there is no such block."""
    block: str | None = None
    begin: int | None = None
    at = 0
    for line in text.split("\n"):  # one pass: a search for pairs takes quadratic time if blocks are not closed
        if begin is None:
            begin = at + len(line) + 1 if OPENING.fullmatch(line) else None
        elif CLOSING.fullmatch(line):
            block, begin = text[begin:at], None
        at += len(line) + 1
    return block


def units(
    outputs: Sequence[str], output_tokens: Sequence[Sequence[int]] | None, unit: Unit, reward: str
) -> list[Sequence[object]]:
    """Return the units of each output: its sampled tokens, characters or words.

    Raises:
        RewardError: tokens are needed, and the outputs have none; or an output is no text.
    """
    refuse_misfit(outputs)
    if unit == "characters":
        return list(outputs)
    if unit == "words":
        return [output.split() for output in outputs]
    if output_tokens is None:
        raise RewardError(f"{reward}.unit = 'tokens': these outputs come without tokens; count characters or words")
    return list(output_tokens)


log = get_logger("rewards")
GROWTH = 10
"""A count is logged again when it is so many times as large as the last logged one."""


class Tally:
    """Counts events of a reward and logs them: the first, whenever the number has grown tenfold, and at the end.

    Args:
        reward: name of the reward.
    """

    def __init__(self, reward: str) -> None:
        self.reward, self.seen = reward, 0
        self.counts: dict[str, int] = {}
        self._logged: dict[str, int] = {}
        self._lock = Lock()

    def add(self, seen: int, counts: dict[str, int]) -> None:
        """Count a call.

        Args:
            seen: number of its outputs.
            counts: number of events in it, by what happened, such as "outputs have no answer that can be parsed".
        """
        with self._lock:
            self.seen += seen
            for what, number in counts.items():
                self.counts[what] = self.counts.get(what, 0) + number
                if self.counts[what] >= max(1, GROWTH * self._logged.get(what, 0)):
                    self._log(what)

    def close(self) -> None:
        """Log the counts that have grown since they were logged."""
        with self._lock:
            for what, number in self.counts.items():
                if number > self._logged.get(what, 0):
                    self._log(what)

    def _log(self, what: str) -> None:
        self._logged[what] = self.counts[what]
        log.warning(what, reward=self.reward, count=self.counts[what], of=self.seen)


def load(module: str, *, reward: str, extra: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: its name, such as `jsonschema`.
        reward: the reward that needs it, for the error.
        extra: the extra of rlcore-rewards that installs it.

    Raises:
        PluginError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PluginError(
            f"reward '{reward}' needs {module.partition('.')[0]}, which cannot be imported ({error}): "
            f"pip install 'rlcore-rewards[{extra}]'"
        ) from error
