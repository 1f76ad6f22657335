"""Tests that every default package can be left out, and that what is then missing names it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = json.loads((ROOT / "rlcore/plugins/published.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
DEFAULT = dict(re.findall(r"^\| `(rlcore-\w+)` \|(.*)\|$", PAGE, re.MULTILINE))
"""The rows of the table of default packages."""
WITHOUT = """
import importlib.metadata, sys

left_out = {left_out!r}


class Refusing:
    def find_spec(self, name, *_):
        if name.partition(".")[0].replace("_", "-") in left_out:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Refusing())
from rlcore.plugins import metadata

every = metadata.distributions
metadata.distributions = lambda **given: [one for one in every(**given) if one.name not in left_out]
"""
"""Makes packages as absent as if they were not installed: no metadata, no modules."""
COMMAND = """
from rlcore.cli import main

for words in {commands!r}:
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    print(code)
"""
FIND = """
from rlcore.errors import RLCoreError
from rlcore.plugins.registry import registries

kinds = {registry.kind: registry for registry in registries()}
for kind, name in COMPONENTS:
    try:
        kinds[kind].get(name)
    except RLCoreError as error:
        print(str(error).splitlines()[0])
"""


def run_without(left_out: list[str], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RLCORE_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(left_out=left_out) + code],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def registered_by(dist: str) -> list[tuple[str, str]]:
    """Return kind and name of the components that a published package registers."""
    kinds = [kind for kind in PUBLISHED if kind not in {"folders", "requires", "options", "observers", "commands"}]
    return [(kind, name) for kind in kinds for name, one in PUBLISHED[kind].items() if one["dist"] == dist]


def commands_of(dist: str) -> list[str]:
    return [name for name, one in PUBLISHED["commands"].items() if one["dist"] == dist]


def test_the_table_of_packages_left_out_has_every_default_package() -> None:
    known = (
        "transformers",
        "report",
        "shard",
        "tools",
        "environments",
        "rewards",
        "engines",
        "testing",
        "vision",
    )
    assert set(DEFAULT) == {f"rlcore-{name}" for name in known}


@pytest.mark.parametrize("dist", sorted(DEFAULT))
def test_the_row_of_a_package_names_its_commands(dist: str) -> None:
    for command in commands_of(dist):
        assert re.search(rf"`(rlcore )?{command}`", DEFAULT[dist]), command


@pytest.mark.parametrize("dist", [dist for dist in sorted(DEFAULT) if commands_of(dist)])
def test_a_command_of_a_package_that_is_left_out_names_the_package(dist: str, tmp_path: Path) -> None:
    commands = commands_of(dist)
    code = COMMAND.format(commands=[["list-plugins", "--json"], *([command] for command in commands)])
    done = run_without([dist], code, tmp_path)
    assert done.returncode == 0, done.stderr
    *listed, _ = done.stdout.split("\n0\n")
    listed_plugins = json.loads(listed[0])["plugins"]
    other = [plugin["reason"] for plugin in listed_plugins if plugin["state"] != "ok"]
    assert all(reason.startswith(f"needs {dist}") for reason in other), other
    assert dist not in {plugin["dist"] for plugin in listed_plugins}
    assert done.stdout.splitlines()[-len(commands) :] == ["2"] * len(commands)
    errors = [line for line in done.stderr.splitlines() if line.startswith("rlcore: error: ")]
    for command, error in zip(commands, errors, strict=True):
        extra = PUBLISHED["commands"][command].get("extra")
        named = f"'{dist}[{extra}]'" if extra else dist
        assert f"rlcore {command} is a command of {dist}: pip install {named} (" in error


@pytest.mark.slow
@pytest.mark.parametrize("dist", [dist for dist in sorted(DEFAULT) if registered_by(dist)])
def test_a_component_of_a_package_that_is_left_out_names_the_package(dist: str, tmp_path: Path) -> None:
    components = registered_by(dist)
    done = run_without([dist], f"COMPONENTS = {components!r}\n{FIND}", tmp_path)
    assert done.returncode == 0, done.stderr
    for (_, name), said in zip(components, done.stdout.splitlines(), strict=True):
        assert said.startswith("no "), said
        assert f"'{name}'" in said
        assert f"comes with {dist}, which is not installed: pip install " in said
        assert f"{dist}[" in said or f"pip install {dist} (" in said


@pytest.mark.slow
def test_a_checkpoint_of_several_processes_names_the_package_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "model.dcp").mkdir()
    read = """
