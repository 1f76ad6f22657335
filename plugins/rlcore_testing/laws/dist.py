"""Laws of a dist: its metadata, its entry points, and the cost and side effects of importing them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from rlcore.components import normalise
from rlcore.plugins.discovery import State
from rlcore.plugins.metadata import CORE, installed_dist
from rlcore_testing.law import DIST, LawBroken, Subject, is_not_the_core, law, require
from rlcore_testing.laws.players import (  # noqa: F401  laws of dists
    a_failed_episode_has_no_score_and_others_go_on,
    a_failure_is_not_a_reward_of_zero,
    episodes_have_the_tokens_of_one_rendering,
    no_step_follows_the_end,
    only_sampled_tokens_are_chosen,
    texts_of_an_environment_are_no_control_tokens,
    the_reward_of_a_turn_is_at_its_last_token,
)
from rlcore_testing.laws.wrappers import wrappers_keep_the_interface  # noqa: F401  a law of dists
from rlcore_testing.rig import probes
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.probes import hooks_of, resolve
from rlcore_testing.rig.worker import worker

MAX_IMPORT_S = 0.5
TRIES = 3
_seen: dict[tuple[object, ...], Any] = {}
ADVICE = {
    State.OK: "",
    State.DISABLED: "unset RLCORE_DISABLE_PLUGINS and RLCORE_PLUGINS while it is tested",
    State.INCOMPATIBLE: "widen its requirement on rlcore, or test it with a compatible version",
    State.CONFLICT: "choose another name, or uninstall the other package while it is tested",
    State.HEAVY: "register components as 'module:attribute', so that they are imported on first use",
    State.BROKEN: "see the whole traceback: python -c '{statement}'",
}
"""State of a plugin → advice to its author."""


@law(DIST)
def it_loads(subject: Subject) -> None:
    """Every entry point of the dist loads with state ok and uses no deprecated hook."""
    for plugin in subject.plugins:
        advice = ADVICE[plugin.state].format(statement=_statement(plugin.module))
        require(plugin.state is State.OK, f"entry point '{plugin.name}' is {plugin.state}: {plugin.reason}; {advice}")
        require(not plugin.remarks, f"entry point '{plugin.name}' uses deprecated hooks: {'; '.join(plugin.remarks)}")


@law(DIST)
def it_implements_a_hook(subject: Subject) -> None:
    """The dist implements at least one hook."""
    hooks = [name for plugin in subject.plugins for name in hooks_of(plugin.module)]
    require(
        bool(hooks), f"{subject.dist} implements no hook: decorate one with @rlcore.hookimpl in the plugin's module"
    )


@law(DIST)
def the_entry_point_can_be_imported(subject: Subject) -> None:
    """The value of every entry point is an importable module or an attribute of one."""
    for plugin in subject.plugins:
        match = EntryPoint.pattern.match(plugin.module)
        require(match is not None, f"entry point '{plugin.name}' is {plugin.module!r}; write a module's name")
        try:
            resolve(plugin.module)
        except (ImportError, AttributeError) as error:
            advice = "correct [project.entry-points.rlcore] in pyproject.toml, and install the dist again"
            raise LawBroken(f"entry point '{plugin.name}' is '{plugin.module}': {error}; {advice}") from error


@law(DIST)
def the_import_is_light(subject: Subject) -> None:
    """Importing the plugin's module imports none of torch, transformers, datasets and accelerate.

    Every command of rlcore imports the module, including `rlcore --help`.
    """
    heavy = _imported(subject)["heavy"]
    advice = "register targets and configs as 'module:attribute', or import inside functions"
    require(not heavy, f"its import loads {', '.join(heavy)}; {advice}")


@law(DIST)
def the_import_is_quick(subject: Subject) -> None:
    """Importing the plugin's module, after rlcore, takes less than half a second in the best of three attempts."""
    spent = []
    for attempt in range(TRIES):
        spent.append(_imported(subject, attempt)["time_s"])
        if spent[-1] < MAX_IMPORT_S:
            return
    times = ", ".join(f"{each:.2f}" for each in spent)
    statements = "; ".join(_statement(plugin.module) for plugin in subject.plugins)
    raise LawBroken(
        f"its import takes {times} s; {MAX_IMPORT_S} s are allowed; find the slow imports with "
        f"python -X importtime -c '{statements}'"
    )


@law(DIST)
def the_import_changes_nothing(subject: Subject) -> None:
    """Importing the plugin's module prints nothing and does not change the process.

    The law compares the files in the working folder, the environment, the random state, the root logger, the threads
    and sys.path before and after the import.
    """
    for what, change in _imported(subject)["changes"].items():
        raise LawBroken(f"its import changes {what}: {change}; move this to where the component is built or called")


