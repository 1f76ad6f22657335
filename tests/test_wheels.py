"""Tests of the built dists: all wheels are installed in environments isolated from the checkout, once with pip."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 and later
PLACES = ("pyproject.toml", "rlcore_*/pyproject.toml", "plugins/*/pyproject.toml")
PROJECTS = [file for place in PLACES for file in sorted(ROOT.glob(place))]
DECLARED = {
    project["name"]: project
    for file in PROJECTS
    for project in [tomllib.loads(file.read_text(encoding="utf-8"))["project"]]
}
DISTS = dict(zip(DECLARED, [file.parent for file in PROJECTS], strict=True))
PLUGINS = [name for name in DISTS if name != "rlcore" and "rlcore" in DECLARED[name].get("entry-points", {})]
NO_PLUGIN = {"rlcore-testing"}
"""Dists that register nothing: the conformance kit, which tests import."""
NOT_PACKAGED = {"tests", "dist", "pyproject.toml", "README.md", "LICENSE"}
"""Files beside the package in a dist's folder, if that folder is the package itself."""
ROOT_BESIDE = {"CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt"}
BESIDE = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", ".gitignore"}


def test_the_extra_all_requires_every_dist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert [line.partition("[")[0] for line in extras["all"]] == sorted(set(DISTS) - {"rlcore"})


def test_the_table_of_extras_names_what_each_installs() -> None:
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    shown = {
        row[1]: set(re.findall(r"`([^`]+)`", row[2]))
        for row in re.finditer(r"^\| `(rlcore[\w-]*\[.+?\])` \|(.*?)\|", page, re.MULTILINE)
    }
    declared = {
        f"{name}[{extra}]": {re.split(r"[<>=]", line)[0] for line in lines}
        for name in DISTS
        for extra, lines in DECLARED[name].get("optional-dependencies", {}).items()
    }
    assert shown == {name: lines for name, lines in declared.items() if name not in {"rlcore[all]", "rlcore[dev]"}}


