"""Tests of the generated pages: they match the code: every option, hook, protocol and error, with exact arguments."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlcore.errors
from rlcore import hookspecs
from rlcore.config import describe
from rlcore.hookspecs import hookspec
from rlcore.settings import TrainConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules that generate pages; they are in the documentation folder and are not installed."""
    monkeypatch.syspath_prepend(DOCS)
    import generate
    from generators import docstrings, errors, hooks, houses, protocols

    yield SimpleNamespace(
        main=generate.main, docstrings=docstrings, errors=errors, hooks=hooks, houses=houses, protocols=protocols
    )
    for name in [name for name in sys.modules if name.partition(".")[0] in {"generate", "generators"}]:
        del sys.modules[name]


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, DOCS / "generate.py", "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, "run `make docs`\n" + done.stdout + done.stderr


def test_differing_missing_and_leftover_generated_pages_are_reported(
    generators: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = ["--into", str(tmp_path)]
    assert generators.main(into) == 0
    assert generators.main([*into, "--check"]) == 0
    assert capsys.readouterr().out == ""
    page = tmp_path / "configuration.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("`gen.top_p` | float", "`gen.top_p` | int"), encoding="utf-8")
    (tmp_path / "hooks/on_step.md").unlink()
    (tmp_path / "hooks/on_leap.md").touch()
    assert generators.main([*into, "--check"]) == 1
    named = {line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert named == {"configuration.md", "hooks/on_step.md", "hooks/on_leap.md"}
    assert generators.main(into) == 0
    assert page.read_text(encoding="utf-8") == text
    assert not (tmp_path / "hooks/on_leap.md").exists()


def test_the_page_on_configuration_holds_every_option() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for row in describe(TrainConfig):
        assert f"| `{row.path}` |" in page


def known_hooks() -> dict[str, Any]:
    import pluggy

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return {name: caller.spec for name, caller in vars(manager.hook).items() if not name.startswith("_")}


def test_every_hook_has_a_page_with_its_exact_arguments() -> None:
    for name, spec in known_hooks().items():
        page = (DOCS / f"hooks/{name}.md").read_text(encoding="utf-8")
        table = page.partition("\n## ")[0]
        rows = [line.split("|")[1].strip().strip("`") for line in table.splitlines() if line.startswith("| `")]
        assert rows == list(spec.argnames), name
        written = page.replace("(\n    ", "(")  # a long signature has a line for each argument
        assert f"\n{name}({f'{spec.argnames[0]}: ' if spec.argnames else ') -> '}" in written
        assert f"({name}.md)" in (DOCS / "hooks/index.md").read_text(encoding="utf-8")
        example = (DOCS / f"examples/hooks/{name}.py").read_text(encoding="utf-8")
        assert re.search(rf"@hookimpl(\(tryfirst=True\).*)?\ndef {name}\(", example)
        assert example in page


def test_every_protocol_has_a_page_with_every_method(generators: Any) -> None:
    for name, protocol in generators.protocols.protocols_of().items():
        page = (DOCS / f"protocols/{name}.md").read_text(encoding="utf-8")
        hook = generators.protocols.SHOWN_BY.get(name)
        example = f"examples/protocols/{name}.py" if hook is None else f"examples/hooks/{hook}.py"
        shown = page if hook is None else (DOCS / f"hooks/{hook}.md").read_text(encoding="utf-8")
        assert (DOCS / example).read_text(encoding="utf-8") in shown
        assert hook is None or f"(../hooks/{hook}.md)" in page
        for method, function in inspect.getmembers(protocol, inspect.isfunction):
            if method in vars(protocol) and function.__module__.startswith("rlcore"):
                assert f"\n## {method.strip('_')}\n" in page
                assert all(f"| `{argument}` |" in page for argument in generators.docstrings.parameters(function))


def test_a_hook_that_is_not_documented_exactly_is_refused(generators: Any, tmp_path: Path) -> None:
    def on_leap(run: Any, far: int) -> None:
        """Hear of a leap.

        Args:
            run: the run.
            far: how far.
        """

    def on_lap(run: Any, far: int) -> None:
        """Hear of a lap.

        Args:
            run: the run.
        """

    def on_loop(run: Any, far: int) -> None:
        """Hear of a loop.

        Args:
            far: how far.
            run: the run.
        """

    def on_limp(run: Any) -> None:
        """Hear of a limp.

        Args:
            run: the run.
            far: how far.
        """

    def on_lack(run: Any) -> None: ...

    (tmp_path / "on_leap.py").write_text("ran = True\n")
    (tmp_path / "sittings.toml").touch()
    pages = generators.hooks.pages({"on_leap": hookspec(on_leap)}, tmp_path)
    assert pages.keys() == {"hooks/index.md", "hooks/on_leap.md"}
    assert "on_leap(run: Any, far: int) -> None" in pages["hooks/on_leap.md"]
    for hook, said in [
        (on_lap, r"the hook on_lap takes \(run, far\), and its docstring describes \(run\)"),
        (on_loop, r"describes \(far, run\)"),
        (on_limp, r"takes \(run\), and its docstring describes \(run, far\)"),
        (on_lack, "the hook on_lack has no docstring"),
    ]:
        with pytest.raises(generators.docstrings.Undocumented, match=said):
            generators.hooks.pages({hook.__name__: hook}, tmp_path)
    (tmp_path / "on_leap.py").unlink()
    with pytest.raises(generators.docstrings.Undocumented, match="on_leap has no example"):
        generators.hooks.example("on_leap", DOCS / "examples/hooks")


def test_a_new_hook_needs_a_documented_example(generators: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_leap(run: Any) -> None:
        """Hear of a leap.

        Args:
            run: the run.
        """

    assert set(generators.hooks.hooks_of()) == set(known_hooks())
    monkeypatch.setattr(hookspecs, "on_leap", hookspec(on_leap), raising=False)
    with pytest.raises(generators.docstrings.Undocumented, match="on_leap has no example: write docs/examples/hooks"):
        generators.hooks.pages()


def test_every_error_is_in_the_catalogue(generators: Any, tmp_path: Path) -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    classes = {name: one for name, one in vars(rlcore.errors).items() if inspect.isclass(one)}
    public = {name for name, one in classes.items() if issubclass(one, BaseException)}
    assert all(f"\n## {name}\n" in page and f"setup: raises={name} -->" in page for name in public - {"RLCoreError"})

    class LostKeys(rlcore.errors.RLCoreError):
        """Report keys that are lost."""

    with pytest.raises(generators.docstrings.Undocumented, match="do not agree on LostKeys"):
        generators.errors.pages(generators.errors.error_classes() | {"LostKeys": LostKeys})


def test_the_picture_of_the_packages_has_each_above_those_that_it_requires(generators: Any, tmp_path: Path) -> None:
    needs = {"rlcore": [], "rlcore-a": ["rlcore"], "rlcore-b": ["rlcore", "rlcore_a"], "rlcore-c": ["rlcore-b==0.1.*"]}
    for name, below in needs.items():
        folder = tmp_path if name == "rlcore" else tmp_path / "plugins" / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = ", ".join(f'"{each}"' for each in [*below, "torch>=2"])
        (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\ndependencies = [{lines}]\n')
    found = generators.houses.requirements(tmp_path)
    assert found == {"rlcore-a": set(), "rlcore-b": {"rlcore-a"}, "rlcore-c": {"rlcore-b"}}
    assert [generators.houses.level_of(name, found) for name in sorted(found)] == [0, 1, 2]
    picture = generators.houses.draw(found)
    heights = {name: int(re.search(rf'y="(\d+)"[^>]*>{name}<', picture)[1]) for name in needs}  # type: ignore[index]
    assert heights["rlcore-c"] < heights["rlcore-b"] < heights["rlcore-a"] < heights["rlcore"]
