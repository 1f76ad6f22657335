"""Laws about a dist: its metadata, its entry points, and what happens when every command imports them."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pluggy
from packaging.requirements import Requirement

from rlcore.components import normalise
from rlcore.hookspecs import PROJECT
from rlcore.plugins.discovery import State
from rlcore.plugins.metadata import CORE, installed_dist
from rlcore.testing.law import DIST, LawBroken, Subject, is_not_the_core, law, require
from rlcore.testing.rig import probes
from rlcore.testing.rig.isolate import call_anew

MAX_IMPORT_S = 0.5
TRIES = 3
ADVICE = {
    State.OK: "",
    State.DISABLED: "unset RLCORE_DISABLE_PLUGINS and RLCORE_PLUGINS while it is tested",
    State.INCOMPATIBLE: "widen its requirement on rlcore, or test it with a version that fits",
    State.CONFLICT: "choose a name of its own, or uninstall the other package while it is tested",
    State.HEAVY: "give components as 'module:attribute', so that they are imported on first use",
    State.BROKEN: "see the whole traceback: python -c '{statement}'",
}
"""State of a plugin → what its author does about it."""


@law(DIST)
def it_loads(subject: Subject) -> None:
    """Every entry point of the dist is in state ok, with no remark on its hooks."""
    for plugin in subject.plugins:
        advice = ADVICE[plugin.state].format(statement=_statement(plugin.module))
        require(plugin.state is State.OK, f"entry point '{plugin.name}' is {plugin.state}: {plugin.reason}; {advice}")
        require(not plugin.remarks, f"entry point '{plugin.name}' uses what will go: {'; '.join(plugin.remarks)}")


@law(DIST)
def it_brings_something(subject: Subject) -> None:
    """Some hook is implemented: a component is registered, or a run observed."""
    hooks = [name for plugin in subject.plugins for name in _hooks(plugin.module)]
    require(
        bool(hooks), f"{subject.dist} implements no hook: decorate one with @rlcore.hookimpl in the plugin's module"
    )


@law(DIST)
def the_entry_point_names_what_exists(subject: Subject) -> None:
    """The value of every entry point is a module that can be imported, or something in one."""
    for plugin in subject.plugins:
        match = EntryPoint.pattern.match(plugin.module)
        require(match is not None, f"entry point '{plugin.name}' is {plugin.module!r}; write a module's name")
        try:
            _resolve(plugin.module)
        except (ImportError, AttributeError) as error:
            advice = "correct [project.entry-points.rlcore] in pyproject.toml, and install the dist again"
            raise LawBroken(f"entry point '{plugin.name}' is '{plugin.module}': {error}; {advice}") from error


@law(DIST)
def the_import_is_light(subject: Subject) -> None:
    """Importing the plugin's module imports none of torch, transformers, datasets and accelerate.

    Every command of rlcore imports it, `rlcore --help` too.
    """
    heavy = _imported(subject)["heavy"]
    advice = "give targets and configs as 'module:attribute', or import inside functions"
    require(not heavy, f"its import brings {', '.join(heavy)}; {advice}")


@law(DIST)
def the_import_is_quick(subject: Subject) -> None:
    """Importing the plugin's module takes less than half a second beyond the import of rlcore, in the best of three."""
    spent = []
    for _ in range(TRIES):
        spent.append(_imported(subject)["time_s"])
        if spent[-1] < MAX_IMPORT_S:
            return
    times = ", ".join(f"{each:.2f}" for each in spent)
    statements = "; ".join(_statement(plugin.module) for plugin in subject.plugins)
    raise LawBroken(
        f"its import takes {times} s, where {MAX_IMPORT_S} s are allowed; see what takes the time: "
        f"python -X importtime -c '{statements}'"
    )


@law(DIST)
def the_import_changes_nothing(subject: Subject) -> None:
    """Importing the plugin's module prints nothing and leaves the process as it was.

    Looked at are files in the working folder, the environment, the random state, the root logger, the threads, and
    sys.path.
    """
    for what, change in _imported(subject)["changes"].items():
        raise LawBroken(f"its import changes {what}: {change}; do it where the component is built or called")


@law(DIST)
def registering_again_brings_the_same(subject: Subject) -> None:
    """The register hooks bring the same components each time they are called, in this process and in a new one."""
    first = probes.registered(subject.dist)
    anew = call_anew("rlcore.testing.rig.probes:registered", {"dist": subject.dist}, what="registering anew")
    for seen, when in ((probes.registered(subject.dist), "the second time"), (anew, "in a new process")):
        lost, more = [each for each in first if each not in seen], [each for each in seen if each not in first]
        require(
            not (lost or more),
            f"the register hooks bring other components {when}: without {_listed(lost)}, with {_listed(more)}; "
            "register the same ones whenever the hook is called",
        )


