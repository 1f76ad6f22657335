"""Test of the public API: every importable public name and signature is recorded, so that changes are deliberate.

`public_api.txt` beside this file has one line for every public name. To accept a change, run this file:

    python tests/test_public_api.py
"""

from __future__ import annotations

import ast
import difflib
import enum
import functools
import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SNAPSHOT = HERE / "public_api.txt"
ACCEPT = "python tests/test_public_api.py"
MODULES = [
    "rlcore",
    "rlcore.checkpoints",
    "rlcore.child",
    "rlcore.components",
    "rlcore.config",
    "rlcore_transformers.data.chat",
    "rlcore_engines.asynchronous",
    "rlcore_environments.player",
    "rlcore_environments.recorded",
    "rlcore_transformers.data.pipelines",
    "rlcore_transformers.data.prompts",
    "rlcore_transformers.data.rows",
    "rlcore_transformers.data.samples",
    "rlcore_transformers.data.sources",
    "rlcore.data.text",
    "rlcore_transformers.data.tokens",
    "rlcore.data.user_code",
    "rlcore.errors",
    "rlcore.hookspecs",
    "rlcore.logging",
    "rlcore.loggers",
    "rlcore_transformers.models.causal",
    "rlcore_transformers.models.policy",
    "rlcore_reward.config",
    "rlcore_reward.scorer",
    "rlcore_rewards",
    "rlcore_transformers.models.model_options",
    "rlcore_transformers.models.tokenizers",
    "rlcore.ops",
    "rlcore.optim",
    "rlcore.profiling",
    "rlcore.protocols",
    "rlcore.ranks",
    "rlcore_tools.plan.workload",
    "rlcore.plugins.registry",
    "rlcore.rewards",
    "rlcore.safe_text",
    "rlcore.sampling",
    "rlcore.settings",
    "rlcore.sharding",
    "rlcore.checkpoints.state",
    "rlcore.training",
    "rlcore_testing",
    "rlcore_testing.small",
    "rlcore.types",
    "rlcore_ddpo.pipeline_loading",
    "rlcore_ilql.config",
    "rlcore_ilql.loss",
    "rlcore_ppo.config",
    "rlcore_ppo.loss",
    "rlcore_ppo.trainer",
    "rlcore_transformers.preferences.preferences",
    "rlcore_sft.config",
    "rlcore_sft.loss",
    "rlcore_shard.parallel_files",
    "rlcore_shard.local_processes",
    "rlcore_shard.shards",
    "rlcore_tools.trl_functions",
    "rlcore_vision.image_store",
    "rlcore_vision.tiny_families",
]
OPERATORS = {"__call__", "__contains__", "__getitem__", "__iter__", "__len__"}


class Verbatim:
    """Text shown in a signature as it was written, without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def public_names(module: types.ModuleType) -> list[str]:
    """Return the names in `__all__`, else the module's own definitions without underscores and TypeVars."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    names = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AnnAssign) else []
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    hidden = {name for name in names if name.startswith("_") or isinstance(getattr(module, name), TypeVar)}
    return sorted(names - hidden)


def is_dispatched(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, functools._lru_cache_wrapper)


def show_type(annotation: Any) -> str:
    if inspect.isclass(annotation) and not isinstance(annotation, types.GenericAlias):
        home = annotation.__module__
        return annotation.__qualname__ if home in {"builtins", "typing"} else f"{home}.{annotation.__qualname__}"
    return str(annotation).replace("typing.", "").replace("~", "")


def show_value(value: Any) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__module__}.{value.__qualname__}".removeprefix("builtins.")
    if value is ...:
        return "..."
    if attrs.has(type(value)):  # only options that differ from the defaults of their own class
        fields = [(field, getattr(value, field.name)) for field in attrs.fields(type(value))]
        changed = [f"{field.name}={show_value(one)}" for field, one in fields if one != field.default]
        return f"{type(value).__name__}({', '.join(changed)})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def show_signature(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(
            annotation=each.annotation if each.annotation is empty else Verbatim(show_type(each.annotation)),
            default=each.default if each.default is empty else Verbatim(show_value(each.default)),
        )
        for each in signature.parameters.values()
    ]
    returns = signature.return_annotation
    shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{shown}" if returns is empty else f"{shown} -> {show_type(returns)}"


def own_classes(cls: type) -> list[type]:
    """Return a class after those of its bases that no public module offers, whose members are listed as its own."""
    ours = (base for base in reversed(cls.__mro__[1:]) if base.__module__.split(".")[0].startswith("rlcore"))
    return [*(base for base in ours if public_home(base) is None), cls]


