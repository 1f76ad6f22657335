"""Laws of a dist: its metadata, its entry points, and the cost and side effects of importing them.

Also in this file: the law of the hook `wrap_component`: a wrapper has the interface of what it wraps; laws of
commands: their help is light and complete, and wrong usage exits with 2.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import attrs
import pluggy
from packaging.requirements import Requirement

from rlcore import hookspecs
from rlcore.components import Component, describe_error, normalise
from rlcore.config import structure
from rlcore.plugins.choice import HOOK, layers_of
from rlcore.plugins.discovery import State
from rlcore.plugins.metadata import CORE, installed_dist
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_testing.law import BASE, DIST, LawBroken, Subject, is_not_the_core, law, require
from rlcore_testing.laws.environments import (  # noqa: F401  laws of dists
    a_failed_episode_has_no_score_and_others_go_on,
    a_failure_is_not_a_reward_of_zero,
    episodes_have_the_tokens_of_one_rendering,
    no_step_follows_the_end,
    only_sampled_tokens_are_chosen,
    texts_of_an_environment_are_no_control_tokens,
    the_reward_of_a_turn_is_at_its_last_token,
)
from rlcore_testing.rig import probes
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.probes import hooks_of, resolve
from rlcore_testing.rig.recorder import RunStub
from rlcore_testing.rig.worker import worker

CALLED = ("samplers", "rewards", "pipelines", "optimizers", "schedulers")
"""Kinds that build something callable."""


REWARD: Component[Any] = Component(
    "rewards", "toy_reward", CORE, "", "", reference="rlcore_testing.small:toy_reward", config_reference=None
)
"""A reward, since rlcore registers none."""
TRAINER: Component[Any] = Component(
    "trainers", "toy_trainer", CORE, "", "", reference="rlcore_testing.laws.dist:ToyTrainer", config_reference=None
)
"""Likewise a trainer."""


class ToyTrainer:
    """A trainer that does nothing, with all that `rlcore.protocols.Trainer` declares."""

    needs = ("samples",)
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}

    def steps(self) -> Iterator[Mapping[str, float]]:
        """Yield no step."""
        yield from ()

    def policy(self) -> None:
        """Return no policy."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""


def _wraps(subject: Subject) -> bool:
    """Return whether it implements the hook `wrap_component`."""
    return any(HOOK in hooks_of(plugin.module) for plugin in subject.plugins)


@law(DIST, when=_wraps)
def wrappers_keep_the_interface(subject: Subject) -> None:
    """What `wrap_component` returns for a component has the parameters and public attributes of what it wraps.

    The law is checked with samplers, rewards, pipelines, optimizers, schedules and stores of rlcore and of the package,
    with a sampler and a reward that have a method `close`, with a policy of `causal_lm`, the logger `jsonl`, and a
    trainer.
    """
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    for plugin in subject.plugins:
        hooks.register(resolve(plugin.module), name=f"{plugin.dist}:{plugin.name}")
    own = [component for plugin in subject.plugins for component in plugin.components]
    base = [each for each in all_registries().discovery.components if each.dist in BASE and each not in own]
    for component in (*base, *own, REWARD, TRAINER):
        for layer in layers_of(component, hooks, structure(TrainConfig, subject.sections, where="config")):
            if layer.error is not None:
                raise LawBroken(f"{HOOK} of {component} raises {describe_error(layer.error)}")
            with TemporaryDirectory() as folder:
                for built in _examples(component, Path(folder)):
                    _compare(component, built, layer.wrap)


def _compare(component: Component[Any], built: Any, wrap: Callable[[Any], Any] | None) -> None:
    own = dir(built) if not isinstance(built, partial) else vars(built)  # `func` and `args` are of no use to a run
    before, attributes = _parameters(built), [name for name in own if not name.startswith("_")]
    outer = built if wrap is None else wrap(built)
    missing = [name for name in attributes if not hasattr(outer, name)]
    advice = "pass calls and attributes on to the wrapped object, or change it in place and return it"
    require(not missing, f"its wrapper of {component} has no attribute {', '.join(missing)}; {advice}")
    lacking = [name for name in before if name not in _parameters(outer)]
    require(not lacking, f"its wrapper of {component} has no parameter {', '.join(lacking)}; {advice}")


