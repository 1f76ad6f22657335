"""Rewards that compare outputs with a column of the prompts, whose name is an option."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rlcore.errors import ConfigError, RewardError

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


def refuse_missing(parameters: Sequence[inspect.Parameter], arguments: Mapping[str, Any]) -> None:
    """Raise RewardError if a reward of this package names a column that is none of the arguments."""
    for each in parameters:
        if isinstance(each, ColumnParameter) and each.name not in arguments:
            columns = [name for name in arguments if name not in NO_COLUMNS]
            has = f"they have {', '.join(map(repr, columns))}" if columns else "they have no columns"
            raise RewardError(
                f"finds no column '{each.name}' of {each.option} in the prompts; {has}. Name another column there, or "
                "rename one with data.columns"
            )


def refuse_misfit(outputs: Sequence[Any], columns: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> None:
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