@law(DIST)
def registering_again_gives_the_same(subject: Subject) -> None:
    """The register hooks register the same components in every call, in this process and in a new one.

    One process serves the tests of all packages. A package that registers others there gets a process of its own.
    """
    first = probes.registered(subject.dist)
    other = worker().registered.get(subject.dist, [])
    if other != first:
        other = call_in_new_process(
            "rlcore_testing.rig.probes:registered", {"dist": subject.dist}, what="registering in a new process"
        )
    for seen, when in ((probes.registered(subject.dist), "the second time"), (other, "in a new process")):
        lost, more = [each for each in first if each not in seen], [each for each in seen if each not in first]
        require(
            not (lost or more),
            f"the register hooks register other components {when}: without {_listed(lost)}, with {_listed(more)}; "
            "register the same components in every call",
        )


@law(DIST)
def a_spawned_worker_has_the_same_components(subject: Subject) -> None:
    """A spawned process discovers the same plugins, and unpickles every component and its default options.

    One process serves the tests of all packages. A package whose pickles differ there gets a process of its own.
    """
    sent = {}
    for component in (component for plugin in subject.plugins for component in plugin.components):
        try:
            sent[f"{component.kind}:{component.name}"] = probes.pickled(component).hex()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            advice = "define the target and its class of options at the top level of a module"
            raise LawBroken(f"{component} cannot be sent to another process: {error}; {advice}") from error
    seen = worker().pickles
    if all(seen.get(f"{subject.dist}:{name}") == probes.digest(bytes.fromhex(each)) for name, each in sent.items()):
        return
    arguments = {"dist": subject.dist, "sent": sent}
    wrong = call_in_new_process("rlcore_testing.rig.probes:unpack", arguments, what="a spawned worker")
    require(not wrong, f"a spawned process differs from this one: {'; '.join(wrong)}")


@law(DIST, when=is_not_the_core)
def the_requirement_on_rlcore_is_bounded(subject: Subject) -> None:
    """The metadata requires rlcore with a lower and an upper bound, such as `rlcore>=0.1,<0.2`."""
    lines = [Requirement(line) for line in _dist(subject).requires or ()]
    ours = [line for line in lines if normalise(line.name) == CORE and line.marker is None]
    advice = "write 'rlcore>=0.1,<0.2' into the dependencies"
    require(bool(ours), f"its metadata does not require rlcore; {advice}")
    signs = {part.operator for line in ours for part in line.specifier}
    seen = ", ".join(map(str, ours))
    for bound, enough in (("lower", {">=", ">", "==", "~="}), ("upper", {"<=", "<", "==", "~="})):
        require(bool(signs & enough), f"it requires '{seen}', which has no {bound} bound; {advice}")


@law(DIST)
def the_metadata_is_complete(subject: Subject) -> None:
    """The metadata has a summary, a licence and the supported versions of Python."""
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
    """Return whether an entry point is in a package, not in a single module."""
    return any(_folders(plugin.module) for plugin in subject.plugins)


@law(DIST, when=_has_a_package)
def it_ships_its_types(subject: Subject) -> None:
    """The package of an entry point contains `py.typed`, so that type checkers read its annotations."""
    for package in sorted({_top(plugin.module) for plugin in subject.plugins if _folders(plugin.module)}):
        folders = _folders(package)
        require(
            any((folder / "py.typed").is_file() for folder in folders),
            f"{folders[0]} contains no py.typed: add an empty file with that name, and include it in the wheel",
        )


def _imported(subject: Subject, attempt: int = 0) -> Any:
    """Return what an import did; laws that ask for the same attempt share a process."""
    modules = [plugin.module.partition(":")[0] for plugin in subject.plugins]
    key = (subject.dist, *modules, *sys.path, attempt)
    if key not in _seen:
        what = f"importing {subject.dist}"
        _seen[key] = call_in_new_process("rlcore_testing.rig.probes:watch_import", {"modules": modules}, what=what)
    return _seen[key]


def _dist(subject: Subject) -> Any:
    found = installed_dist(subject.dist)
    if found is None:
        raise LawBroken(f"{subject.dist} is no longer installed")
    return found


def _statement(reference: str) -> str:
    """Return the import statement for an entry point."""
    module, _, attribute = reference.partition(":")
    return f"from {module} import {attribute.partition('.')[0]}" if attribute else f"import {module}"


def _top(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


def _folders(reference: str) -> list[Path]:
    """Return the folders of a reference's package; empty if it is a single module."""
    try:
        spec = find_spec(_top(reference))
    except (ImportError, ValueError):
        return []
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _listed(parts: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{kind}: {name}" for kind, name, *_ in parts) or "nothing"
