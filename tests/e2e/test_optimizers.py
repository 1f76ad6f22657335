"""Tests of third-party optimizers and schedules in a run: recorded, wrapped, resumed, and reported if missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_plugins import Plugins, plugins, said_by
from e2e_processes import assert_same_run, newest_checkpoint
from e2e_scenarios import train

from rlcore import errors

__all__ = ["plugins"]  # a fixture

OPTIMIZER = """
import torch
from rlcore.config import config, option


@config
class SignOptions:
    keep: float = option(0.5, "share of the last mean in the next", ge=0, lt=1)


@hookimpl
def register_optimizers(register):
    register("sign", "acme_sign:Sign", config=SignOptions, summary="the sign of a running mean")


class Sign(torch.optim.Optimizer):
    def __init__(self, groups, *, lr, keep):
        super().__init__(groups, {"lr": lr, "keep": keep})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in (each for each in group["params"] if each.grad is not None):
                mean = self.state[each].setdefault("mean", torch.zeros_like(each))
                mean.lerp_(each.grad, 1 - group["keep"])
                each.sub_(group["lr"] * mean.sign())
"""
SCHEDULER = """
from torch.optim.lr_scheduler import LambdaLR


@hookimpl
def register_schedulers(register):
    register("saw", "acme_saw:saw", summary="up and down")


def saw(optimizer, *, num_training_steps):
    return LambdaLR(optimizer, lambda step: 1.0 + step % 2 + num_training_steps / 100)
"""
WRAPPER = """
import functools

built = []


@hookimpl
def wrap_component(component):
    if component.kind not in ("optimizers", "schedulers"):
        return None

    def around(build):
        @functools.wraps(build)
        def counted(*args, **given):
            built.append((component.name, sorted(given)))
            return build(*args, **given)
        return counted
    return around
"""
TUNED = {"name": "sign", "lr": 1e-3, "options": {"keep": 0.25}, "scheduler": "saw", "max_grad_norm": 0.0}
CHANGES = {"trainer": {"optimizer": TUNED}, "run": {"steps": 4}}


def losses(run: Path, name: str = "loss/total") -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


@pytest.fixture
def acme(plugins: Plugins) -> Plugins:
    plugins.install("acme-sign", OPTIMIZER, version="1.4")
    plugins.install("acme-saw", SCHEDULER, version="0.9")
    return plugins


@pytest.mark.slow
@pytest.mark.usefixtures("acme")
def test_optimizers_and_schedules_of_packages_train_and_are_recorded_with_their_versions(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", {**CHANGES, "run": {"steps": 12}})
    seen = losses(tmp_path / "run")
    assert min(seen[-3:]) < seen[0]
    assert losses(tmp_path / "run", "lr")[:4] == pytest.approx([1.12e-3, 2.12e-3, 1.12e-3, 2.12e-3])
    assert {"acme-sign": "1.4", "acme-saw": "0.9"}.items() <= said_by(tmp_path / "run").items()
    manifest = json.loads((newest_checkpoint(tmp_path / "run") / "manifest.json").read_text())
    assert {"acme-sign": "1.4", "acme-saw": "0.9"}.items() <= manifest["plugins"].items()
    assert manifest["config"]["trainer"]["optimizer"]["options"] == {"keep": 0.25}


@pytest.mark.usefixtures("acme")
def test_an_installed_optimizer_that_a_run_does_not_use_is_not_recorded(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", {"run": {"steps": 0}})
    assert not {"acme-sign", "acme-saw"} & said_by(tmp_path / "run").keys()


@pytest.mark.slow
def test_builders_of_optimizers_and_schedules_are_wrapped(acme: Plugins, tmp_path: Path) -> None:
    acme.install("acme-watch", WRAPPER)
    train("sft_config", tmp_path, "wrapped", CHANGES)
    assert acme["acme-watch"].built == [("sign", ["keep", "lr"]), ("saw", ["num_training_steps"])]
    acme.remove("acme-watch")
    train("sft_config", tmp_path, "plain", CHANGES)
    assert_same_run(tmp_path / "plain", tmp_path / "wrapped")


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        TUNED,
        {"name": "sgd", "lr": 0.1, "options": {"momentum": 0.9, "nesterov": True}, "scheduler": "constant"},
        {"name": "adafactor", "lr": 1e-2, "scheduler": "cosine", "warmup_steps": 2},
    ],
    ids=lambda given: given["name"],
)
@pytest.mark.usefixtures("acme")
def test_a_resumed_run_equals_an_uninterrupted_one(optimizer: dict[str, Any], tmp_path: Path) -> None:
    whole = {"trainer": {"optimizer": optimizer}, "run": {"steps": 6}}
    train("sft_config", tmp_path, "whole", whole)
    stopped = train("sft_config", tmp_path, "parted", whole, "SIGINT@2")
    assert stopped.run.step == 4
    train("sft_config", tmp_path, "parted", {**whole, "run": {"steps": 6, "resume": "auto"}})
    assert_same_run(tmp_path / "whole", tmp_path / "parted")


@pytest.mark.slow
def test_resuming_without_the_package_of_the_optimizer_names_what_to_install(acme: Plugins, tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", CHANGES)
    acme.remove("acme-sign")
    with pytest.raises(errors.UnknownOptimizer, match=r"acme-sign 1.4, which is not installed: pip install acme-sign"):
        train("sft_config", tmp_path, "run", {**CHANGES, "run": {"steps": 6, "resume": "auto"}})


@pytest.mark.usefixtures("acme")
def test_resuming_with_another_optimizer_is_refused(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", CHANGES)
    other = {"trainer": {"optimizer": {"name": "sgd"}}, "run": {"steps": 6, "resume": "auto"}}
    with pytest.raises(errors.ConfigError, match=r"trainer.optimizer.name was 'sign', is 'sgd'"):
        train("sft_config", tmp_path, "run", other)


@pytest.mark.usefixtures("acme")
def test_an_option_that_the_optimizer_does_not_have_is_refused(tmp_path: Path) -> None:
    message = r"weight_decay = 0.1: optimizer 'sign' \(acme-sign 1.4\) has no such option"
    with pytest.raises(errors.ConfigError, match=message):
        train("sft_config", tmp_path, "run", {"trainer": {"optimizer": {**TUNED, "weight_decay": 0.1}}})
    assert not (tmp_path / "run").exists()
