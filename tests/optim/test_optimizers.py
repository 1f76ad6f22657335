"""Tests of optimizer and schedule selection: they are resolved by name before a run, and unused options are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers.optimization import get_constant_schedule_with_warmup

from rlcore.components import Component
from rlcore.config import config, option
from rlcore.errors import ConfigError, PluginError, UnknownOptimizer, UnknownScheduler
from rlcore.optim import optimization as optimizer_choice
from rlcore.optim.optimization import Optimizers, sections
from rlcore.plugins import registry
from rlcore.plugins.choice import Chooser, Wrapping
from rlcore.settings import OptimizerConfig
from rlcore_testing.small import make_gpt2
from rlcore_transformers.optimizers.builtin_optimizers import build_constant

Make = Callable[..., Any]


@config
class Inner:
    """Section that contains an optimizer."""

    critic: OptimizerConfig = option(OptimizerConfig(lr=1.0), "of the critic")


@config
class Options:
    """Two optimizers, one of them nested."""

    optimizer: OptimizerConfig = option(OptimizerConfig(lr=0.5), "of the policy")
    inner: Inner = option(Inner(), "further down")
    steps: int = option(3, "of something else")


@config
class Rate:
    """Options with a field that cannot be set."""

    lr: float = option(0.1, "another rate")


@config
class Warm:
    """Options with another such field."""

    num_warmup_steps: int = option(1, "another warm-up")


def follow_a_metric(optimizer: torch.optim.Optimizer) -> Any:
    return ReduceLROnPlateau(optimizer)


def take_anything(groups: list[dict[str, Any]], **given: Any) -> torch.optim.Optimizer:
    assert set(given) == {"lr", "betas"}
    return torch.optim.Adam(groups, **given)


def build_nothing(groups: list[dict[str, Any]], lr: float) -> Any:
    return dict(groups[0], lr=lr)


def told_or_not(optimizer: torch.optim.Optimizer, num_training_steps: int | None = None) -> Any:
    return LambdaLR(optimizer, lambda _: 1.0 if num_training_steps is None else 0.5)


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register invalid third-party components beside the built-in ones."""
    known = registry.registries()
    optimizers = [
        *known.optimizers,
        Component("optimizers", "anything", "acme", "0.3", "", take_anything, None),
        Component("optimizers", "nothing", "acme", "0.3", "", build_nothing, None),
        Component("optimizers", "clashing", "acme", "0.3", "", torch.optim.SGD, Rate),
    ]
    schedulers = [
        *known.schedulers,
        Component("schedulers", "metric", "acme", "0.3", "", follow_a_metric, None),
        Component("schedulers", "either", "acme", "0.3", "", told_or_not, None),
        Component("schedulers", "clashing", "acme", "0.3", "", told_or_not, Warm),
    ]
    plugins = known.discovery.plugins

    class Found:
        optimizers = registry.Registry("optimizers", [], plugins)
        schedulers = registry.Registry("schedulers", [], plugins)
        discovery = known.discovery

    Found.optimizers = registry.Registry("optimizers", optimizers, plugins)
    Found.schedulers = registry.Registry("schedulers", schedulers, plugins)
    monkeypatch.setattr(optimizer_choice, "registries", Found)


def choose(**options: Any) -> Any:
    chooser = Chooser("run.yaml", Wrapping())
    [chosen] = Optimizers(OptimizerConfig(**options), chooser)._declared
    return chosen


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"name": "sgd", "betas": (0.9, 0.9)},
            r"betas = \(0.9, 0.9\): optimizer 'sgd' \(rlcore-transformers .*\) has no such option",
        ),
        ({"name": "sgd", "betas": (0.9, 0.95)}, "has no such option; omit it, or set null"),
        ({"name": "sgd", "eps": 1e-8}, "eps = 1e-08: optimizer 'sgd'"),
        ({"name": "adafactor", "betas": (0.9, 0.9)}, "'adafactor' .* has no such option"),
        ({"name": "sgd", "options": {"momentun": 0.9}}, r"options.momentun: no such option; .* 'momentum'\?"),
        ({"name": "sgd", "options": {"momentum": 1.5}}, r"options.momentum = 1.5: must lie in \[0, 1\)"),
        ({"name": "sgd", "options": {"lr": 0.1}}, "options.lr: no such option"),
        ({"name": "sgd", "options": {"nesterov": True}}, "optimizer 'sgd' .*: Nesterov momentum requires a momentum"),
        ({"name": "adamax", "options": {"momentum": 0.9}}, "options.momentum: 'adamax' has no options"),
        ({"scheduler": "linear", "scheduler_options": {"power": 2}}, "scheduler_options.power: 'linear' has no opt"),
        ({"scheduler": "polynomial", "scheduler_options": {"powre": 2.0}}, r"no such option; did you mean 'power'\?"),
        ({"scheduler": "polynomial", "scheduler_options": {"lr_end": 1.0}}, r"lr_end \(1.0\) must be smaller than"),
        ({"scheduler": "cosine_with_min_lr"}, "exactly one of min_lr and min_lr_rate must be set"),
        ({"scheduler": "cosine_with_min_lr", "scheduler_options": {"min_lr": 1.0}}, "min_lr = 1 must not be above lr"),
        ({"scheduler": "warmup_stable_decay"}, "scheduler_options.num_decay_steps: must be given"),
        (
            {"scheduler": "exponential", "scheduler_options": {"gamma": 0.9}, "warmup_steps": 5},
            "warmup_steps = 5: scheduler 'exponential' .* has no warm-up; omit it",
        ),
    ],
    ids=str,
)
def test_an_option_that_an_optimizer_or_schedule_does_not_have_is_an_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"run.yaml: trainer.*{says}"):
        choose(**options)