def test_every_dist_but_the_kit_is_a_plugin() -> None:
    assert {*DISTS} - {*PLUGINS} == {"rlcore"} | NO_PLUGIN


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without this process's paths and RLCORE_ variables."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RLCORE_", "PYTHON", "PIP_", "WANDB_"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, folder: Path, *kinds: str) -> None:
    targets = [word for kind in kinds for word in ("--target", kind)]
    run(sys.executable, "-m", "hatchling", "build", *targets, "--directory", folder, cwd=source)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel and the sdist of every dist, each into its own folder."""
    folders = {}
    for name, source in DISTS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        build(source, folders[name], "wheel", "sdist")
    return folders


def wheel_of(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(params=sorted(DISTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wheel(name: str, built: dict[str, Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel_of(built[name]))


def package_of(name: str) -> str:
    return name.replace("-", "_")


def package_files(name: str) -> set[str]:
    """Return all files of a package, except those that Python and tools generate."""
    source, package = DISTS[name], package_of(name)
    folder = source / package if source == ROOT else source
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        f"{package}/{path.as_posix()}"
        for path in files
        if not any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)
        and (source == ROOT or not NOT_PACKAGED & {path.parts[0], path.name})
    }


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_every_dist_is_found_and_built_by_make() -> None:
    assert {"rlcore", "rlcore-ppo", "rlcore-sft"} < set(DISTS)
    folders = {folder.name for folder in (ROOT / "plugins").iterdir() if folder.is_dir() and folder.name[0] not in "._"}
    assert folders <= {folder.name for folder in DISTS.values()}
    said = run("make", "--dry-run", "wheels", cwd=ROOT)
    (loop,) = (line for line in said.splitlines() if line.startswith("for dist in"))
    built = loop.removeprefix("for dist in").partition(";")[0].split()
    assert {(ROOT / folder).resolve() for folder in built} == set(DISTS.values())


@pytest.mark.slow
def test_a_wheel_holds_its_whole_package_and_nothing_else(name: str, wheel: zipfile.ZipFile) -> None:
    held = {path for path in wheel.namelist() if ".dist-info/" not in path}
    assert held == package_files(name)
    assert {path.partition("/")[0] for path in held} == {package_of(name)}
    assert f"{package_of(name)}/py.typed" in held


def test_a_wheel_names_its_entry_point_licence_and_python(name: str, wheel: zipfile.ZipFile) -> None:
    points = configparser.ConfigParser()
    for file in (path for path in wheel.namelist() if path.endswith(".dist-info/entry_points.txt")):
        points.read_string(wheel.read(file).decode())
    found = dict(points["rlcore"]) if "rlcore" in points else {}
    short = name.removeprefix("rlcore-") if name != "rlcore" else "core"
    if name not in NO_PLUGIN:
        assert found.pop(short, "") in {"rlcore.plugins.builtin", f"{package_of(name)}.plugin", ""}
    # Parts that can be switched off alone are subpackages with a plugin of their own.
    assert found == {part: f"{package_of(name)}.{part.replace('-', '_')}.plugin" for part in found}
    assert {f"{module.replace('.', '/')}.py" for module in found.values()} <= {*wheel.namelist()}
    metadata = metadata_of(wheel)
    charts = {"page/uPlot.LICENSE", "page/htm-preact.LICENSE"} if name == "rlcore-report" else set()  # libraries
    assert metadata["License-Expression"] == ("Apache-2.0 AND MIT" if charts else "Apache-2.0")
    assert metadata["Requires-Python"] == ">=3.11"
    licences = {path.partition(".dist-info/licenses/")[2]: path for path in wheel.namelist() if "/licenses/" in path}
    assert set(licences) == {"LICENSE", *charts}
    for source, path in licences.items():
        place = ROOT if source == "LICENSE" else DISTS[name]
        assert wheel.read(path).decode() == (place / source).read_text(encoding="utf-8")


def test_a_plugin_declares_the_range_of_the_core(name: str, wheel: zipfile.ZipFile) -> None:
    needed = [line for line in metadata_of(wheel).get_all("Requires-Dist", []) if line.startswith("rlcore")]
    if name == "rlcore":  # the extras name plugins, and nothing else does
        assert all("; extra ==" in line for line in needed)
    else:  # those that use private parts of the core follow every minor version
        lines = (ROOT / "tests/private_imports.txt").read_text(encoding="utf-8").splitlines()
        private = {line.partition(" ")[0].partition(".")[0] for line in lines}
        core, *others = sorted(needed, key=lambda line: line.startswith("rlcore-"))
        assert core == ("rlcore==0.1.*" if package_of(name) in private else "rlcore<0.2,>=0.1")
        assert all(line.partition(";")[0].strip().endswith(("==0.1.*", "<0.2,>=0.1")) for line in others)


@pytest.mark.slow
def test_an_sdist_holds_its_own_files_and_builds_the_same_wheel(
    name: str, built: dict[str, Path], wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    (archive,) = built[name].glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        sdist.extractall(tmp_path / "source", **SAFELY)
    (source,) = (tmp_path / "source").iterdir()
    held = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    own = package_files(name)
    own = own if name == "rlcore" else {path.removeprefix(f"{package_of(name)}/") for path in own}
    assert own <= held
    assert held - own <= BESIDE | (ROOT_BESIDE if name == "rlcore" else set())
    build(source, tmp_path / "wheel", "wheel")
    assert sorted(zipfile.ZipFile(wheel_of(tmp_path / "wheel")).namelist()) == sorted(wheel.namelist())


def test_twine_accepts_every_wheel_and_sdist(built: dict[str, Path], tmp_path: Path) -> None:
    files = [file for folder in built.values() for file in folder.iterdir() if file.suffix in {".whl", ".gz"}]
    assert len(files) == 2 * len(DISTS)
    said = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files, cwd=tmp_path)
    assert said.count("PASSED") == len(files)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of links to all installed packages but ours: the dependencies, without an index."""
    folder = tmp_path_factory.mktemp("others")
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(site).iterdir():
            is_ours = any(package_of(name) in entry.name for name in DISTS)
            if not is_ours and entry.suffix != ".pth" and entry.name.partition("-")[0] not in {"pip", "__pycache__"}:
                (folder / entry.name).symlink_to(entry)
    return folder


def environment(others: Path, folder: Path) -> tuple[Path, Path]:
    """Make a virtual environment in which nothing of ours is installed; return its Python and its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "others.pth").write_text(f"{others}\n", encoding="utf-8")
    assert "None" in run(python, "-c", "import importlib.util; print(importlib.util.find_spec('rlcore'))", cwd=folder)
    return python, site


def install(names: list[str], built: dict[str, Path], others: Path, folder: Path) -> Path:
    """Install wheels with pip in a new virtual environment; return its folder of programs."""
    python, _ = environment(others, folder)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    wheels = [wheel_of(built[name]) for name in names]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", *wheels, cwd=folder)
    run(*pip, "check", cwd=folder)
    return python.parent


def listed(program: list[str | Path], folder: Path) -> dict[str, str]:
    said = json.loads(run(*program, "list-plugins", "--json", cwd=folder))
    return {plugin["dist"]: plugin["state"] for plugin in said["plugins"]}


IMPORT = """
import sys
from rlcore.plugins.registry import all_registries
for plugin in all_registries().discovery.plugins:
    for component in plugin.components:
        if plugin.dist in sys.argv[1:]:
            component.target(), component.config_class()
            print(plugin.dist, component.name)
