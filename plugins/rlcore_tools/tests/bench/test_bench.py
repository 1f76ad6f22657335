"""Tests of `rlcore bench` on a small repository, and once on the core itself with a spoiled optimizer.

`RLCORE_SCREENSHOTS=docs/images` also writes the picture of the README.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from browser import four_views, picture
from tiny_repository import CASE, commit, git, make_repository, write_code

from rlcore.cli import main

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository as the current folder, and a folder for temporary files of its own."""
    root = make_repository(tmp_path / "repository")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(root)
    return root


def words(output: str) -> dict[str, str]:
    """Return the word that the table has for each measure."""
    rows = [line.split() for line in output.splitlines() if line.startswith((" case ", " chat "))]
    return {" ".join(row[1:4]).replace(",", ""): row[-2] for row in rows}


def left_behind(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").glob("rlcore-bench-*"))


@pytest.mark.nightly
def test_a_spoiled_version_is_worse_and_the_page_shows_it(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], browser: Any
) -> None:
    write_code(repository, step_s=0.05)
    commit(repository, "Step by step", tag="steady")
    write_code(repository, level=0.2, step_s=0.1)
    commit(repository, "Make <b>bold</b> updates", tag="spoiled")
    page = tmp_path / "page.html"
    argv = ["bench", "spoiled", "--against", "steady", "--case", "case.py", "--seeds", "3", "--out", str(page)]
    assert main(argv) == 0
    output = capsys.readouterr().out
    found = words(output)
    assert found["reward/mean last fifth"] == found["reward/mean whole run"] == "worse"
    assert found["CPU time in"] == found["CPU time of"] == "worse"
    assert found["peak memory MB"] == "same"
    (peak,) = (line.split()[4] for line in output.splitlines() if "peak memory" in line)
    assert float(peak) < 100  # the program's, which is small, and not that of this process, which imports torch
    assert left_behind(tmp_path) == []
    assert git(repository, "status", "--porcelain") == ""

    for number, opened in enumerate(four_views(browser, page.as_uri(), ready=".chart", name="bench")):
        shown = opened.page
        shown.locator(".chart").first.scroll_into_view_if_needed()  # charts are drawn when they are in sight
        shown.wait_for_selector(".chart canvas")
        if number == 0:
            shown.set_viewport_size({"width": 1400, "height": 980})
            shown.evaluate("scrollTo(0, 0)")
            picture(shown, "bench")
        assert shown.locator("h1").inner_text() == "spoiled against steady"
        assert "Make <b>bold</b> updates" in shown.locator("#bench").inner_text()
        assert shown.locator("tr.worse b").all_inner_texts().count("worse") >= 3
        assert shown.locator("h3").first.inner_text() == "case: Reward"
        legend = shown.locator(".chart[data-metric='reward/mean'] .legend").inner_text()
        assert "steady, training" in legend
        assert "spoiled, training" in legend


@pytest.mark.slow
def test_equal_versions_are_the_same_and_uncommitted_changes_are_announced(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "notes.txt").write_text("not committed")
    assert main(["bench", "--against", "good", "--case", "case.py", "--seeds", "3"]) == 0
    output = capsys.readouterr().out
    found = words(output)
    assert found["reward/mean last fifth"] == found["reward/mean whole run"] == "same"
    assert found["peak memory MB"] == "same"
    assert "with uncommitted changes in 1 file" in output
    assert (repository / "bench.html").exists()


