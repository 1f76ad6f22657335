"""Each law about any component is broken by one that breaks just it, and kept by a right one."""

from __future__ import annotations

from typing import Any

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name

from rlcore.components import Component
from rlcore.errors import RLCoreError
from rlcore_testing import Law, Subject
from rlcore_testing.law import laws_in
from rlcore_testing.laws import components

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
WRONG = [
    Wrong("the_name_is_legal", "upper", "'MyAlgo' is not lower case"),
    Wrong("the_name_is_legal", "long", "with 30 characters at most"),
    Wrong("the_name_is_legal", "dashed", "'algo-' is not"),
    Wrong("the_name_is_not_one_of_rlcores", "shadow", "rlcore has a logger 'console' itself"),
    Wrong("the_target_imports", "lost", "has no attribute 'no_such'"),
    Wrong("the_target_imports", "lost_module", "No module named 'no_such_module'"),
    Wrong("the_target_imports", "number", "is 3, which cannot be called"),
    Wrong("the_target_accepts_its_arguments", "run_alone", "called with (config, run), but takes (run)"),
    Wrong("the_target_accepts_its_arguments", "store_of_a_run", "called with (config), but takes (config, run)"),
    Wrong("the_target_accepts_its_arguments", "sampler_by_position", "(policy, prompts, sampling, generator=...)"),
    Wrong("the_target_accepts_its_arguments", "optimizer_by_position", "(groups, lr=...), but takes (run)"),
    Wrong("the_target_accepts_its_arguments", "schedule_without_options", "(optimizer, width=..., names=...)"),
    Wrong("the_target_pickles", "unpicklable", "does not pickle: no process but this one may have me"),
    Wrong("the_target_pickles", "nameless", "does not pickle: Can't pickle"),
    Wrong(
        "the_example_model_is_the_same_in_every_call",
        "another_each_time",
        "two calls of its `example_model` return different weights (weight, bias)",
    ),
    Wrong("the_summary_is_one_line", "silent", "its summary is ' '"),
    Wrong("the_summary_is_one_line", "talkative", "its summary is 'one\\ntwo'"),
    Wrong("options_are_light", "heavy", "reading wrong_heavy_options:Heavy imports torch"),
    Wrong("options_are_frozen_and_keyword_only", "thawed", "options of Thawed can be changed"),
    Wrong("options_are_frozen_and_keyword_only", "thawed_inside", "options of Thawed can be changed"),
    Wrong("options_are_frozen_and_keyword_only", "placed", "Placed takes width by position"),
    Wrong("every_option_has_a_meaning", "meaningless", "option 'width' has the meaning ''"),
    Wrong("no_option_has_a_reserved_name", "hidden", "users cannot set the option 'name'"),
    Wrong("no_option_has_a_reserved_name", "hidden_architecture", "users cannot set the option 'tokenizer'"),
    Wrong("no_option_has_a_reserved_name", "hidden_optimizer", "users cannot set the option 'eps'"),
    Wrong("defaults_are_valid", "mistyped", "its defaults: width = 2.5: must be a whole number (how wide)"),
    Wrong("defaults_are_valid", "nan", "width = nan: must be a number"),
    Wrong("options_round_trip", "functions", "comes back as Functions(score='builtins:len')"),
    Wrong("options_round_trip", "unequal", "as plain values, Unequal(width=8) comes back as Unequal(width=8)"),
    Wrong("unknown_options_are_refused", "open", "the unknown option 'widthh' is accepted"),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_component_breaks_the_law(case: Wrong) -> None:
    assert_broken(components, case, SUBJECTS[case.who])


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(components, WRONG)


@pytest.mark.parametrize("law", laws_in(components), ids=law_name)
def test_a_right_component_keeps_the_law(law: Law) -> None:
    of_models = law.name == "the_example_model_is_the_same_in_every_call"
    assert_kept(law, some(), but=[law.name] * of_models)
    assert_kept(law, some(kind="schedulers", target=OPTIONS + "schedule"), but=[law.name] * of_models)
    assert_kept(law, some(kind="architectures", target=OPTIONS + "same_each_time"))


FOLLOWING = {
    ("the_target_accepts_its_arguments", "lost"), ("the_target_accepts_its_arguments", "lost_module"),
    ("the_target_pickles", "lost"), ("the_target_pickles", "lost_module"),  # what cannot be imported at all
    ("options_round_trip", "mistyped"), ("options_round_trip", "nan"),  # what cannot be structured at all
}  # fmt: skip
"""What breaks a law because it breaks another."""


@pytest.mark.parametrize("law", [law for law in laws_in(components) if law.name != "options_are_light"], ids=law_name)
def test_a_wrong_component_breaks_no_other_law(law: Law) -> None:
    broken = set()
    for name, subject in SUBJECTS.items():
        try:
            if law.when(subject):
                law(subject)
        except RLCoreError:
            broken.add((law.name, name))
    wanted = {(case.law, case.who) for case in WRONG} | FOLLOWING
    assert broken == {(name, who) for name, who in wanted if name == law.name}