def _examples(component: Component[Any], folder: Path) -> Iterator[Any]:
    """Yield what a component builds, if its options have defaults, and an object of its kind with `close`."""
    target: Any = component.target()
    cls: Any = component.config_class()
    if component.qualified == "rlcore-transformers:causal_lm":
        from rlcore_testing.small import make_gpt2, make_tokenizer  # import torch

        yield target(make_gpt2(), cls(), tokenizer=make_tokenizer(), value_head=False, reference=True)
    if component.qualified == "rlcore:jsonl":
        logger = target(None, RunStub(folder))
        yield logger
        logger.close(None)
    if component is TRAINER:
        yield target()
    if component.kind not in (*CALLED, "rollout_stores"):
        return
    if component.kind in ("optimizers", "schedulers"):
        yield target
    elif cls is not None and not any(field.default is attrs.NOTHING for field in attrs.fields(cls)):
        yield target(cls())
    elif cls is None:
        yield target() if component.kind == "rollout_stores" else target
    if component.kind in ("samplers", "rewards"):
        yield _Closable(target)


class _Closable:
    """A sampler or reward with a method `close`, which a run calls at its end."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.__signature__ = inspect.signature(call)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, **named)

    def close(self) -> None:
        """Do nothing."""


def _parameters(built: Any) -> list[str]:
    if not callable(built):
        return []
    try:
        return list(inspect.signature(built).parameters)
    except (ValueError, TypeError):  # extension types may have no signature
        return []


MAX_IMPORT_S = 0.5
TRIES = 3
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
    for _ in range(TRIES):
        spent.append(_imported(subject)["time_s"])
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


def _imported(subject: Subject) -> Any:
    arguments = {"modules": [plugin.module.partition(":")[0] for plugin in subject.plugins]}
    return call_in_new_process("rlcore_testing.rig.probes:watch_import", arguments, what=f"importing {subject.dist}")


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


COMMANDS = "commands"
WRONG_USAGE = 2
UNKNOWN = "--no-option-of-this-command"


@law(COMMANDS)
def it_returns_the_function_that_runs_it(subject: Subject) -> None:
    """The target adds its arguments to the parser it receives and returns the function that runs the command."""
    run = _fill(subject)[1]
    require(callable(run), f"its target returned {run!r:.80}; return the function that takes the parsed arguments")


@law(COMMANDS)
def help_is_light(subject: Subject) -> None:
    """`--help` exits with 0 and imports none of torch, transformers, datasets and accelerate."""
    name = subject.it.qualified
    seen = call_in_new_process("rlcore_testing.rig.probes:run_help", {"command": name}, what=f"rlcore {name} --help")
    advice = "import it in the function that the target returns"
    require(not seen["heavy"], f"rlcore {name} --help imports {', '.join(seen['heavy'])}; {advice}")
    require(
        seen["code"] == 0, f"rlcore {name} --help exits with {seen['code']!r} and prints {seen['printed'][-200:]!r}"
    )


@law(COMMANDS)
def every_argument_has_a_meaning(subject: Subject) -> None:
    """Every argument has a help text, and the command's help can be printed."""
    parser, _ = _fill(subject)
    try:
        parser.format_help()
    except (ValueError, TypeError, KeyError) as error:
        raise LawBroken(f"its help cannot be printed: {error}; write %% for a percent sign in a help text") from error
    for action in parser._actions:  # noqa: SLF001  argparse has no public way to list them
        name = "/".join(action.option_strings) or action.metavar or action.dest
        require(bool(action.help), f"its argument {name} has no help; pass help='...' to add_argument")


@law(COMMANDS)
def an_unknown_option_is_wrong_usage(subject: Subject) -> None:
    """An unknown option exits with 2 and does not reach the command."""
    parser, _ = _fill(subject)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parser.parse_args([UNKNOWN])
    except SystemExit as left:
        require(left.code == WRONG_USAGE, f"{UNKNOWN} exits with {left.code!r}; let the parser report wrong usage")
    else:
        raise LawBroken(f"{UNKNOWN} is accepted; let the parser reject unknown options")


def _fill(subject: Subject) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    target: Any = subject.it.target()
    parser = argparse.ArgumentParser(prog=f"rlcore {subject.it.name}")
    return parser, target(parser)
