"""Tests of the comparison of identities: every difference is named, and refused unless it is accepted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlcore.checkpoints.checkpoint import Checkpoint
from rlcore.checkpoints.identity import check_identity, flatten, record_processes
from rlcore.errors import CheckpointError, ConfigError

THEN = flatten({"trainer": {"name": "ppo", "optimizer": {"lr": 0.1, "eps": 1}}, "data": {"prompts": "a"}, "world": 2})
VERSIONS = {"rlcore": "0.1.0"}


def resume(now: dict[str, Any], *accept: str, plugins: dict[str, str] = VERSIONS, **manifest: Any) -> dict[str, Any]:
    written = {"step": 7, "plugins": VERSIONS, "identity": THEN, **manifest}
    return check_identity(now, Checkpoint(Path("ckpt"), written), accept=accept, plugins=plugins)


def test_every_difference_is_named_with_both_values_and_the_option_that_accepts_it() -> None:
    assert resume(dict(THEN)) == {"identity": THEN, "accepted_changes": []}
    changed = {**THEN, "trainer.optimizer.lr": 0.2, "data.prompts": "b", "gen.top_k": 5}
    with pytest.raises(ConfigError) as caught:
        resume(changed)
    assert str(caught.value) == (
        "ckpt was written by a run with other values: data.prompts was 'a', is 'b'; gen.top_k was 'not there', is 5; "
        "trainer.optimizer.lr was 0.1, is 0.2. Resume with the original ones, continue with these by "
        "run.accept_changes=[data.prompts,gen.top_k,trainer.optimizer.lr], or start a new run from ckpt/model"
    )
    with pytest.raises(ConfigError, match=r"other values: data\.prompts was 'a', is 'b'\. Resume"):
        resume(changed, "trainer", "gen.top_k")


def test_accepted_changes_are_recorded_after_earlier_ones() -> None:
    changed = {**THEN, "trainer.optimizer.lr": 0.2, "world": 1}
    earlier = {"step": 3, "name": "gen.top_k", "was": 1, "now": 2}
    assert resume(changed, "trainer.optimizer", "world", accepted_changes=[earlier]) == {
        "identity": changed,
        "accepted_changes": [
            earlier,
            {"step": 7, "name": "trainer.optimizer.lr", "was": 0.1, "now": 0.2},
            {"step": 7, "name": "world", "was": 2, "now": 1},
        ],
    }


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("data.promts", "did you mean 'data.prompts'"),
        ("train", "did you mean 'trainer'"),
        ("gpu", "there are data, tr"),
    ],
)
def test_accepting_an_unknown_option_causes_a_warning_and_accepts_nothing(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for checkpoint in (None, Checkpoint(Path("ckpt"), {"identity": THEN, "plugins": {}, "step": 1})):
        assert (
            check_identity(THEN, checkpoint, accept=[name, "trainer.optimizer", "world"], plugins={})["identity"]
            == THEN
        )
        (line,) = capsys.readouterr().err.splitlines()
        assert "nothing that is compared has this name" in line
        assert f"name={name}" in line
        assert hint in line
    with pytest.raises(ConfigError, match=r"data\.prompts was 'a', is 'b'"):
        resume({**THEN, "data.prompts": "b"}, name)


def test_the_number_of_processes_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert record_processes(None, 2, is_exact=True) == {"changed_processes": []}
    earlier = {"step": 3, "was": 1, "now": 4, "is_exact": True}
    checkpoint = Checkpoint(Path("ckpt"), {"step": 7, "world": 4, "changed_processes": [earlier]})
    assert record_processes(checkpoint, 4, is_exact=False) == {"changed_processes": [earlier]}
    assert capsys.readouterr().err == ""
    for is_exact, logged in ((True, "info"), (False, "draws other random numbers than without the change")):
        changes = record_processes(checkpoint, 2, is_exact=is_exact)["changed_processes"]
        assert changes == [earlier, {"step": 7, "was": 4, "now": 2, "is_exact": is_exact}]
        assert logged in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "hint"),
    [
        ("", ". Resume"),
        ("day, hour", " (it is the variable day: data.chat_template_options={day: '1 Jul'}). Resume"),
    ],
)
def test_the_time_that_a_template_renders_is_named_where_rows_are_others(variables: str, hint: str) -> None:
    def dated(day: str, **more: Any) -> dict[str, Any]:
        return {**THEN, "data.rendered_time": day, "data.rendered_time_variables": variables, **more}

    assert resume(dated("2 Jul"), identity=dated("1 Jul"))["accepted_changes"] == []
    explained = (
        "data.prompts was 'a', is 'b'. The chat template renders the time, which was '1 Jul' then and is '2 Jul' now, "
        f"so that data.prompts may have other tokens though the data is the same{hint}"
    )
    with pytest.raises(ConfigError, match=re.escape(explained)):
        resume(dated("2 Jul", **{"data.prompts": "b"}), identity=dated("1 Jul"))
    for now, then in ((dated("1 Jul"), dated("1 Jul")), (dated("1 Jul"), THEN), (THEN, dated("1 Jul"))):
        with pytest.raises(ConfigError, match=r"data\.prompts was 'a', is 'b'\. Resume"):
            resume({**now, "data.prompts": "b"}, identity=then)


def test_another_trainer_cannot_be_accepted() -> None:
    with pytest.raises(CheckpointError, match="was written by trainer 'ppo', and 'sft' cannot resume from it"):
        resume({**THEN, "trainer.name": "sft"}, "trainer")


@pytest.mark.parametrize("accept", [(), ("run",), ("run.seed", "data")])
def test_another_seed_is_refused_because_it_would_have_no_effect(accept: tuple[str, ...]) -> None:
    """Random generators and the order of rows go on from the checkpoint's."""
    then = {**THEN, "run.seed": 0}
    changed = {**then, "run.seed": 1, "gen.top_k": 5}
    with pytest.raises(ConfigError) as caught:
        resume(changed, *accept, identity=then)
    assert str(caught.value) == (
        "ckpt was written by a run with other values: gen.top_k was 'not there', is 5; run.seed was 0, is 1. Resume "
        "with the original ones, (run.seed cannot change: random numbers and the order of rows go on from the "
        "checkpoint's) continue with other gen.top_k by run.accept_changes=[gen.top_k], or start a new run from "
        "ckpt/model"
    )
    with pytest.raises(ConfigError, match=r"run\.seed was 0, is 1\. Resume with the original ones, \(run\.seed cannot"):
        resume({**then, "run.seed": 1}, *accept, identity=then)


def test_options_that_another_version_added_or_removed_are_no_changes(capsys: pytest.CaptureFixture[str]) -> None:
    newer = {name: value for name, value in THEN.items() if name != "trainer.optimizer.eps"} | {"gen.new": 1}
    with pytest.raises(ConfigError, match=r"trainer\.optimizer\.eps was 1, is 'not there'"):
        resume(newer)
    assert resume(newer, plugins={"rlcore": "0.2.0"})["accepted_changes"] == []
    assert "gen.new was 'not there', is 1" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"other values: data\.reward_fn\.f was 'not there', is 1\. Resume"):
        resume({**newer, "data.reward_fn.f": 1}, plugins={"rlcore": "0.2.0"})
