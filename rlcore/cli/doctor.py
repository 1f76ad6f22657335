"""Examine an installation for `rlcore doctor`: what a bug report needs, without names of users, homes or secrets.

Nothing here imports torch, and everything works while plugins, packages or the configuration are broken: what is wrong
ends up in the list of problems.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from rlcore._version import __version__
from rlcore.cli import machine
from rlcore.cli.list_plugins import plugins_as_json
from rlcore.plugins.discovery import Discovery, State
from rlcore.plugins.metadata import CORE, Package, installed_dist, installed_version, requirements, version_of
from rlcore.plugins.registry import Registries, Registry, all_registries
from rlcore.plugins.switches import configured

SCHEMA = 1
FURTHER = ("huggingface_hub", "tokenizers", "pyarrow")
"""Packages shown besides those rlcore requires: others bring them, and bug reports turn on them."""
PREFIXES = ("RLCORE_", "ACCELERATE_")
SWITCHES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONPATH", "WANDB_MODE",
)  # fmt: skip
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
LOW_DISK = machine.GIB


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore doctor` to its parser, and return what runs it."""
    parser.description = (
        "Print what a bug report needs: versions, machine, plugins, switches, and what is wrong with them."
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with a schema number")
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="check this configuration file too")
    parser.add_argument("--devices", action="store_true", help="ask torch for its devices too, which takes seconds")
    return _doctor


def _doctor(arguments: argparse.Namespace) -> int:
    from rlcore.cli import doctor_report

    found = examine(arguments.config)
    if not arguments.json:
        print(doctor_report.write_report(found), flush=True)
    if arguments.devices:
        found = with_torch(found)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    if found["torch"] is not None:
        print(doctor_report.write_torch(found["torch"]))
    print(doctor_report.write_problems(found["problems"]))
    return 0


def examine(config: Path | None = None) -> dict[str, Any]:
    """Return everything `rlcore doctor --json` prints, but what only torch knows.

    Args:
        config: a configuration file to check besides; its names, its options, the folder its runs go to.
    """
    errors: list[str] = []
    settings = None if config is None else _read(config, errors)
    with nullcontext() if settings is None else configured(settings.plugins.disable, settings.plugins.only):
        known = all_registries()
    if settings is not None:
        errors += _unknown_names(settings, known)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "rlcore": __version__,
        "system": machine.system(),
        "cores": machine.cores(),
        "memory": machine.memory(),
        "accelerators": machine.accelerators(),
        "torch": None,
        "disks": _disks(Path(settings.run.root if settings is not None else "runs")),
        "packages": list(_packages(known.discovery)),
        "environment": environment(os.environ),
        **{key: json.loads(plugins_as_json(known.discovery))[key] for key in ("plugins", "notes")},
        "config": None if config is None else {"file": str(config), "errors": errors},
    }
    found = _without_names(found)
    return found | {"problems": problems(found)}


