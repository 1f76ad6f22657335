"""A small git repository with one dist, `seesaw`, and a case that trains with it in no time."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "seesaw"
version = "1"
[tool.hatch.build.targets.wheel]
packages = ["seesaw"]
"""
CODE = """
import json, random, time

def burn(cpu_s):
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass

burn({import_s})

def train(file, seed):
    blocks = [b"x" * {block_mb}_000_000 for _ in range({copies})]  # the noise of a process's memory is small beside it
    level = {level} + random.Random(seed).random()
    burn({burn_s})
    for step in range(1, 11):
        burn({step_s})
        with file.open("a") as out:
            out.write(json.dumps({{"step": step, "reward/mean": level * step, "where": 1.0}}) + "\\n")
"""
CASE = '''"""Go up and down."""
METRIC, BETTER = "reward/mean", "more"

def train(folder, *, seed, quick, data):
    import seesaw
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("run: {seed: 0}")
    seesaw.train(folder / "run" / "metrics.jsonl", seed)
'''


def git(repository: Path, *arguments: str) -> str:
    """Run git in a repository, and return its output."""
    settings = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    command = ["git", "-C", str(repository), *(word for each in settings for word in ("-c", each)), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_code(
    repository: Path,
    *,
    level: float = 1.0,
    burn_s: float = 0.0,
    step_s: float = 0.0,
    import_s: float = 0.0,
    block_mb: int = 40,
    copies: int = 1,
) -> None:
    """Write the dist's module: what it learns up to, what it takes, and what it holds.

    Args:
        repository: the folder of the repository.
        level: where learning ends.
        burn_s, step_s, import_s: CPU seconds that it takes once, in each step, and for imports.
        block_mb: megabytes that it holds.
        copies: how often it holds them.
    """
    (repository / "seesaw").mkdir(exist_ok=True)
    (repository / "seesaw" / "__init__.py").write_text(
        CODE.format(level=level, burn_s=burn_s, step_s=step_s, import_s=import_s, block_mb=block_mb, copies=copies)
    )


def make_repository(folder: Path) -> Path:
    """Make a repository of one commit with the tag `good`."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / ".gitignore").write_text("*.log\n__pycache__/\n")
    (folder / "case.py").write_text(CASE)
    write_code(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "Balance", tag="good")
    return folder


def commit(repository: Path, subject: str, *, tag: str) -> None:
    """Commit everything, and tag the commit."""
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", subject)
    git(repository, "tag", tag)
