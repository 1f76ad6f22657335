"""What is written works as it is: it passes its own tests, trains, and is clean by its own settings."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scaffold_workshop import Workshop

from rlcore_tools.new_plugin.new_plugin_command import KINDS, LONGEST, new_plugin

CHILD = Path(__file__).with_name("scaffold_child.py")
WARM = Path(__file__).resolve().parents[4] / "tests" / "warm"
OTHERS = [kind for kind in KINDS if kind != "trainer"]


def python(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_package_passes_ruff_whatever_its_name(tmp_path: Path) -> None:
    for kind in KINDS:
        for number, name in enumerate(("q", "rlcore-acme-one", "rlcore-" + "a" * LONGEST)):
            new_plugin(name, kind=kind, path=tmp_path / f"{kind}-{number}")
    python("-m", "ruff", "check", "--no-cache", ".", cwd=tmp_path)
    python("-m", "ruff", "format", "--no-cache", "--check", ".", cwd=tmp_path)


@pytest.mark.nightly
def test_a_new_package_passes_mypy_strict(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # What mypy knows of torch takes it half a minute to find out.
    kept = getattr(request.config, "cache", None)  # absent with -p no:cacheprovider
    cache = tmp_path / "cache" if kept is None else kept.mkdir("mypy-scaffold")
    files = []
    for kind in KINDS:
        folder = tmp_path / kind
        new_plugin(f"acme-{kind}", kind=kind, path=folder)
        (folder / "tests" / "test_conformance.py").rename(folder / "tests" / f"test_conformance_{kind}.py")
        (folder / "example.py").rename(folder / f"example_{kind}.py")
        files += [f"{kind}/src", f"{kind}/tests", f"{kind}/example_{kind}.py"]
    files.append("environment/learn.py")
    settings = str(tmp_path / "trainer" / "pyproject.toml")
    assert "strict = true" in Path(settings).read_text()
    python("-m", "mypy", "--config-file", settings, "--cache-dir", str(cache), *files, cwd=tmp_path)


@pytest.mark.nightly
def test_the_printed_commands_install_test_and_train(stranger: Workshop) -> None:
    said = stranger.run("rlcore new-plugin acme-first --path './acme first'")
    commands = [line.strip() for line in said.partition("next:\n")[2].splitlines()]
    assert len(commands) == 3
    assert commands[-1] == "rlcore train example.yaml"
    (stranger.folder / "acme first" / "gpt2").symlink_to(stranger.folder / "gpt2")
    done = stranger.run("\n".join(["set -e", *commands]), timeout=1200)
    assert re.search(r"\d+ passed", done)
    assert not re.search(r"\d+ (failed|skipped|xfailed|error)", done)
    assert "finished: 10 steps" in done


@pytest.mark.nightly
def test_every_other_plugin_passes_its_own_tests(stranger: Workshop) -> None:
    # One process imports torch once, and its laws fork; for the trainer the printed commands are run as they are.
    folders = " ".join(f"acme-{kind}/tests" for kind in OTHERS)
    forking = f"PYTHONPATH={shlex.quote(str(WARM))} pytest -p warm_fixtures"
    said = stranger.run(f"{forking} --rootdir . --import-mode importlib {folders}", timeout=1200)
    assert not re.search(r"\d+ (failed|skipped|xfailed|error)", said)
    for kind in OTHERS:
        assert re.search(rf"^acme-{kind}/tests/test_conformance.py \.+", said, re.MULTILINE), said
        assert re.search(rf"^acme-{kind}/tests/test_{kind}.py \.+", said, re.MULTILINE), said


@pytest.mark.slow
def test_every_plugin_is_listed_and_ok(stranger: Workshop) -> None:
    shown = json.loads(stranger.run("rlcore list-plugins --json"))["plugins"]
    ours = {plugin["dist"]: plugin for plugin in shown if plugin["dist"].startswith("acme-")}
    for name, kind in KINDS.items():
        plugin = ours[f"acme-{name}"]
        assert plugin["state"] == "ok", plugin
        assert plugin["components"] == {kind.registry: [f"acme-{name}"]}


@pytest.mark.nightly
def test_every_example_trains(stranger: Workshop) -> None:
    stranger.run(f"python {CHILD} . examples")
    for kind in KINDS:
        rewards = []
        for run in ("python", "yaml"):
            folder = stranger.folder / f"acme-{kind}" / "runs" / run
            used = (folder / "config.yaml").read_text()
            assert re.search(rf"\bacme-{kind}\b", used), used
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            rewards.append([line["eval/reward/mean"] for line in lines if "eval/reward/mean" in line])
        assert rewards[0] == rewards[1] != []  # one configuration in two languages
    assert "1,reward/mean," not in (stranger.folder / "acme-logger/runs/yaml/metrics.csv").read_text()  # every: 2
    assert "1,eval/reward/mean," in (stranger.folder / "acme-logger/runs/yaml/metrics.csv").read_text()


@pytest.mark.nightly
def test_a_new_game_is_learned_and_the_reward_before_and_after_is_printed(stranger: Workshop) -> None:
    said = stranger.run("OMP_NUM_THREADS=1 python learn.py", cwd="acme-environment", timeout=1200)
    found = re.search(r"mean reward: (\d\.\d\d) before training, (\d\.\d\d) after; 1 is the best\n\nnext:", said)
    assert found, said
    before, after = map(float, found.groups())
    assert before < 0.3
    assert after > 0.8
    assert "the longest game after training:\n  assistant: " in said


@pytest.mark.slow
def test_the_trainer_template_is_in_step_with_the_published_package(stranger: Workshop) -> None:
    said = stranger.run(f"python {CHILD} . in_step")
    ours, theirs = json.loads(said.splitlines()[-1]).values()
    assert len(ours["metrics"]) > 2
    assert ours["weights"] == theirs["weights"]
    for mine, published in zip(ours["metrics"], theirs["metrics"], strict=True):
        assert {
            "reward/mean",
            "reward/std",
            "loss/policy",
            "grad/norm",
            "lr",
        } <= mine.keys() or "eval/reward/mean" in mine
        assert mine == {key: published[key] for key in mine}


@pytest.mark.slow
def test_the_readme_of_a_new_package_lists_its_options(stranger: Workshop) -> None:
    for kind in KINDS:
        readme = (stranger.folder / f"acme-{kind}" / "README.md").read_text()
        tabled = re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)
        shown = json.loads(stranger.run(f"rlcore show acme-{kind} --json"))["shown"][0]["options"]
        known = {row["path"].partition(".")[0]: row for row in shown}
        if kind == "architecture":  # those of causal_lm are only referred to
            assert tabled == ["frozen"]
            assert "frozen" in known
            continue
        assert set(tabled) == set(known)


@pytest.mark.slow
def test_the_readme_of_a_new_package_contains_its_examples(stranger: Workshop) -> None:
    for kind in KINDS:
        folder = stranger.folder / f"acme-{kind}"
        readme = (folder / "README.md").read_text()
        for example in ("example.py", "example.yaml"):
            assert f"\n{(folder / example).read_text()}```\n" in readme
