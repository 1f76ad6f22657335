"""Load a logit mask: which tokens may follow each token, as a boolean tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.components import describe_error
from rlcore.config.plain import from_json
from rlcore.config.yaml_files import existing_path
from rlcore.data.user_code import load_reference
from rlcore.errors import DataError
from rlcore.safe_text import shorten

FORMS = (
    "a tensor or array of booleans, nested lists, a function that returns one, 'module:function', or the path of a "
    ".json or .npy file"
)


def load_logit_mask(source: Any, what: str = "logit_mask") -> Tensor:
    """Load a logit mask of any form.

    Args:
        source: V rows of V booleans (or 0 and 1), in one of FORMS.
        what: the option that holds it, for errors.

    Returns:
        bool[V, V] on the CPU; entry [i, j] is True if token j may follow token i.

    Raises:
        DataError: the source cannot be read, is not square, or contains other values than 0 and 1.
    """
    if isinstance(source, (str, Path)):
        source = _load_named(str(source), what)
    elif callable(source) and not isinstance(source, Tensor):
        source = _call(source, what)
    table = _table(source, what)
    if table.dim() != 2 or table.shape[0] != table.shape[1] or not len(table):
        raise DataError(
            f"{what}: has the shape {tuple(table.shape)}; it must have one row and one column per token of the model"
        )
    if table.dtype == torch.bool:
        return table
    wrong = ((table != 0) & (table != 1)).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(
            f"{what}[{row}, {column}] = {table[row, column].item()!r}: must be True (1) where token {column} may "
            f"follow token {row}, else False (0); a table of logits to add is not supported"
        )
    return table.bool()


def _load_named(name: str, what: str) -> Any:
    path = existing_path(name) or Path(name)
    readers: dict[str, Callable[[Path], Any]] = {".json": _read_json, ".npy": _read_npy}
    if path.suffix.lower() in readers:
        try:
            return readers[path.suffix.lower()](path)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{what} = {name!r}: there is no such file: {path.absolute()}") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{what} = {name!r}: cannot be read: {error}") from error
    if ":" not in name:
        raise DataError(f"{what} = {name!r}: is neither a .json or .npy file nor 'module:function'; pass {FORMS}")
    target = load_reference(name, what)
    return _call(target, f"{what} = {name!r}") if callable(target) and not isinstance(target, Tensor) else target


def _read_json(path: Path) -> Any:
    return from_json(path.read_text(encoding="utf-8-sig"))


def _read_npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _call(function: Callable[[], Any], what: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise DataError(f"{what}: the function raised {describe_error(error)}") from error


def _table(mask: Any, what: str) -> Tensor:
    if isinstance(mask, Tensor):
        return mask.detach().cpu()
    if isinstance(mask, Sequence) and not isinstance(mask, str):
        for i, row in enumerate(mask):
            if not isinstance(row, (Sequence, np.ndarray, Tensor)) or len(row) != len(mask):
                is_row = isinstance(row, (Sequence, np.ndarray, Tensor))
                problem = f"has {len(row)} entries" if is_row else f"is {shorten(row, 60)}"
                raise DataError(f"{what}[{i}]: {problem}; each of the {len(mask)} rows must have {len(mask)} entries")
    try:
        return torch.from_numpy(np.array(mask))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: is {shorten(mask, 60)} ({type(mask).__name__}); pass {FORMS}") from error
