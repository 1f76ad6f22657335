"""Components for laws about any component: a right one, and those that differ from it in one thing."""

from __future__ import annotations

from typing import Any

from rlcore.components import Component
from rlcore_testing import Subject

OPTIONS = "wrong_options:"


def some(
    *, kind: str = "trainers", name: str = "algo", target: Any = OPTIONS + "algorithm", config: Any = OPTIONS + "Right",
    summary: str = "an algorithm",
) -> Subject:  # fmt: skip
    component: Component[Any] = Component(kind, name, "acme", "0.3", summary, target, config)
    return Subject("acme", (), component)


SUBJECTS = {
    "upper": some(name="MyAlgo"),
    "long": some(name="a-name-of-more-than-thirty-chars"),
    "dashed": some(name="algo-"),
    "shadow": some(kind="loggers", name="console"),
    "lost": some(target="wrong_options:no_such"),
    "lost_module": some(target="no_such_module:algorithm"),
    "number": some(target="wrong_options:number"),
    "unpicklable": some(target="wrong_options:unpicklable"),
    "nameless": some(target="wrong_options:nameless"),
    "run_alone": some(target=OPTIONS + "takes_one"),
    "store_of_a_run": some(kind="rollout_stores"),
    "sampler_by_position": some(kind="samplers", target=OPTIONS + "takes_one", config=None),
    "another_each_time": some(kind="architectures", target=OPTIONS + "another_each_time"),
    "silent": some(summary=" "),
    "talkative": some(summary="one\ntwo"),
    "heavy": some(config="wrong_heavy_options:Heavy"),
    "thawed": some(config=OPTIONS + "Thawed"),
    "thawed_inside": some(config=OPTIONS + "ThawedInside"),
    "placed": some(config=OPTIONS + "Placed"),
    "meaningless": some(config=OPTIONS + "Meaningless"),
    "hidden": some(config=OPTIONS + "Hidden"),
    "hidden_architecture": some(
        kind="architectures", target=OPTIONS + "architecture", config=OPTIONS + "HiddenFromArchitectures"
    ),
    "hidden_optimizer": some(kind="optimizers", target=OPTIONS + "optimizer", config=OPTIONS + "HiddenFromOptimizers"),
    "optimizer_by_position": some(kind="optimizers", target=OPTIONS + "takes_one", config=None),
    "schedule_without_options": some(kind="schedulers", target=OPTIONS + "optimizer"),
    "mistyped": some(config=OPTIONS + "Mistyped"),
    "nan": some(config=OPTIONS + "OutOfRange"),
    "functions": some(config=OPTIONS + "Functions"),
    "unequal": some(config=OPTIONS + "Unequal"),
    "open": some(config=OPTIONS + "Open"),
}
