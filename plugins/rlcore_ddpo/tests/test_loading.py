"""What importing the package loads and prints."""

from __future__ import annotations

import os
from pathlib import Path

from warm_python import WarmPython

SCRIPT = """
import sys

class Refusing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torchvision":
            raise ImportError(name)

sys.meta_path.insert(0, Refusing())
import rlcore_ddpo.trainer
print([name for name in ("diffusers", "torchvision") if name in sys.modules])
import rlcore_ddpo.pipeline_loading
print([name for name in ("diffusers", "torchvision") if name in sys.modules])
"""


def test_only_building_a_pipeline_loads_diffusers_which_needs_no_torchvision_and_prints_nothing(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    (tmp_path / "load.py").write_text(SCRIPT)
    done = warm_python.run(["load.py"], cwd=tmp_path, environment=os.environ)
    assert (done.stdout.splitlines(), done.stderr) == (["[]", "['diffusers']"], "")