def test_all_options_without_effect_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        choose(
            name="sgd", betas=(0.9, 0.9), eps=1.0, scheduler="step", scheduler_options={"step_size": 2}, warmup_steps=1
        )
    assert [line.split(" ")[1] for line in str(caught.value).splitlines()] == [
        "trainer.betas", "trainer.eps", "trainer.warmup_steps",
    ]  # fmt: skip


def test_an_unknown_name_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOptimizer, match=r"no optimizer is called 'adam_w'. Did you mean 'adamw'"):
        choose(name="adam_w")
    with pytest.raises(UnknownOptimizer, match=r"no optimizer is called 'AdamW'. Use optimizer 'adamw'"):
        choose(name="AdamW")
    with pytest.raises(UnknownScheduler, match=r"no scheduler is called 'cosin'. Did you mean 'cosine'"):
        choose(scheduler="cosin")


def test_every_optimizer_in_the_options_is_found_with_its_path() -> None:
    assert [(path, found.lr) for path, found in sections(Options(), "trainer")] == [
        ("trainer.optimizer", 0.5), ("trainer.inner.critic", 1.0),
    ]  # fmt: skip
    assert list(sections(None, "trainer")) == []
    deep = Options(inner=Inner(critic=OptimizerConfig(name="sgd", eps=1.0)))
    with pytest.raises(ConfigError, match=r"^run.yaml: trainer.inner.critic.eps = 1.0: optimizer 'sgd'"):
        Optimizers(deep, Chooser("run.yaml", Wrapping()))


def test_an_optimizer_that_a_trainer_builds_itself_is_checked() -> None:
    found = Optimizers(Options(), Chooser("run.yaml", Wrapping()))
    assert found.get(OptimizerConfig(lr=0.5)) is found._declared[0]
    assert found.get(OptimizerConfig(name="sgd")).optimizer.component.name == "sgd"
    with pytest.raises(UnknownOptimizer):
        found.get(OptimizerConfig(name="sdg"))


@pytest.mark.usefixtures("strangers")
def test_a_builder_that_returns_no_optimizer_is_refused_with_its_package() -> None:
    with pytest.raises(
        PluginError, match=r"'nothing' \(acme 0.3\) built a dict; it must build a torch.optim.Optimizer"
    ):
        choose(name="nothing")
    with pytest.raises(
        PluginError, match=r"'metric' \(acme 0.3\) built a ReduceLROnPlateau; .*whose step\(\) takes no metric"
    ):
        choose(scheduler="metric")


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(("kind", "key"), [("name", "lr"), ("scheduler", "num_warmup_steps")])
def test_an_optimizer_option_with_a_reserved_name_is_an_error_of_its_plugin(kind: str, key: str) -> None:
    with pytest.raises(PluginError, match=rf"'clashing' \(acme 0.3\) has an option '{key}', which cannot be set"):
        choose(**{kind: "clashing"})


@pytest.mark.usefixtures("strangers")
def test_an_optimizer_builder_receives_the_set_options_and_those_it_declares() -> None:
    chosen = choose(name="anything", lr=0.25, betas=(0.5, 0.6))
    weights = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = chosen.build([{"params": [weights]}])
    assert (optimizer.defaults["lr"], optimizer.defaults["betas"]) == (0.25, (0.5, 0.6))
    either = choose(scheduler="either", lr=1.0)
    assert either.schedule(optimizer, None).get_last_lr() == [0.25]
    assert either.schedule(optimizer, 10).get_last_lr() == [0.125]


def test_a_trainer_uses_the_optimizer_that_the_options_name(make_trainer: Make) -> None:
    named = {"name": "sgd", "lr": 0.1, "options": {"momentum": 0.5}, "scheduler": "polynomial", "warmup_steps": 3}
    trainer = make_trainer("sft", make_gpt2(), optimizer=named, inputs={"samples": ["ab", "cd"]})
    raw = trainer.updater.optimizer
    assert type(raw) is torch.optim.SGD
    assert [(group["momentum"], group["weight_decay"]) for group in raw.param_groups] == [(0.5, 0.0)] * 2
    assert all(parameter.dim() > 1 for parameter in raw.param_groups[0]["params"])
    assert all(parameter.dim() == 1 for parameter in raw.param_groups[1]["params"])


@pytest.mark.parametrize(
    "wrong", [{"name": "adamv"}, {"scheduler": "cosin"}, {"name": "sgd", "eps": 1.0}, {"options": {"amsgrat": True}}]
)
def test_wrong_names_and_options_of_optimizers_are_refused_before_anything_is_written(
    wrong: dict[str, Any], make_trainer: Make, tmp_path: Path
) -> None:
    with pytest.raises((UnknownOptimizer, UnknownScheduler, ConfigError)):
        make_trainer("sft", "no-such-model", optimizer=wrong, inputs={"samples": ["ab", "cd"]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_warmup_steps", [0, 1, 3])
def test_the_constant_schedule_is_that_of_transformers(num_warmup_steps: int) -> None:
    rates = []
    for build in (build_constant, get_constant_schedule_with_warmup):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule = build(optimizer, num_warmup_steps)
        rates.append([])
        for _ in range(6):
            rates[-1].append(schedule.get_last_lr())
            optimizer.step()
            schedule.step()
    assert rates[0] == rates[1]


@pytest.mark.slow
def test_a_run_with_the_default_optimizer_imports_no_other_schedules() -> None:
    program = (
        "import sys, rlcore.training.api\n"
        "from rlcore.optim.optimization import Optimizers\n"
        "from rlcore.settings import OptimizerConfig\n"
        "Optimizers().get(OptimizerConfig())\n"
        "sys.exit('transformers.optimization' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
