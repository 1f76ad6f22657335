"""What is published: each wheel and sdist holds its own package and nothing of its neighbours."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

Python = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
DISTS = {
    "rlcore": (ROOT, {"core": "rlcore.plugin"}),
    "rlcore_ppo": (ROOT / "rlcore_ppo", {"ppo": "rlcore_ppo.plugin"}),
    "rlcore_sft": (ROOT / "rlcore_sft", {"sft": "rlcore_sft.plugin"}),
}


def build(source: Path, folder: Path, kind: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="module", params=sorted(DISTS))
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def wheel(package: str, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(DISTS[package][0], tmp_path_factory.mktemp("wheel"), "wheel"))


def package_files(package: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")} | {f"{package}/py.typed"}


def test_a_wheel_holds_its_whole_package_and_nothing_else(package: str, wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == package_files(package)


def test_a_wheel_names_its_entry_point_licence_and_python(package: str, wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    assert dict(points["rlcore"]) == DISTS[package][1]
    metadata = metadata_of(wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    (licence,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(licence).decode() == (ROOT / "LICENSE").read_text()


def test_an_algorithm_says_which_core_it_needs(package: str, wheel: zipfile.ZipFile) -> None:
    needed = [line for line in metadata_of(wheel).get_all("Requires-Dist", []) if line.startswith("rlcore")]
    assert needed == ([] if package == "rlcore" else ["rlcore<0.2,>=0.1"])


def test_an_sdist_holds_its_own_files_and_builds_the_same_wheel(
    package: str, wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    (tmp_path / "sdist").mkdir()
    (tmp_path / "wheel").mkdir()
    with tarfile.open(build(DISTS[package][0], tmp_path / "sdist", "sdist")) as sdist:
        sdist.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    held = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    own = package_files(package)
    own = own if package == "rlcore" else {name.removeprefix(f"{package}/") for name in own}
    assert own <= held
    allowed = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", ".gitignore"}
    allowed |= {"CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt"} if package == "rlcore" else set()
    assert held - own <= allowed
    rebuilt = zipfile.ZipFile(build(source, tmp_path / "wheel", "wheel"))
    assert sorted(rebuilt.namelist()) == sorted(wheel.namelist())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install all wheels into one folder, away from the repository."""
    folder = tmp_path_factory.mktemp("site")
    for package, (source, _) in DISTS.items():
        built = build(source, tmp_path_factory.mktemp(package), "wheel")
        zipfile.ZipFile(built).extractall(folder)
    return folder


def run_with(site: Path, python: Python, code: str) -> str:
    done = python("-c", code, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    stdout: str = done.stdout
    return stdout


def test_plugins_are_discovered_from_wheels_outside_the_repository(site: Path, python: Python) -> None:
    code = (
        "import json, rlcore, rlcore_ppo, rlcore_sft\n"
        "from rlcore.registry import registries\n"
        "files = [module.__file__ for module in (rlcore, rlcore_ppo, rlcore_sft)]\n"
        "print(json.dumps([files, [[plugin.dist, plugin.state] for plugin in registries().discovery.plugins]]))"
    )
    files, states = json.loads(run_with(site, python, code))
    assert files == [str(site / package / "__init__.py") for package in DISTS]
    assert {dist: state for dist, state in states if dist.startswith("rlcore")} == {
        "rlcore": "ok",
        "rlcore-ppo": "ok",
        "rlcore-sft": "ok",
    }


def test_the_wheels_train_by_ppo_outside_the_repository(site: Path, python: Python) -> None:
    code = (
        "import json, rlcore\n"
        "from rlcore.testing.small import make_gpt2, make_tokenizer\n"
        "result = rlcore.train(\n"
        "    make_gpt2(), tokenizer=make_tokenizer(),\n"
        "    trainer={'name': 'ppo', 'rollouts': 4, 'batch_size': 4, 'epochs': 1},\n"
        "    reward_fn=lambda outputs: [float(len(output)) for output in outputs], prompts=['ab', 'c'],\n"
        "    gen={'max_new_tokens': 3}, run={'steps': 1}, loggers=[],\n"
        ")\n"
        "print(json.dumps([rlcore.__file__, result.metrics['reward/mean'], (result.run_dir / 'model').is_dir()]))"
    )
    file, reward, saved = json.loads(run_with(site, python, code).splitlines()[-1])
    assert file == str(site / "rlcore" / "__init__.py")
    assert 0 <= reward <= 3
    assert saved
