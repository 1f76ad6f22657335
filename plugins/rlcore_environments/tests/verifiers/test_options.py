"""What can be known without the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verifiers_options import make

import rlcore_environments.verifiers
from rlcore.errors import ConfigError


def test_without_the_library_the_error_names_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("verifiers", "verifiers.v1", "verifiers.v1.utils"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"'verifiers' is not installed .* that has it in data\.episodes\.python"):
        make().rows("train")


def test_episodes_import_nothing_of_rlcore() -> None:
    folder = Path(rlcore_environments.verifiers.__file__).parent.parent
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import rlcore_environments.verifiers.episodes; "
        "print([name for name in sys.modules if name.split('.')[0] in ('rlcore', 'torch', 'attrs')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taskset": 3}, "taskset = 3: must be text"),
        ({"train_rows": 0}, r"train_rows = 0: must lie in \[1, "),
        ({"timeout_s": 0}, "timeout_s = 0.* must be greater than 0"),
        ({"tasks": "sums"}, "data.environment.tasks: no such option"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)