"""


@pytest.fixture(scope="module")
def forks(others: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Start processes in which nothing of ours is installed, and that need not import torch."""
    folder = tmp_path_factory.mktemp("forks")
    warm = WarmPython(folder, python=environment(others, folder)[0])
    yield warm
    warm.close()


def required_by(name: str) -> set[str]:
    """Return a dist and those of this repository that it requires, and that these require."""
    return _required(name, DECLARED[name].get("dependencies", ()))


def used_by(name: str) -> set[str]:
    """Return the same with what its extras require."""
    further = DECLARED[name].get("optional-dependencies", {}) if name != "rlcore" else {}
    return _required(
        name, [*DECLARED[name].get("dependencies", ()), *(line for each in further.values() for line in each)]
    )


def _required(name: str, lines: Iterable[str]) -> set[str]:
    own = {Requirement(line).name for line in lines} & set(DISTS) - {name}
    return {name, "rlcore"}.union(*(required_by(each) for each in own - {"rlcore"}))


def test_the_requirements_of_a_dist_include_indirect_ones() -> None:
    assert required_by("rlcore") == {"rlcore"}
    assert required_by("rlcore-dpo") == {"rlcore", "rlcore-dpo", "rlcore-transformers"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "alone",
    [
        pytest.param(name, marks=[] if name in {"rlcore", "rlcore-ppo", "rlcore-report"} else [pytest.mark.nightly])
        for name in ("rlcore", *PLUGINS)
    ],
)
def test_the_core_and_a_plugin_install_with_only_their_requirements(
    alone: str, built: dict[str, Path], others: Path, forks: WarmPython, tmp_path: Path
) -> None:
    names = sorted(used_by(alone))
    python, site = environment(others, tmp_path)
    for name in names:  # as pip does, which takes longer, and installs all of them below
        zipfile.ZipFile(wheel_of(built[name])).extractall(site)
    assert listed([python, "-m", "rlcore"], tmp_path) == dict.fromkeys(set(names) - NO_PLUGIN, "ok")
    (tmp_path / "components.py").write_text(IMPORT, encoding="utf-8")
    found = forks.run(["components.py", alone], cwd=tmp_path, environment={"PYTHONPATH": str(site)})
    assert found.returncode == 0, found.stderr
    imported = found.stdout.splitlines()
    assert {line.partition(" ")[0] for line in imported} == {alone} - NO_PLUGIN


TRAIN = """
import json, rlcore
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward
result = rlcore.train(
    make_gpt2(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=toy_reward,
    trainer={"name": "ppo", "rollouts": 4, "batch_size": 4, "epochs": 1}, gen={"max_new_tokens": 3},
    run={"steps": 1}, store="disk", loggers=["tensorboard"],
)
written = [path.name for path in (result.run_dir / "tensorboard").iterdir()]
print(json.dumps([rlcore.__file__, result.metrics["reward/mean"], (result.run_dir / "model").is_dir(), written]))
"""


@pytest.mark.nightly
def test_all_dists_install_together_are_listed_and_train(built: dict[str, Path], others: Path, tmp_path: Path) -> None:
    programs = install(list(DISTS), built, others, tmp_path)
    assert listed([programs / "rlcore"], tmp_path) == dict.fromkeys(set(DISTS) - NO_PLUGIN, "ok")
    assert "list-plugins" in run(programs / "rlcore", "--help", cwd=tmp_path)
    imported = run(programs / "python", "-c", IMPORT, *DISTS, cwd=tmp_path).splitlines()
    assert {line.partition(" ")[0] for line in imported} == set(DISTS) - NO_PLUGIN
    said = run(programs / "python", "-c", TRAIN, cwd=tmp_path).splitlines()[-1]
    file, reward, saved, written = json.loads(said)
    assert Path(file).is_relative_to(programs.parent)
    assert -1 <= reward <= 1
    assert saved
    assert len(written) == 1


@pytest.mark.nightly
def test_the_quickstart_runs_with_the_wheels_of_its_algorithms_and_of_what_they_require(
    built: dict[str, Path], others: Path, tmp_path: Path
) -> None:
    needed = required_by("rlcore-ppo") | required_by("rlcore-sft")
    python, _ = environment(others, tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    links = [word for name in DISTS for word in ("--find-links", built[name])]
    run(*pip, "install", "--quiet", "--no-index", *links, "rlcore", "rlcore-ppo", "rlcore-sft", cwd=tmp_path)
    assert listed([python, "-m", "rlcore"], tmp_path) == dict.fromkeys(needed, "ok")
    script = ROOT / "docs/examples/randomwalks.py"
    run(python, script, "--epochs", "1", "--steps", "1", "--out", tmp_path / "runs", cwd=tmp_path)
    assert (tmp_path / "runs/randomwalks-ppo/model/model.safetensors").is_file()
    assert not list(tmp_path.glob("runs/*/report.html"))