@law(DIST)
def a_spawned_worker_has_the_same(subject: Subject) -> None:
    """A process started anew discovers the same plugins, and unpickles every component and its default options."""
    sent = {}
    for component in (component for plugin in subject.plugins for component in plugin.components):
        cls = component.config_class()
        try:
            sent[f"{component.kind}:{component.name}"] = pickle.dumps((component.target(), _default(cls))).hex()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            advice = "define the target and its options' class at the top of a module, under their own names"
            raise LawBroken(f"{component} cannot be sent to another process: {error}; {advice}") from error
    arguments = {"dist": subject.dist, "sent": sent}
    wrong = call_anew("rlcore.testing.rig.probes:unpack", arguments, what="a spawned worker")
    require(not wrong, f"a process started anew does not have what this one has: {'; '.join(wrong)}")


@law(DIST, when=is_not_the_core)
def the_requirement_on_rlcore_is_bounded(subject: Subject) -> None:
    """The metadata requires rlcore, from a version on and below another, such as `rlcore>=0.1,<0.2`."""
    lines = [Requirement(line) for line in _dist(subject).requires or ()]
    ours = [line for line in lines if normalise(line.name) == CORE and line.marker is None]
    advice = "write 'rlcore>=0.1,<0.2' into the dependencies"
    require(bool(ours), f"its metadata requires no rlcore; {advice}")
    signs = {part.operator for line in ours for part in line.specifier}
    seen = ", ".join(map(str, ours))
    for bound, enough in (("lower", {">=", ">", "==", "~="}), ("upper", {"<=", "<", "==", "~="})):
        require(bool(signs & enough), f"it requires '{seen}', which has no {bound} bound; {advice}")


@law(DIST)
def the_metadata_says_what_it_is(subject: Subject) -> None:
    """The metadata has a summary, a licence, and the versions of Python the dist works with."""
    metadata = _dist(subject).metadata
    classified = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    licence = any(metadata.get(key) for key in ("License-Expression", "License", "License-File")) or classified
    for found, key in (
        (metadata.get("Summary"), "description"),
        (licence, "license"),
        (metadata.get("Requires-Python"), "requires-python"),
    ):
        require(bool(found), f"its metadata lacks '{key}': write it under [project] in pyproject.toml")


def _has_a_package(subject: Subject) -> bool:
    """Tell whether an entry point leads into a package, not a single module."""
    return any(_folders(plugin.module) for plugin in subject.plugins)


@law(DIST, when=_has_a_package)
def it_ships_its_types(subject: Subject) -> None:
    """The package of an entry point holds `py.typed`, so that type checkers read its annotations."""
    for package in sorted({_top(plugin.module) for plugin in subject.plugins if _folders(plugin.module)}):
        folders = _folders(package)
        require(
            any((folder / "py.typed").is_file() for folder in folders),
            f"{folders[0]} holds no py.typed: add an empty file of that name, and have the wheel include it",
        )


def _default(cls: type | None) -> Any:
    """Build options of their defaults; None where there are none, or some must be given."""
    if cls is None or any(field.default is attrs.NOTHING for field in attrs.fields(cls)):
        return None
    return cls()


def _imported(subject: Subject) -> Any:
    arguments = {"modules": [plugin.module.partition(":")[0] for plugin in subject.plugins]}
    return call_anew("rlcore.testing.rig.probes:watch_import", arguments, what=f"importing {subject.dist}")


def _hooks(reference: str) -> list[str]:
    plugin = _resolve(reference)
    known = pluggy.PluginManager(PROJECT)
    return [name for name in dir(plugin) if known.parse_hookimpl_opts(plugin, name) is not None]


def _dist(subject: Subject) -> Any:
    found = installed_dist(subject.dist)
    if found is None:
        raise LawBroken(f"{subject.dist} is not installed any more")
    return found


def _resolve(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


def _statement(reference: str) -> str:
    """Write what Python imports for an entry point."""
    module, _, attribute = reference.partition(":")
    return f"from {module} import {attribute.partition('.')[0]}" if attribute else f"import {module}"


def _top(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


def _folders(reference: str) -> list[Path]:
    """Return where the package lies that a reference leads into; nowhere, where that is a single module."""
    try:
        spec = find_spec(_top(reference))
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _listed(parts: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{kind}: {name}" for kind, name, *_ in parts) or "nothing"
