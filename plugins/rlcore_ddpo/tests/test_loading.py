"""What importing the package loads and prints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from warm_python import WarmPython

SCRIPT = """
import sys
import rlcore_ddpo.trainer
print("diffusers" in sys.modules)
from rlcore_ddpo.pipeline_loading import build_stable_diffusion
print("diffusers" in sys.modules)
build_stable_diffusion.example_model()
print("diffusers" in sys.modules)
"""


@pytest.mark.slow
def test_only_building_a_pipeline_imports_diffusers_without_messages_about_optional_packages(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    (tmp_path / "load.py").write_text(SCRIPT)
    done = warm_python.run(["load.py"], cwd=tmp_path, environment=os.environ)
    assert (done.stdout.splitlines(), done.stderr) == (["False", "False", "True"], "")
