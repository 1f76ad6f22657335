"""Tests of logit masks: every accepted form gives the same table, and anything else is refused with an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import DataError
from rlcore_transformers.data.pipelines import load_logit_mask

ROWS = [[True, False, True], [False, True, True], [False, False, True]]
WANTED = torch.tensor(ROWS)
MODULE = """
import numpy as np
TABLE = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1]])
def table(): return TABLE.astype(bool)
def raises(): raise KeyError("no tokens")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("house_masks", None)
    (tmp_path / "house_masks.py").write_text(MODULE)
    (tmp_path / "mask.json").write_text(json.dumps(ROWS))
    (tmp_path / "numbers.json").write_text(json.dumps([[int(v) for v in row] for row in ROWS]))
    (tmp_path / "broken.json").write_text("[[true, false]")
    np.save(tmp_path / "mask.npy", np.array(ROWS))
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    return tmp_path


FORMS: dict[str, Any] = {
    "tensor": WANTED, "numbers": WANTED.long(), "floats": WANTED.float(), "array": np.array(ROWS), "lists": ROWS,
    "tuples": tuple(map(tuple, ROWS)), "rows of arrays": [np.array(row) for row in ROWS], "function": lambda: ROWS,
    "module:function": "house_masks:table", "module:array": "house_masks:TABLE", "json": "mask.json",
    "json of numbers": "numbers.json", "npy": Path("mask.npy"), "gradient": WANTED.float().requires_grad_(),
}  # fmt: skip


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_logit_mask_gives_the_same_table(form: str) -> None:
    read = load_logit_mask(FORMS[form])
    assert read.dtype == torch.bool
    assert torch.equal(read, WANTED)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(2, 3), r"logit_mask: has the shape \(2, 3\); it must have one row and one column per token"),
        (torch.ones(3), r"logit_mask: has the shape \(3,\)"),
        ([], r"logit_mask: has the shape \(0,\)"),
        ([[1, 0], [1]], r"logit_mask\[1\]: has 1 entries; each of the 2 rows must have 2 entries"),
        ([[1, 0], 3], r"logit_mask\[1\]: is 3; each of the 2 rows"),
        ([[1, 0], [0.5, 1]], r"logit_mask\[1, 0\] = 0.5: must be True \(1\) where token 0 may follow token 1"),
        (
            np.array([[0.0, -np.inf], [0.0, 0.0]]),
            r"logit_mask\[0, 1\] = -inf: .*a table of logits to add is not supported",
        ),
        ([["a", "b"], ["c", "d"]], r"logit_mask: is .*\(list\); pass a tensor or array of booleans"),
        (3, r"logit_mask: has the shape \(\)"),
        ("mask", r"logit_mask = 'mask': is neither a .json or .npy file nor 'module:function'"),
        ("gone.npy", r"logit_mask = 'gone.npy': there is no such file: /"),
        ("broken.json", r"logit_mask = 'broken.json': cannot be read: "),
        ("objects.npy", r"logit_mask = 'objects.npy': cannot be read: .*allow_pickle"),
        ("house_masks:nothing", r"logit_mask = 'house_masks:nothing': .* has no 'nothing', only .*'TABLE'"),
        ("house_masks:raises", r"logit_mask = 'house_masks:raises': the function raised KeyError: 'no tokens'"),
        ("no_such_module:f", r"importing 'no_such_module' failed"),
    ],
)
def test_a_malformed_logit_mask_is_named(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_logit_mask(given)


def test_reading_a_mask_does_not_change_the_callers_object() -> None:
    given = WANTED.clone()
    load_logit_mask(given)
    assert torch.equal(given, WANTED)