from pathlib import Path
from rlcore.errors import RLCoreError
from rlcore.sharding import saved_parts

assert saved_parts(Path("absent.dcp")) == {}
try:
    saved_parts(Path("model.dcp"))
except RLCoreError as error:
    print(error)
"""
    done = run_without(["rlcore-shard"], read, tmp_path)
    expected = "model.dcp: checkpoint.format = 'dcp': comes with rlcore-shard, which is not installed: pip install "
    assert done.stdout.startswith(expected), done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_with_an_environment_or_tools_names_the_package_that_plays_episodes(tmp_path: Path) -> None:
    train = """
import rlcore
from rlcore.errors import RLCoreError


class Game:
    def reset(self, row, *, seed):
        return "go"

    def step(self, turn):
        return 1.0


def double(number: int) -> int:
    return 2 * number


for given in ({"environment": Game}, {"tools": [double]}):
    try:
        rlcore.train("no-model", trainer="ppo", prompts=["a"], **given)
    except RLCoreError as error:
        print(error)
"""
    done = run_without(["rlcore-environments"], train, tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2, done.stdout
    for error in said:
        assert error.startswith("train: data.environment = ")
        assert "comes with rlcore-environments, which is not installed: pip install rlcore-environments (" in error
    assert not list(tmp_path.iterdir())  # no run was begun


@pytest.mark.slow
def test_several_processes_name_the_package_that_starts_them(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("trainer: {name: sft}\nmodel: {path: nowhere}\ndata: {samples: [ab]}\n")
    commands = [["train", "sft.yaml", "run.processes=2"], ["sft", "--model", "nowhere", "--data", "a.txt"]]
    commands[1].append("run.processes=2")
    done = run_without(["rlcore-shard"], COMMAND.format(commands=commands), tmp_path)
    assert done.stdout.split() == ["1", "1"], done.stderr
    for error in done.stderr.splitlines():
        assert ": run.processes = 2: comes with rlcore-shard, which is not installed: pip install rlcore-shard" in error


@pytest.mark.nightly
def test_without_the_plugin_for_cpus_the_same_tokens_are_sampled(tmp_path: Path) -> None:
    sample = """
from rlcore import sample
from rlcore.settings import SamplingConfig
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())
prompts = [letter * (1 + i % 20) for i, letter in enumerate("abcdefghij" * 5)]
batch = sample(policy, prompts, SamplingConfig(max_new_tokens=20), row_seeds=range(50))
print("rlcore_transformers.cpu.packed_decoder" in sys.modules)
print(batch.action_tokens)
"""
    switched_off = "import os\nos.environ['RLCORE_DISABLE_PLUGINS'] = 'cpu'\n"
    with_it, without = (run_without([], before + sample, tmp_path) for before in ("", switched_off))
    assert with_it.returncode == without.returncode == 0, with_it.stderr + without.stderr
    (packed, tokens), (padded, same) = with_it.stdout.splitlines(), without.stdout.splitlines()
    assert (packed, padded) == ("True", "False")
    assert same == tokens


@pytest.mark.nightly
def test_the_quickstart_runs_without_any_package_that_its_algorithms_do_not_require(tmp_path: Path) -> None:
    required = {"rlcore-ppo", "rlcore-sft", *PUBLISHED["requires"]["rlcore-ppo"], *PUBLISHED["requires"]["rlcore-sft"]}
    assert required == {"rlcore-ppo", "rlcore-sft", "rlcore-transformers"}
    packages = [file.parent.name.replace("_", "-") for file in ROOT.glob("*/rlcore_*/pyproject.toml")]
    packages += [file.parent.name.replace("_", "-") for file in ROOT.glob("rlcore_*/pyproject.toml")]
    script = ROOT / "docs/examples/randomwalks.py"
    code = f"""
import runpy
sys.argv = ["randomwalks.py", "--epochs", "1", "--steps", "1", "--out", "runs"]
sys.path.insert(0, {str(script.parent)!r})
runpy.run_path({str(script)!r}, run_name="__main__")
print("imported", *sorted({{name.partition(".")[0] for name in sys.modules if name.startswith("rlcore_")}}))
"""
    done = run_without(sorted({*packages} - required), code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "imported rlcore_ppo rlcore_sft rlcore_transformers"
    written = {path.name for path in (tmp_path / "runs/randomwalks-ppo").iterdir()}
    assert {"checkpoints", "completions.jsonl", "config.yaml", "metrics.jsonl", "model"} <= written
    assert "report.html" not in written