def with_torch(found: dict[str, Any]) -> dict[str, Any]:
    """Return what `examine` found with what torch says of its devices, asked in a process of its own."""
    installed = installed_version("torch") is not None
    answer = _without_names(machine.ask_torch() if installed else {"failed": "is not installed"})
    found = found | {"torch": answer}
    return found | {"problems": problems(found)}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what rlcore does, those that are set; what may be secret is not shown."""
    names = [name for name in environ if name.startswith(PREFIXES) or name in SWITCHES]
    return {name: "(set; not shown)" if SECRET.search(name) else environ[name] for name in sorted(names)}


def problems(found: Mapping[str, Any]) -> list[str]:
    """List what is wrong with an installation, a line each, with what to do."""
    return list(_problems(found))


def _problems(found: Mapping[str, Any]) -> Iterator[str]:
    own = [row for row in found["packages"] if row["dist"].startswith(CORE + " ")]
    if not own:
        yield "rlcore has no metadata, so its requirements are unknown: install it, as with pip install -e ."
    for row in found["packages"]:
        if row["complaint"]:
            yield f"{row['dist']} {row['complaint']}"
    for dist in {row["dist"] for row in own} - {f"{CORE} {found['rlcore']}"}:
        yield f"the code is rlcore {found['rlcore']} and its metadata says {dist}: install it again"
    for plugin in found["plugins"]:
        if plugin["state"] not in {State.OK, State.DISABLED}:
            yield f"{plugin['dist']} {plugin['version']} is {plugin['state']}: {plugin['reason']}"
    yield from found["notes"]
    yield from (found["config"] or {"errors": ()})["errors"]
    for disk in found["disks"]:
        if not disk["writable"]:
            yield f"{disk['what']}, {disk['path']}, cannot be written: {disk['error']}"
        elif disk["free"] < LOW_DISK:
            yield f"{disk['what']}, {disk['path']}, has {disk['free'] / machine.GIB:.2f} GiB free"
    yield from _machine_problems(found)


def _machine_problems(found: Mapping[str, Any]) -> Iterator[str]:
    quota, allowed = found["cores"]["quota"], found["cores"]["allowed"]
    if quota is not None and quota < allowed and "OMP_NUM_THREADS" not in found["environment"]:
        share = max(1, round(quota))
        yield f"{quota:g} of {allowed} cores may be used, and torch would start {allowed}: set OMP_NUM_THREADS={share}"
    accelerators, asked = found["accelerators"], found["torch"]
    if accelerators["source"].startswith("nvidia-smi "):
        yield accelerators["source"]
    torch = next((row["installed"] for row in found["packages"] if row["name"] == "torch"), None) or ""
    if accelerators["seen"] and torch.endswith("+cpu"):
        yield f"{accelerators['seen'][0]} is there, and torch {torch} is built for the CPU only"
    elif accelerators["seen"] and asked is not None and asked.get("devices") == []:
        yield f"{accelerators['seen'][0]} is there, and torch sees no device"
    if asked is not None and "failed" in asked:
        yield f"torch {asked['failed']}"


def _read(config: Path, errors: list[str]) -> Any:
    """Return the settings of a configuration file; None, and why in `errors`, where they cannot be used."""
    from rlcore.config import load_yaml, structure
    from rlcore.errors import ConfigError
    from rlcore.settings import TrainConfig

    try:
        return structure(TrainConfig, load_yaml(config), where=str(config))
    except ConfigError as error:
        errors += str(error).splitlines()
        return None


def _unknown_names(settings: Any, known: Registries) -> Iterator[str]:
    """Say which components a configuration names that cannot be chosen here."""
    from rlcore.errors import AmbiguousComponent, UnknownComponent

    named: list[tuple[Registry[Any], Any]] = [
        (known.trainers, settings.trainer.get("name")),
        (known.architectures, settings.model.get("architecture")),
        (known.samplers, settings.sampler),
        (known.rollout_stores, settings.store),
        (known.pipelines, settings.data.prompt_pipeline),
        (known.pipelines, settings.data.sample_pipeline),
        *((known.loggers, entry) for entry in settings.loggers),
    ]
    optimizer = settings.trainer.get("optimizer")
    if isinstance(optimizer, Mapping):
        named += [(known.optimizers, optimizer.get("name")), (known.schedulers, optimizer.get("scheduler"))]
    for registry, entry in named:
        name = entry.get("name") if isinstance(entry, Mapping) else entry
        try:
            if isinstance(name, str):
                registry.get(name)
        except (UnknownComponent, AmbiguousComponent) as error:
            yield str(error).splitlines()[0]


def _packages(discovery: Discovery) -> Iterator[dict[str, Any]]:
    """Yield what rlcore requires, all of it, and of what each plugin requires that which is missing or does not fit."""
    core = installed_dist(CORE)
    if core is not None:
        yield from (_row(version_of(core), CORE, one) for one in requirements(core, skip=("dev",)))
    for name in FURTHER:
        yield {"dist": "", **attrs.asdict(Package(name, "", installed_version(name), "", fits=True)), "complaint": ""}
    for name in sorted({plugin.dist for plugin in discovery.plugins if plugin.state is not State.DISABLED} - {CORE}):
        try:
            dist = installed_dist(name)
            needed = () if dist is None else [one for one in requirements(dist) if one.name != CORE]
        except (ValueError, OSError):  # metadata that cannot be read, which discovery has told already
            continue
        rows = (_row(installed_version(name) or "?", name, one) for one in needed)
        yield from (row for row in rows if row["complaint"])


def _row(version: str, dist: str, package: Package) -> dict[str, Any]:
    return {"dist": f"{dist} {version}", **attrs.asdict(package), "complaint": package.complaint}


def _disks(runs: Path) -> list[dict[str, Any]]:
    places = {"the folder of runs": runs, "the hub's cache": machine.hub_cache(os.environ)}
    return [{"what": what, "path": str(place), **machine.disk(place)} for what, place in places.items()]


def _without_names(value: Any) -> Any:
    """Take the user's home folder and name out of every text in a document."""
    if isinstance(value, Mapping):
        return {key: _without_names(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_names(one) for one in value]
    return anonymous(value) if isinstance(value, str) else value


def anonymous(text: str) -> str:
    """Write the home folder as `~`, the user's name, where it stands in a path, as `<user>`, and no login of a URL."""
    text = re.sub(r"(?<=://)[^/@\s]+(?=@)", "<login>", text)
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises where there is none
    for path in {home, os.path.realpath(home)} - {"/", "~"} if os.path.isabs(home) else ():  # noqa: PTH117
        text = re.sub(rf"{re.escape(path)}(?![\w.-])", "~", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return text
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "<user>", text)
