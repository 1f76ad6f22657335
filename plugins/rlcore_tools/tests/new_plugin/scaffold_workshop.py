"""An environment of a stranger's, and its shell."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import attrs

# No network: what builds the package is installed already.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@attrs.frozen
class Workshop:
    """Hold a folder with an environment that sees what this one has, and whose `pip` installs into itself."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    def run(self, command: str, *, cwd: str = ".", timeout: float = 300) -> str:
        """Run a line of shell that must succeed; return what it said."""
        kept = {name: value for name, value in os.environ.items() if not re.match("RLCORE_|PYTEST_|PYTHON", name)}
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder / cwd, env={**kept, **OFFLINE, "PATH": path}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        said: str = done.stdout
        return said
