"""Turn what a user calls a logit mask into a tensor: which token may come next, by the last token read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.data.sources import load_reference
from rlcore.errors import DataError

FORMS = (
    "a tensor or array of booleans, nested lists, a function that returns one, 'module:function', or the path of a "
    ".json or .npy file"
)


def load_logit_mask(given: Any, what: str = "logit_mask") -> Tensor:
    """Read a logit mask of any form.

    Args:
        given: V rows of V booleans (or 0 and 1), as one of FORMS.
        what: the option it was given in, for messages.

    Returns:
        bool[V, V] on the CPU, in row i True where a token may come next after token i.

    Raises:
        DataError: it cannot be read, is not square, or holds something else than 0 and 1.
    """
    if isinstance(given, (str, Path)):
        given = _load_named(str(given), what)
    elif callable(given) and not isinstance(given, Tensor):
        given = _call(given, what)
    table = _table(given, what)
    if table.dim() != 2 or table.shape[0] != table.shape[1] or not len(table):
        raise DataError(
            f"{what}: has the shape {tuple(table.shape)}; it must have a row and a column for each token of the model"
        )
    if table.dtype == torch.bool:
        return table
    wrong = ((table != 0) & (table != 1)).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(
            f"{what}[{row}, {column}] = {table[row, column].item()!r}: must be True (1) where token {column} may "
            f"follow token {row}, else False (0); it is no table of logits to add"
        )
    return table.bool()


def _load_named(name: str, what: str) -> Any:
    path = Path(name).expanduser()
    readers: dict[str, Callable[[Path], Any]] = {".json": _read_json, ".npy": _read_npy}
    if path.suffix.lower() in readers:
        try:
            return readers[path.suffix.lower()](path)
        except FileNotFoundError:
            raise DataError(f"{what} = {name!r}: there is no such file, looked for at {path.absolute()}") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{what} = {name!r}: cannot be read: {error}") from error
    if ":" not in name:
        raise DataError(f"{what} = {name!r}: is no .json or .npy file and no 'module:function'; give {FORMS}")
    target = load_reference(name, what)
    return _call(target, f"{what} = {name!r}") if callable(target) and not isinstance(target, Tensor) else target


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8-sig"))


def _read_npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _call(function: Callable[[], Any], what: str) -> Any:
    try:
        return function()
    except Exception as error:  # a user's function may raise anything
        raise DataError(f"{what}: the function raised {type(error).__name__}: {error}") from error


def _table(given: Any, what: str) -> Tensor:
    if isinstance(given, Tensor):
        return given.detach().cpu()
    if isinstance(given, Sequence) and not isinstance(given, str):
        for i, row in enumerate(given):
            if not isinstance(row, (Sequence, np.ndarray, Tensor)) or len(row) != len(given):
                seen = f"{len(row)} entries" if isinstance(row, (Sequence, np.ndarray, Tensor)) else repr(row)[:60]
                raise DataError(f"{what}[{i}]: is {seen}; each of the {len(given)} rows must have {len(given)} entries")
    try:
        return torch.from_numpy(np.array(given))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: is {given!r:.60} ({type(given).__name__}); give {FORMS}") from error
