"""Tests of the suite: every case runs, and a failing case does not stop the others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import sitting
from benchmarks.places import Unavailable
from rlcore_tools.bench.duel import Duel

PROGRAM = "import json, sys; open('ran.txt', 'a').write(sys.argv[1] + ' '); print(json.dumps({'wall_s': 2.0}))"


@pytest.mark.parametrize("name", sitting.case_names())
def test_listing_a_case_runs_nothing_and_needs_nothing(name: str, tmp_path: Path) -> None:
    case = sitting.load_case(name)
    assert case.TITLE
    try:
        duels = case.duels(tmp_path, quick=True)
    except Unavailable as lacking:
        pytest.skip(str(lacking))
    assert len({one.name for one in duels}) == len(duels)
    scripts = [argv[0] for one in duels for argv in (one.ours, one.theirs, *one.prepare) if argv]
    assert all((sitting.HERE / script).is_file() for script in scripts)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """Replace the cases with three cases of the test."""
    monkeypatch.setattr(sitting, "HERE", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("raise SystemExit('broken on purpose')")

    def lacking(folder: Path, quick: bool) -> list[Duel]:
        raise Unavailable("the moon is not in reach")

    ready = [["program.py", "ready"]]
    good = Duel("good", ["program.py", "a"], ["program.py", "b"], goal=2.0, prepare=ready)
    broken = Duel("bad", ["program.py", "a"], ["broken.py"])
    also = Duel("also", ["program.py", "c"], prepare=ready)
    made = {
        "far": SimpleNamespace(TITLE="far", duels=lacking),
        "first": SimpleNamespace(TITLE="first", duels=lambda folder, quick: [broken, good]),
        "second": SimpleNamespace(TITLE="second", duels=lambda folder, quick: [also]),
    }
    monkeypatch.setattr(sitting, "case_names", lambda: list(made))
    monkeypatch.setattr(sitting, "load_case", made.__getitem__)
    return made


def test_a_failing_program_is_reported_and_the_others_go_on(
    cases: dict[str, SimpleNamespace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sitting.main(["--repeats", "2", "--json", "figures.json"]) == 1
    written = json.loads((tmp_path / "figures.json").read_text())
    assert "broken on purpose" in written["cases"]["first"]["duels"]["bad"]["failure"]
    assert written["cases"]["first"]["duels"]["good"]["ratio"]["median"] == 1.0
    assert written["cases"]["second"]["duels"]["also"]["ours"]["median"] == 2.0
    assert written["cases"]["far"]["unavailable"] == "the moon is not in reach"
    assert all(written[name] for name in ("date", "python", "torch", "transformers"))
    shown = capsys.readouterr().out
    assert "broken on purpose" in shown
    assert "the moon is not in reach" in shown
    assert "failed" in shown


def test_a_goal_that_is_not_reached_does_not_fail_the_suite(cases: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    cases["first"].duels = lambda folder, quick: [Duel("d", ["program.py", "a"], own_goal=0.1)]
    assert sitting.main(["--case", "first", "--repeats", "1", "--json", "figures.json"]) == 0
    assert json.loads((tmp_path / "figures.json").read_text())["cases"]["first"]["duels"]["d"]["reached"] is False


def test_a_preparation_that_several_duels_share_runs_once(cases: dict[str, SimpleNamespace], tmp_path: Path) -> None:
    cases["second"].duels = lambda folder, quick: [
        Duel(name, ["program.py", name], prepare=[["program.py", "ready"]]) for name in ("one", "two")
    ]
    held = sitting.Sitting(sitting.Console(quiet=True), tmp_path / "figures.json", repeats=1, quick=True)
    held.run("second", tmp_path)
    assert (tmp_path / "ran.txt").read_text().split() == ["ready", "one", "two"]
    held.run("second", tmp_path, only="two")
    assert (tmp_path / "ran.txt").read_text().split()[3:] == ["two"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nothing of that name"], "no duel that can run here"),
        (["--repeats", "0"], "at least 1"),
        (["--json", "nowhere/figures.json"], "no such folder"),
    ],
)
@pytest.mark.usefixtures("cases")
def test_a_wrong_argument_is_refused_before_any_program_runs(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sitting.main(words)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "ran.txt").exists()
    assert not (tmp_path / "benchmarks.json").exists()