def members(cls: type) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Yield name, kind and function of each public method and property that a class defines."""
    written = {name: value for each in own_classes(cls) for name, value in vars(each).items()}
    for name, value in sorted(written.items()):
        own_init = name == "__init__" and not attrs.has(cls) and not getattr(cls, "_is_protocol", False)
        if name.startswith("_") and name not in OPERATORS and not own_init:
            continue
        if isinstance(value, property | functools.cached_property):
            function = value.fget if isinstance(value, property) else value.func
            assert function is not None
            yield name, "property ", function
        elif isinstance(value, classmethod | staticmethod):
            yield name, f"{type(value).__name__} ", value.__func__
        elif inspect.isfunction(value):
            yield name, "", value


def show_class(where: str, cls: type) -> Iterator[str]:
    named = vars(cls).get("__orig_bases__", cls.__bases__)
    bases = [show_type(base).removeprefix(f"{cls.__module__}.") for base in named if base is not object]
    how = " attrs" if attrs.has(cls) else ""
    yield f"{where}: class({', '.join(bases)}){how}"
    if issubclass(cls, enum.Enum):
        yield from (f"{where}.{each.name} = {each.value!r}" for each in cls)
        return
    fields = {field.name: field for field in attrs.fields(cls)} if attrs.has(cls) else {}
    written = {name: given for each in own_classes(cls) for name, given in inspect.get_annotations(each).items()}
    for name, annotation in written.items():
        if name.startswith("_"):
            continue
        default = vars(cls).get(name, attrs.NOTHING)
        if name in fields:
            default = fields[name].default
        shown = "" if default is attrs.NOTHING or inspect.isdatadescriptor(default) else f" = {show_default(default)}"
        keyword = "*, " if name in fields and fields[name].kw_only else ""
        yield f"{where}.{name}: {keyword}{show_type(annotation)}{shown}"
    for name, kind, function in members(cls):
        yield f"{where}.{name}: {kind}{show_signature(function)}"


def show_default(default: Any) -> str:
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # attrs types the class as a function
        return f"{show_value(default.factory)}()"
    return show_value(default)


@functools.cache
def public_home(value: Any) -> str | None:
    """Return the public module under which a value is listed: its own, else the first module that exports it."""
    if value.__module__ in MODULES:
        return str(value.__module__)
    name = value.__name__
    offers = (each for each in MODULES if name in public_names(importlib.import_module(each)))
    return next((each for each in offers if getattr(importlib.import_module(each), name) is value), None)


def show_name(module: str, name: str) -> Iterator[str]:
    where, value = f"{module}.{name}", getattr(importlib.import_module(module), name)
    if (inspect.isclass(value) or is_dispatched(value)) and public_home(value) not in {None, module}:
        yield f"{where} is {public_home(value)}.{value.__qualname__}"
    elif inspect.isclass(value):
        yield from show_class(where, value)
    elif is_dispatched(value):
        yield f"{where}: {show_signature(value)}"
    elif isinstance(value, str | int | float | tuple | dict | frozenset | list | types.GenericAlias):
        yield f"{where} = {show_value(value)}"
    else:
        yield f"{where}: {type(value).__name__}"


def public_api() -> list[str]:
    """Return the public names of all modules, one per line."""
    return [
        " ".join(line.split())
        for module in MODULES
        for name in public_names(importlib.import_module(module))
        if name != "__version__"
        for line in show_name(module, name)
    ]


def public_functions() -> Iterator[tuple[str, Any]]:
    """Yield every public class, function, method and property, with its full name."""
    for module in MODULES:
        for name in public_names(importlib.import_module(module)):
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value):
                yield f"{module}.{name}", value
                yield from ((f"{module}.{name}.{member}", function) for member, _, function in members(value))
            elif is_dispatched(value):
                yield f"{module}.{name}", value


@pytest.mark.slow
def test_the_public_api_changes_only_on_purpose() -> None:
    recorded, found = SNAPSHOT.read_text(encoding="utf-8").splitlines(), public_api()
    changes = list(difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=0))
    if changes:
        shown = "\n".join(line for line in changes if not line.startswith("@@"))
        pytest.fail(f"the public API has changed:\n{shown}\nIf this is meant, run: {ACCEPT}", pytrace=False)


def test_every_public_name_has_a_docstring() -> None:
    operators = OPERATORS | {"__init__"}
    silent = [name for name, value in public_functions() if not value.__doc__ and name.split(".")[-1] not in operators]
    assert not silent


def test_everything_public_is_fully_annotated() -> None:
    bare = []
    for name, value in public_functions():
        if inspect.isclass(value):
            continue
        signature = inspect.signature(value)
        given = [each for each in signature.parameters.values() if each.name not in {"self", "cls"}]
        bare += [f"{name}({each.name})" for each in given if each.annotation is inspect.Parameter.empty]
        bare += [f"{name} -> ?"] * (signature.return_annotation is inspect.Signature.empty)
    assert not bare


def test_pages_examples_and_new_plugins_import_public_names_only() -> None:
    pages = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "docs/examples").rglob("*.py")),
    ]
    pages += sorted((ROOT / "plugins/rlcore_tools/new_plugin/templates").rglob("*.tmpl"))
    imported = r"^\s*from (rlcore[\w.]*) import|^\s*import (rlcore[\w.]*)"
    part = r"^\s*from (rlcore[\w.]*) import (\w+)$"
    named = r"^\| `(rlcore[\w.]*)` \|.*\|"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        used = {"".join(found) for found in re.findall(imported, text, re.MULTILINE)}
        modules = {f"{home}.{name}": home for home, name in re.findall(part, text, re.MULTILINE)}
        used -= {home for name, home in modules.items() if name in MODULES and home not in MODULES}
        used |= set(re.findall(named, text, re.MULTILINE)) if page.name == "plugins.md" else set()
        assert used <= set(MODULES), f"{page.name}: {sorted(used - set(MODULES))}"


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
    print(f"wrote {SNAPSHOT}")