@pytest.mark.nightly
def test_a_version_that_keeps_a_second_copy_of_its_memory_is_worse_and_learns_the_same(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_code(repository, block_mb=200)
    commit(repository, "Hold a block", tag="lean")
    write_code(repository, block_mb=200, copies=2)
    assert main(["bench", "--against", "lean", "--case", "case.py", "--seeds", "3"]) == 0
    output = capsys.readouterr().out
    found = words(output)
    assert found["peak memory MB"] == "worse"
    (line,) = (line.split() for line in output.splitlines() if "peak memory" in line)
    before, after = float(line[4]), float(line[5])
    assert after - before == pytest.approx(200e6 / 2**20, rel=0.02)  # one block; the table has 4 digits
    assert float(line[6].removesuffix("%")) == pytest.approx(100 * (after / before - 1), abs=0.2)
    assert found["reward/mean last fifth"] == found["reward/mean whole run"] == "same"


@pytest.mark.nightly
def test_steps_that_take_a_tenth_more_are_worse_beside_long_imports_and_seeds_are_added_until_5_percent_show(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_code(repository, step_s=0.1, import_s=1.0)
    commit(repository, "Take a second", tag="fast")
    write_code(repository, step_s=0.11, import_s=1.0)
    words_of = ["bench", "--against", "fast", "--case", "case.py", "--seeds", "3", "--until", "5%"]
    assert main(words_of) == 0
    output = capsys.readouterr().out
    assert words(output)["CPU time of"] == "worse"
    assert "5 seeds find, in 80 of 100 comparisons, a change of " in output
    (line,) = (line.split() for line in output.splitlines() if "CPU time of" in line)
    assert float(line[-1].removesuffix("%")) <= 5  # could be seen
    assert 7 < float(line[8].removesuffix("%")) < 13


@pytest.mark.nightly
def test_an_interrupted_comparison_reports_the_pairs_that_are_complete(repository: Path, tmp_path: Path) -> None:
    waits = "import time, seesaw; time.sleep(1000 if seed == 2 else 0)"
    (repository / "case.py").write_text(CASE.replace("import seesaw", waits))
    command = [sys.executable, "-m", "rlcore", "bench", "--against", "good", "--case", "case.py", "--out", "page.html"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 600
        while not list((tmp_path / "tmp").glob("rlcore-bench-*/runs/case/*/2")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "case: interrupted after 2 pairs, which are compared" in output
    assert words(output)["reward/mean last fifth"] == "same"
    assert "reward/mean, last fifth" in (repository / "page.html").read_text()
    assert left_behind(tmp_path) == []


@pytest.mark.nightly
def test_a_case_that_fails_in_one_version_is_reported_and_others_go_on(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "later.py").write_text(CASE.replace("import seesaw", "import seesaw; seesaw.NEWER"))
    with (repository / "seesaw" / "__init__.py").open("a") as file:
        file.write("NEWER = True\n")
    argv = ["bench", "--against", "good", "--case", "later.py", "--case", "case.py", "--seeds", "2"]
    assert main(argv) == 1
    output = capsys.readouterr().out
    assert "later: good, seed 1 of 2: timed_case.py failed" in output
    assert "has no attribute 'NEWER'" in output
    assert "reward/mean last fifth" in words(output)
    assert "has no attribute 'NEWER'" in (repository / "bench.html").read_text().replace("\\u0027", "'")


BACKEND = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
NO_BACKEND = '[build-system]\nrequires = ["no-such-backend>=7"]\nbuild-backend = "no_such"\n'


@pytest.mark.parametrize(("project", "said"), [
    ("[project\n", "bad: pyproject.toml is not valid TOML"),
    ('[project]\nname = "seesaw"\nversion = "x y"\n' + BACKEND, "bad: seesaw does not build: its backend"),
    ('[project]\nname = "seesaw"\nversion = "1"\n' + NO_BACKEND, "bad: seesaw needs no-such-backend>=7"),
])  # fmt: skip
def test_a_version_that_does_not_build_is_named_and_nothing_is_left(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], project: str, said: str
) -> None:
    (repository / "pyproject.toml").write_text(project)
    commit(repository, "Break", tag="bad")
    assert main(["bench", "good", "--against", "bad", "--case", "case.py"]) == 1
    assert said in capsys.readouterr().err
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(("argv", "said"), [
    (["--against", "v9"], "v9: is no commit"),
    (["--against", "good", "--case", "chess"], "cases are chat, reviews, walks"),
    (["--against", "good", "--case", "case.py", "--case", "other/case.py"], "two cases have the same name"),
    (["--against", "good", "--out", "nowhere/page.html"], "its folder does not exist"),
])  # fmt: skip
@pytest.mark.usefixtures("repository")
def test_a_mistake_ends_before_anything_is_built(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *argv]) == 1
    assert said in capsys.readouterr().err
    assert left_behind(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_leaves_nothing(repository: Path, tmp_path: Path, sent: signal.Signals) -> None:
    (repository / "case.py").write_text(CASE.replace("import seesaw", "import time; time.sleep(1000)"))
    command = [sys.executable, "-m", "rlcore", "bench", "--against", "good", "--case", "case.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 600
        while not list((tmp_path / "tmp").glob("rlcore-bench-*/runs/case/*/0")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, sent)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "case: interrupted before two pairs were complete; none is compared" in output
    assert left_behind(tmp_path) == []


@pytest.fixture
def rlcore_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of the core, `sft` and `transformers`, with the tag `good`, as the current folder."""
    root = tmp_path / "rlcore"
    root.mkdir()
    for name in ("rlcore", "rlcore_sft", "plugins/rlcore_transformers"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root, "Take it as it is", tag="good")
    monkeypatch.chdir(root)
    return root


def spoil(file: Path, code: str, spoiled: str) -> None:
    found = file.read_text()
    assert code in found
    file.write_text(found.replace(code, spoiled))


@pytest.mark.nightly
def test_rlcore_with_a_spoiled_optimizer_learns_worse(rlcore_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optimizers = rlcore_tree / "plugins/rlcore_transformers/optimizers/builtin_optimizers.py"
    spoil(optimizers, "groups, lr=lr, betas", "groups, lr=lr / 8, betas")
    assert main(["bench", "--against", "good", "--case", "chat", "--quick", "--seeds", "2"]) == 0
    found = words(capsys.readouterr().out)
    assert found["loss/total whole run"] == "worse"
    assert found["peak memory MB"] == "same"


@pytest.mark.nightly
def test_rlcore_with_a_sampler_that_attends_to_padding_answers_worse_and_learns_the_same(
    rlcore_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = rlcore_tree / "plugins/rlcore_transformers/models/decoding/causal_decoder.py"
    spoil(decoder, "self._mask = (columns >= starts).long()", "self._mask = torch.ones_like(columns - starts)")
    assert main(["bench", "--against", "good", "--case", "chat", "--seeds", "2"]) == 0
    found = words(capsys.readouterr().out)
    assert found["answers that padding"] == "worse"
    assert {word for name, word in found.items() if "loss" in name} == {"same"}
    assert found["peak memory MB"] == "same"


@pytest.mark.nightly
def test_rlcore_that_trains_on_prompts_too_answers_worse_however_good_its_own_loss_is(
    rlcore_tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = rlcore_tree / "plugins/rlcore_transformers/data/samples.py"
    spoil(samples, "mask = [False] * len(prompt) + chosen[start:]", "mask = [True] * len(prompt + chosen[start:])")
    assert main(["bench", "--against", "good", "--case", "chat", "--quick", "--seeds", "3"]) == 0
    found = words(capsys.readouterr().out)
    assert found["loss of held-out"] == "worse"
    assert found["loss/total whole run"] == "better"  # the mean of easier tokens
    assert found["answers that padding"] == found["peak memory MB"] == "same"
