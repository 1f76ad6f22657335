"""Each law about commands is broken by one that breaks it, and kept by right ones."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore.plugins.builtin import COMMANDS
from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import commands

WRONG = [
    Wrong("it_returns_the_function_that_runs_it", "silent", "its target returned None"),
    Wrong("help_is_light", "reading", "rlcore acme-wrong:reading --help imports torch"),
    Wrong("help_is_light", "leaving", "--help exits with 3"),
    Wrong("every_argument_has_a_meaning", "unexplained", "its argument --top has no help"),
    Wrong("every_argument_has_a_meaning", "percent", "its help cannot be printed"),
    Wrong("an_unknown_option_is_wrong_usage", "swallowing", "--no-option-of-this-command is accepted"),
    Wrong("an_unknown_option_is_wrong_usage", "scolding", "exits with 1"),
]
pytestmark = pytest.mark.usefixtures("wrong_site")


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_command_breaks_the_law(case: Wrong) -> None:
    assert_broken(commands, case, wrong("commands", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(commands, WRONG)


@pytest.mark.parametrize("name", ["right", "bare"])
@pytest.mark.parametrize("law", laws_in(commands), ids=law_name)
def test_a_right_command_keeps_the_law(law: Law, name: str) -> None:
    assert_kept(law, wrong("commands", name))


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
@pytest.mark.parametrize("law", laws_in(commands), ids=law_name)
def test_the_cores_commands_keep_the_law(law: Law, name: str) -> None:
    assert_kept(law, installed("commands", f"rlcore:{name}"))
