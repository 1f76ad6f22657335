"""Tests that modules which have moved are imported by their old names too."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore import _moved


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A package `acme_rooms` that was `rlcore.rooms`, and one that is not installed."""
    inner = tmp_path / "acme_rooms/inner"
    inner.mkdir(parents=True)
    (tmp_path / "acme_rooms/__init__.py").write_text("loads = []\n")
    (inner / "__init__.py").write_text("")
    (inner / "chair.py").write_text("import acme_rooms\nacme_rooms.loads.append(__name__)\nclass Chair: ...\n")
    (tmp_path / "acme_rooms/broken.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = {"rlcore.rooms": "acme_rooms", "rlcore.rooms.old": "acme_rooms.inner", "rlcore.gone": "acme_gone.rooms"}
    monkeypatch.setattr(_moved, "MOVED", table)
    yield monkeypatch
    for name in [name for name in sys.modules if name.startswith(("acme_rooms", "rlcore.rooms", "rlcore.gone"))]:
        del sys.modules[name]


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize("old", ["rlcore.rooms.inner.chair", "rlcore.rooms.old.chair"])
def test_a_module_has_one_copy_under_its_old_and_its_new_name(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"rlcore\.rooms.* has moved: import acme_rooms"):
        module = importlib.import_module(old)
    assert module is importlib.import_module("acme_rooms.inner.chair")
    assert importlib.import_module("acme_rooms").loads == ["acme_rooms.inner.chair"]


@pytest.mark.usefixtures("moved")
def test_the_warning_names_the_line_that_imports() -> None:
    with pytest.warns(DeprecationWarning, match="has moved") as caught:
        from rlcore.rooms import inner  # type: ignore[import-not-found]
    assert inner.__name__ == "acme_rooms.inner"
    assert {Path(warning.filename).name for warning in caught} == {"test_moved.py"}


@pytest.mark.usefixtures("moved")
def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^rlcore\.gone has moved to acme_gone\.rooms: pip install .*gone$"):
        importlib.import_module("rlcore.gone")


@pytest.mark.usefixtures("moved")
def test_an_import_that_fails_inside_a_moved_module_names_what_it_lacks() -> None:
    with pytest.warns(DeprecationWarning, match="rooms"), pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("rlcore.rooms.broken")


def test_the_table_is_read_as_the_json_that_it_is() -> None:
    assert json.loads(Path(_moved.__file__).with_name("moved.json").read_text(encoding="utf-8")) == _moved.MOVED


def test_every_module_in_the_table_exists_under_its_new_name_and_not_under_its_old_one() -> None:
    root = Path(_moved.__file__).parent
    for old, new in _moved.MOVED.items():
        module = importlib.import_module(new.partition(":")[0])
        if ":" in old:
            assert hasattr(module, new.partition(":")[2])
            continue
        place = root.joinpath(*old.split(".")[1:])
        assert not (place / "__init__.py").exists(), old
        assert not place.with_suffix(".py").exists(), old


def test_a_name_that_has_moved_is_found_where_it_was(moved: pytest.MonkeyPatch) -> None:
    moved.setattr(
        _moved, "MOVED", {"rlcore.rooms:Chair": "acme_rooms.inner.chair:Chair", "rlcore.rooms:Bed": "acme_gone:Bed"}
    )
    load = _moved.moved_names("rlcore.rooms")
    with pytest.warns(
        DeprecationWarning, match=r"^rlcore\.rooms\.Chair has moved: import it from acme_rooms\.inner\.chair$"
    ):
        assert load("Chair") is importlib.import_module("acme_rooms.inner.chair").Chair
    with (
        pytest.warns(DeprecationWarning, match="Bed"),
        pytest.raises(ModuleNotFoundError, match=r"rlcore\.rooms:Bed .*: pip install"),
    ):
        load("Bed")
    with pytest.raises(AttributeError, match=r"module 'rlcore\.rooms' has no attribute 'Table'"):
        load("Table")
