"""Each law about loggers is broken by one that breaks just it, and kept by right ones."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import loggers

WRONG = [
    Wrong("it_uses_only_the_run_view", "curious", "it uses trainer"),
    Wrong("nan_and_infinity_are_accepted", "finite", "metrics with nan: raised ValueError: a number that is none"),
    Wrong("keys_may_come_and_go", "table", "raised KeyError: \"the columns are ['loss/policy'"),
    Wrong("completions_of_any_kind_are_accepted", "scored", "3 completions: raised TypeError"),
    Wrong("completions_of_any_kind_are_accepted", "counting", "0 completions: raised ZeroDivisionError"),
    Wrong("arguments_are_not_changed", "popping", "it changes the metrics it receives"),
    Wrong("arguments_are_not_changed", "cutting", "it changes the completions it receives"),
    Wrong("it_writes_in_the_runs_folder_only", "astray", "it writes log.txt into the working folder"),
    Wrong("it_writes_in_the_runs_folder_only", "beside", "it writes log.jsonl beside run.dir"),
    Wrong(
        "it_closes_however_the_run_ended", "clingy", "close(RuntimeError('a test error of\\nseveral lines')) at once"
    ),
    Wrong("it_closes_however_the_run_ended", "untouched", "close(None) at once: raised KeyError: 'kl/mean'"),
    Wrong("close_releases_files_and_threads", "open", "it leaves log.jsonl open; close files"),
    Wrong("close_releases_files_and_threads", "openbeside", "it leaves run-1.jsonl open; close files"),
    Wrong("close_releases_files_and_threads", "openaftercrash", "it leaves log.jsonl open after a crash"),
    Wrong("close_releases_files_and_threads", "running", "it leaves the threads sender running; end them"),
    Wrong("a_resumed_run_keeps_earlier_logs", "overwriting", "log.jsonl is smaller or missing"),
    Wrong("a_resumed_run_keeps_earlier_logs", "overwritingbeside", "run-1.jsonl is smaller or missing"),
    Wrong(
        "a_resumed_run_keeps_earlier_logs",
        "forgetting",
        "metrics of step 1 are gone after a run whose logger was closed",
    ),
    Wrong("a_resumed_run_keeps_earlier_logs", "forgettingbeside", "metrics of step 1, step 2 are gone"),
    Wrong("a_resumed_run_keeps_earlier_logs", "refusing", "", error=FileExistsError),
]
RIGHT = (
    "acme-wrong:right",
    "acme-wrong:declared",
    "acme-wrong:elsewhere",
    "acme-wrong:service",
    "rlcore:console",
    "rlcore:jsonl",
)
pytestmark = pytest.mark.usefixtures("wrong_site")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "GRACE_S", 0.2)


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_logger_breaks_the_law(case: Wrong) -> None:
    assert_broken(loggers, case, wrong("loggers", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(loggers, WRONG)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("law", laws_in(loggers), ids=law_name)
def test_a_right_logger_keeps_the_law(law: Law, name: str) -> None:
    assert_kept(law, installed("loggers", name))


@pytest.mark.parametrize("law", laws_in(loggers), ids=law_name)
def test_a_wrong_logger_breaks_no_other_law(law: Law) -> None:
    broken = set()
    for who in {case.who for case in WRONG}:
        try:
            law(wrong("loggers", who))
        except Exception:  # noqa: BLE001  a wrong logger raises what it likes
            broken.add(who)
    expected = {case.who for case in WRONG if case.law == law.name}
    # What raises wherever nothing usual is logged, or at the end of a failed run, shows in other laws as well.
    assert expected <= broken <= expected | {"untouched", "clingy", "table", "counting", "curious", "scored"}


def test_laws_hold_in_an_environment_with_strict_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    (law,) = (law for law in laws_in(loggers) if law.name == "close_releases_files_and_threads")
    law(wrong("loggers", "right"))
