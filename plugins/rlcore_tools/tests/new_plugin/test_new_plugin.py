"""Writing a plugin: names that can be used, a folder whole or not at all, at once and whatever else is broken."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rlcore
from rlcore.cli import main
from rlcore.errors import PluginNameError, ScaffoldError
from rlcore_testing.laws.components import MAX_NAME
from rlcore_tools.new_plugin.new_plugin_command import KINDS, LONGEST, new_plugin, next_commands, read_name, requirement

HEAVY = ("torch", "transformers", "datasets", "accelerate", "numpy")


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_has_every_file_that_a_published_one_needs(tmp_path: Path, kind: str) -> None:
    written = new_plugin("rlcore-acme-thing", kind=kind, path=tmp_path / "made")
    assert {str(path.relative_to(tmp_path / "made")) for path in written} == files_in(tmp_path / "made") == {
        ".github/workflows/ci.yml", ".gitignore", "LICENSE", "README.md", "example.py", "example.yaml",
        "pyproject.toml", "src/rlcore_acme_thing/__init__.py", "src/rlcore_acme_thing/config.py",
        "src/rlcore_acme_thing/plugin.py", "src/rlcore_acme_thing/py.typed", f"src/rlcore_acme_thing/{kind}.py",
        "tests/test_conformance.py", f"tests/test_{kind}.py",
        *(["learn.py"] if kind == "environment" else []),
    }  # fmt: skip
    project = tomllib.loads((tmp_path / "made" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "rlcore-acme-thing"
    assert project["entry-points"]["rlcore"] == {"acme-thing": "rlcore_acme_thing.plugin"}
    assert Requirement(project["dependencies"][0]).specifier.contains(rlcore.__version__)
    assert "license" not in project  # the author's to choose: until then PyPI refuses the package
    assert "Private :: Do Not Upload" in project["classifiers"]
    assert "No licence has been chosen" in (tmp_path / "made" / "LICENSE").read_text()


def test_a_new_package_contains_no_placeholders(tmp_path: Path) -> None:
    for kind in KINDS:
        for file in new_plugin("acme", kind=kind, path=tmp_path / kind):
            text = file.read_text()
            assert not re.search(r"(?<!\$)\$\{?\w+\}?(?<!\$)", text.replace("${{ matrix.python }}", "")), file
            assert not re.search("TODO|FIXME|package/", text), file
            assert text.endswith("\n") or not text, file


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", "rlcore>=0.1,<0.2"),
        ("0.1.7", "rlcore>=0.1,<0.2"),
        ("0.12.3", "rlcore>=0.12,<0.13"),
        ("1.4.2", "rlcore>=1.4,<2"),
        ("0.2.0.dev1", "rlcore>=0.2.0.dev1,<0.3"),
        ("1.0.0rc1", "rlcore>=1.0.0rc1,<2"),
    ],
)
def test_the_requirement_is_bounded_by_the_next_version_that_may_break_it(version: str, expected: str) -> None:
    assert requirement(version) == expected
    assert Requirement(expected).specifier.contains(version, prereleases=True)


def test_names_follow_from_the_name_of_the_dist() -> None:
    plain, prefixed = read_name("my-algo2", KINDS["trainer"]), read_name("rlcore-my-algo", KINDS["trainer"])
    assert (plain.package, plain.component, plain.title) == ("my_algo2", "my-algo2", "MyAlgo2")
    assert (prefixed.package, prefixed.component, prefixed.title) == ("rlcore_my_algo", "my-algo", "MyAlgo")


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [("my-logger", "logger", "My"), ("logger", "logger", "Logger"), ("my-logger", "reward", "MyLogger")],
)
def test_the_class_of_a_new_package_does_not_repeat_its_kind(name: str, kind: str, title: str) -> None:
    assert read_name(name, KINDS[kind]).title == title


@pytest.mark.parametrize("name", ["a" * LONGEST, "rlcore-" + "a" * LONGEST])
def test_the_longest_name_is_one_that_the_conformance_kit_accepts(name: str) -> None:
    assert len(read_name(name, KINDS["trainer"]).component) == MAX_NAME


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("My_Algo", "lower-case letters, digits and single '-' between them, and begins with a letter; try 'my-algo'"),
        ("my algo!", "try 'my-algo'"),
        ("2-fast", "try 'fast'"),
        ("-x", "try 'x'"),
        ("日本", "begins with a letter$"),
        ("ünï-Böx", "try 'uni-box'"),
        ("", "lower-case letters"),
        ("../up", "try 'up'"),
        ("rlcore-2", "must begin with a letter"),
        ("a" * (LONGEST + 1), f"the limit is {LONGEST}"),
        ("rlcore-" + "a" * (LONGEST + 1), f"the limit is {LONGEST}"),
        ("class", "is a Python keyword"),
        ("json", "would hide the standard library's module 'json'"),
        ("tests", "has another 'tests'"),
        ("rlcore", "rlcore .* is already installed"),
        ("yaml", "would hide the module 'yaml' in"),
        ("pytest", "pytest .* is already installed"),
    ],
)
def test_an_unusable_name_of_a_package_is_refused(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginNameError, match=reason):
        new_plugin(name)
    assert list(tmp_path.iterdir()) == []


def test_a_component_name_that_another_plugin_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PluginNameError, match=r"rlcore .* already has a logger 'console'; choose another name"):
        new_plugin("rlcore-console", kind="logger", path=tmp_path / "made")
    assert new_plugin("rlcore-console", kind="reward", path=tmp_path / "made")  # another kind has no such name


def test_an_existing_folder_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("precious")
    for path in (None, Path("dangling"), Path("file")):
        with pytest.raises(ScaffoldError, match="exists and is not overwritten"):
            new_plugin("acme", path=path)
    assert files_in(tmp_path) == {"file"}
    assert list((tmp_path / "acme").iterdir()) == []


def test_a_folder_made_in_the_meantime_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        target.mkdir()
        (target / "theirs").write_text("precious")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(ScaffoldError, match="cannot be written"):
        new_plugin("acme", path=tmp_path / "made")
    assert files_in(tmp_path) == {"made/theirs"}


def test_a_new_package_needs_an_existing_parent_folder(tmp_path: Path) -> None:
    with pytest.raises(ScaffoldError, match=r"its parent folder .* does not exist"):
        new_plugin("acme", path=tmp_path / "no" / "such")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nth", [0, 5, 13])
def test_a_failing_disk_leaves_no_half_written_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    write, calls = Path.write_text, iter(range(100))

    def failing(self: Path, *arguments: object, **options: object) -> int:
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(ScaffoldError, match="No space left on device"):
        new_plugin("acme", path=tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_new_package_has_the_permissions_of_any_new_folder(tmp_path: Path) -> None:
    new_plugin("acme", path=tmp_path / "made")
    (tmp_path / "usual").mkdir()
    for made in (tmp_path / "made", tmp_path / "made" / "src"):
        assert stat.S_IMODE(made.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_the_command_prints_the_files_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "acme", "--kind", "store", "--path", "my store"]) == 0
    said = capsys.readouterr().out
    files, _, commands = said.partition("\nnext:\n")
    assert {line.removeprefix("my store/") for line in files.splitlines()} == files_in(tmp_path / "my store")
    shown = [line.strip() for line in commands.splitlines()]
    assert shown == ["cd 'my store' && pip install -e \".[dev]\"", "pytest", "rlcore list-plugins"]
    assert next_commands("acme", kind="environment")[-1] == "python learn.py"
    assert next_commands("acme")[::2] == ['cd acme && pip install -e ".[dev]"', "rlcore train example.yaml"]
    assert main(["new-plugin", "acme", "--path", "my store"]) == 1
    assert capsys.readouterr().err.startswith("ScaffoldError: my store: exists")
    assert main(["new-plugin", "Acme"]) == 1
    assert "try 'acme'" in capsys.readouterr().err


def test_new_plugin_imports_nothing_heavy_and_works_while_plugins_are_broken(tmp_path: Path) -> None:
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlcore]\nbroken = broken_plugin\n")
    (tmp_path / "site" / "broken_plugin.py").write_text("raise SystemExit(3)\n")
    code = (
        "import sys\nfrom rlcore.cli import main\nassert main(['new-plugin', 'acme']) == 0\n"
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "RLCORE_STRICT_PLUGINS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "acme" / "pyproject.toml").is_file()
