"""Plugins that are installed for one test and visible in this process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlcore.plugins import registry

REWARDS = """
from rlcore.config import config, option


@config
class Options:
    letter: str = option("a", "what is counted")


@hookimpl
def register_rewards(register):
    register("short", lambda outputs: [-float(len(output)) for output in outputs])
    register("letters", "acme_rewards:count", config=Options)


def count(options):
    return lambda outputs: [float(output.count(options.letter)) for output in outputs]
"""
STORE = """
@hookimpl
def register_rollout_stores(register):
    register("shelf", "rlcore.training.rollout:MemoryStore")
"""
TRAINER = """
import torch

spend = lambda ms: None  # has a test's clock go on


class Own:
    needs = ("prompts", "reward_fn")
    default_budget = {"steps": 3}

    def __init__(self, config, run):
        self.run, self.model = run, run.build()
        self.optimizer = torch.optim.SGD(self.model.module.parameters(), lr=1e-2)

    def steps(self):
        while True:
            spend(3)
            prompts = self.run.prompts[:8]
            batch = self.run.sampling.sample(prompts)
            scores = self.run.sampling.score(prompts, batch).scores
            with torch.no_grad():
                self.model.score(batch)
            spend(50)
            loss = -(self.model.score(batch).logprobs.sum(1) * scores).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            spend(7)
            yield {"loss/own": float(loss.detach())}

    def policy(self):
        return self.model

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@hookimpl
def register_trainers(register):
    register("own", Own)
"""
OBSERVER = """
@hookimpl
def {hook}(run):
    {body}
"""


class Plugins:
    """A folder of installed dists, each with one module."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

    def install(self, dist: str, source: str, *, version: str = "0.3") -> None:
        """Install a dist, or another version of it."""
        self.remove(dist)
        module = dist.replace("-", "_")
        (self.folder / f"{module}.py").write_text(f"from rlcore import hookimpl\n\n{source}")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[rlcore]\nmain = {module}\n")

    def remove(self, dist: str) -> None:
        """Remove a dist from this process, including all cached discovery results."""
        module = dist.replace("-", "_")
        for path in self.folder.glob(f"{module}-*.dist-info"):
            shutil.rmtree(path)
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)
        self._monkeypatch.setattr(registry, "_memo", {})

    def __getitem__(self, dist: str) -> ModuleType:
        return sys.modules[dist.replace("-", "_")]


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("RLCORE_DISABLE_PLUGINS", "RLCORE_PLUGINS", "RLCORE_STRICT_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    return Plugins(tmp_path / "site", monkeypatch)


def said_by(run: Path) -> dict[str, str]:
    """Return the plugins listed in the comments of config.yaml."""
    comments = [line.split() for line in (run / "config.yaml").read_text().splitlines() if line.startswith("# plugin ")]
    return {dist: version for _, _, dist, version in comments}
