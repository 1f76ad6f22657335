"""The command `rlcore doctor`: a report for bug reports, without user names, home folders or secrets.

No function here imports torch, and all of them work if plugins, packages or the configuration are broken: each defect
becomes an entry in the report's list of problems.

Also in this file: the text form of the report of `rlcore doctor`, to read and to paste into a bug report.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

import rlcore
from rlcore.plugins.discovery import Discovery, State
from rlcore.plugins.metadata import CORE, configured, installed_dist
from rlcore.plugins.registry import Registry, all_registries
from rlcore.safe_text import hide_logins, write
from rlcore_tools.doctor import machine
from rlcore_tools.doctor.machine import GIB, Package, installed_version, requirements

SCHEMA = 1
FURTHER = ("huggingface_hub", "tokenizers", "pyarrow")
"""Packages reported in addition to the requirements of rlcore: indirect ones that often matter in bug reports."""
PREFIXES = ("RLCORE_", "ACCELERATE_")
"""Variables of which the names are shown."""
SWITCHES = (
    "RLCORE_LOG_LEVEL", "RLCORE_LOG_FORMAT", "RLCORE_PROGRESS", "RLCORE_DEBUG", "RLCORE_PLUGINS",
    "RLCORE_DISABLE_PLUGINS", "RLCORE_STRICT_PLUGINS", "RLCORE_TRACE_PLUGINS", "ACCELERATE_USE_CPU",
    "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DYNAMO_BACKEND",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "TRANSFORMERS_OFFLINE", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONPATH", "WANDB_MODE",
)  # fmt: skip
"""Variables of which the values are shown."""
LOW_DISK = machine.GIB


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore doctor` to its parser, and return the function that runs it."""
    parser.description = (
        "Print a report for bug reports: versions, machine, plugins, environment variables, and the problems found. "
        "The exit status is 1 if the file of --config has errors, and 0 otherwise."
    )
    parser.add_argument("--json", action="store_true", help="print JSON with a schema number")
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="also check this configuration file")
    parser.add_argument(
        "--devices", action="store_true", help="also list torch's devices; importing torch takes seconds"
    )
    return _doctor


def _doctor(arguments: argparse.Namespace) -> int:
    report = examine(arguments.config)
    if not arguments.json:
        write(write_report(report))
    if arguments.devices:
        report = with_torch(report)
    status = int(bool(report["config"] and report["config"]["errors"]))
    if arguments.json:
        print(json.dumps(report, indent=2))
        return status
    if report["torch"] is not None:
        write(write_torch(report["torch"]))
    write(write_problems(report["problems"]))
    return status


def examine(config: Path | None = None) -> dict[str, Any]:
    """Return the report that `rlcore doctor --json` prints, without torch's devices.

    Args:
        config: a configuration file whose options, component names and runs folder are also checked.
    """
    errors: list[str] = []
    settings = None if config is None else _read(config, errors)
    with nullcontext() if settings is None else configured(settings.plugins.disable, settings.plugins.only):
        discovery = all_registries().discovery
        if settings is not None:
            errors += _component_errors(settings, str(config))
    from rlcore.config import path_named

    report: dict[str, Any] = {
        "schema": SCHEMA,
        "rlcore": rlcore.__version__,
        "system": machine.system(),
        "cores": machine.cores(),
        "bfloat16": machine.bfloat16(),
        "memory": machine.memory(),
        "accelerators": machine.accelerators(),
        "torch": None,
        "disks": _disks(path_named(settings.run.root if settings is not None else "runs")),
        "packages": list(_packages(discovery)),
        "environment": environment(os.environ),
        "plugins": [plugin.as_json() for plugin in discovery.plugins],
        "notes": list(discovery.notes),
        "config": None if config is None else {"file": str(config), "errors": errors},
    }
    report = _without_names(report)
    return report | {"problems": problems(report)}


def with_torch(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report of `examine` with torch's devices, listed in a separate process."""
    installed = installed_version("torch") is not None
    devices = _without_names(machine.torch_devices() if installed else {"failed": "is not installed"})
    report = report | {"torch": devices}
    return report | {"problems": problems(report)}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect rlcore and are set; only those in `SWITCHES` with their values."""
    names = [name for name in environ if name.startswith(PREFIXES) or name in SWITCHES]
    return {name: environ[name] if name in SWITCHES else "(set; not shown)" for name in sorted(names)}


def problems(report: Mapping[str, Any]) -> list[str]:
    """Return the problems of an installation, one line each, with the remedy."""
    return list(_problems(report))


def _problems(report: Mapping[str, Any]) -> Iterator[str]:
    own = [row for row in report["packages"] if row["dist"].startswith(CORE + " ")]
    if not own:
        yield "rlcore has no metadata, so its requirements are unknown: install it, for example with pip install -e ."
    for row in report["packages"]:
        if row["complaint"]:
            yield f"{row['dist']} {row['complaint']}"
    for dist in {row["dist"] for row in own} - {f"{CORE} {report['rlcore']}"}:
        yield f"the code is rlcore {report['rlcore']}, but its metadata is of {dist}: reinstall it"
    for plugin in report["plugins"]:
        if plugin["state"] not in {State.OK, State.DISABLED}:
            yield f"{plugin['dist']} {plugin['version']} is {plugin['state']}: {plugin['reason']}"
    yield from report["notes"]
    yield from (report["config"] or {"errors": ()})["errors"]
    for disk in report["disks"]:
        if not disk["writable"]:
            yield f"{disk['what']} {disk['path']} is not writable: {disk['error']}"
        elif disk["free"] < LOW_DISK:
            yield f"{disk['what']} {disk['path']} has only {disk['free'] / machine.GIB:.2f} GiB free"
    yield from _machine_problems(report)


def _machine_problems(report: Mapping[str, Any]) -> Iterator[str]:
    quota, allowed = report["cores"]["quota"], report["cores"]["allowed"]
    if quota is not None and quota < allowed and "OMP_NUM_THREADS" not in report["environment"]:
        share = max(1, round(quota))
        yield f"torch would start {allowed} threads, but only {quota:g} cores may be used: set OMP_NUM_THREADS={share}"
    accelerators, devices = report["accelerators"], report["torch"]
    if accelerators["source"].startswith("nvidia-smi "):
        yield accelerators["source"]
    torch = next((row["installed"] for row in report["packages"] if row["name"] == "torch"), None) or ""
    if accelerators["seen"] and torch.endswith("+cpu"):
        yield f"{accelerators['seen'][0]} is present, but torch {torch} is built for the CPU only"
    elif accelerators["seen"] and devices is not None and devices.get("devices") == []:
        yield f"{accelerators['seen'][0]} is present, but torch finds no device"
    if devices is not None and "failed" in devices:
        yield f"torch {devices['failed']}"


def _read(config: Path, errors: list[str]) -> Any:
    """Return the settings of a configuration file; if they are invalid, append to `errors` and return None."""
    from rlcore.config import load_yaml, structure
    from rlcore.errors import ConfigError
    from rlcore.settings import TrainConfig

    try:
        return structure(TrainConfig, load_yaml(config), where=str(config))
    except ConfigError as error:
        errors += str(error).splitlines()
        return None


def _component_errors(settings: Any, where: str) -> Iterator[str]:
    """Yield an error for each component name that is unknown or ambiguous, and for each option that it refuses."""
    known = all_registries()
    trainer, data = settings.trainer, settings.data
    named: list[tuple[Registry[Any], Any, str]] = [
        (known.trainers, trainer, "trainer"),
        (known.samplers, settings.sampler, "sampler"),
        (known.rollout_stores, settings.store, "store"),
        (known.pipelines, data.prompt_pipeline, "data.prompt_pipeline"),
        (known.pipelines, data.sample_pipeline, "data.sample_pipeline"),
        *((known.loggers, entry, f"loggers[{i}]") for i, entry in enumerate(settings.loggers)),
    ]
    optimizer = trainer.get("optimizer")
    if isinstance(optimizer, Mapping):
        named.append((known.optimizers, optimizer.get("name"), ""))
        schedule, options = optimizer.get("scheduler"), optimizer.get("scheduler_options")
        schedule = {"name": schedule, **options} if isinstance(options, Mapping) else schedule
        named.append((known.schedulers, schedule, "trainer.optimizer.scheduler_options"))
    for registry, entry, path in named:
        section = entry if isinstance(entry, Mapping) else {"name": entry}
        if isinstance(section.get("name"), str):
            yield from _option_errors(registry, section["name"], section, path, where)
    if data.reward_fn is not None:
        yield from _reward_errors(data.reward_fn, where)
    path = settings.model.get("path")
    if str(path).endswith(".gguf") and installed_version("gguf") is None:
        yield f"{where}: model.path = {path}: needs the package gguf: pip install 'rlcore-transformers[gguf]'"
    # Without a name, the architecture follows from the model's files: options that any of them has are accepted.
    model, architectures = settings.model, known.architectures
    chosen = model.get("architecture")
    names = [chosen] if isinstance(chosen, str) else [component.qualified for component in architectures]
    yield from min(
        (list(_option_errors(architectures, name, model, "model", where)) for name in names), key=len, default=[]
    )


def _reward_errors(reward_fn: Any, where: str) -> Iterator[str]:
    """Yield the error of reward functions that have no allowed form, or of a registered reward; nothing is loaded."""
    from rlcore.errors import RLCoreError
    from rlcore.plugins.choice import Chooser, Wrapping

    try:
        from rlcore.rewards.chosen_rewards import choose_rewards
    except ImportError:  # of torch, whose version is a problem of its own
        return
    try:
        choose_rewards(reward_fn, Chooser("", Wrapping()), "data.reward_fn")
    except RLCoreError as error:
        yield f"{where}: {str(error).splitlines()[0]}"


def _option_errors(
    registry: Registry[Any], name: str, section: Mapping[str, Any], path: str, where: str
) -> Iterator[str]:
    """Yield the errors of one component's name and options; without a path, of its name alone."""
    from rlcore.config.structure import structure_valid
    from rlcore.errors import RLCoreError

    try:
        cls = registry.get(name).config_class()
    except RLCoreError as error:
        yield str(error).splitlines()[0]
        return
    skip = ("path", "architecture", "tokenizer") if path == "model" else ("name",)
    values = {key: value for key, value in section.items() if key not in skip}
    if path and cls is not None:
        _, refused = structure_valid(cls, values, where=where, path=path)
        yield from [] if refused is None else str(refused).splitlines()
    elif path and values:
        yield f"{where}: {path}.{next(iter(values))}: '{name}' has no options"


def _packages(discovery: Discovery) -> Iterator[dict[str, Any]]:
    """Yield all requirements of rlcore, and those of plugins that are missing or out of range."""
    core = installed_dist(CORE)
    if core is not None:
        yield from (_row(installed_version(CORE) or "?", CORE, one) for one in requirements(core, skip=("dev",)))
    for name in FURTHER:
        yield {"dist": "", **attrs.asdict(Package(name, "", installed_version(name), "", fits=True)), "complaint": ""}
    for name in sorted({plugin.dist for plugin in discovery.plugins if plugin.state is not State.DISABLED} - {CORE}):
        try:
            dist = installed_dist(name)
            needed = () if dist is None else [one for one in requirements(dist) if one.name != CORE]
        except (ValueError, OSError):  # discovery already reports unreadable metadata
            continue
        rows = (_row(installed_version(name) or "?", name, one) for one in needed)
        yield from (row for row in rows if row["complaint"])


def _row(version: str, dist: str, package: Package) -> dict[str, Any]:
    return {"dist": f"{dist} {version}", **attrs.asdict(package), "complaint": package.complaint}


def _disks(runs: Path) -> list[dict[str, Any]]:
    folders = {"runs folder": runs, "hub cache": machine.hub_cache(os.environ)}
    return [{"what": what, "path": str(folder), **machine.disk(folder)} for what, folder in folders.items()]


def _without_names(value: Any) -> Any:
    """Apply `anonymous` to every string in a document."""
    if isinstance(value, Mapping):
        return {key: _without_names(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_names(one) for one in value]
    return anonymous(value) if isinstance(value, str) else value


def anonymous(text: str) -> str:
    """Replace the home folder by `~`, the user's name in paths by `<user>`, and hide logins in URLs."""
    text = hide_logins(text)
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises if there is none
    for path in {home, os.path.realpath(home)} - {"/", "~"} if os.path.isabs(home) else ():  # noqa: PTH117
        text = re.sub(rf"{re.escape(path)}(?![\w.-])", "~", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        return text
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "<user>", text)


DoctorReport = Mapping[str, Any]


def write_report(report: DoctorReport) -> str:
    """Return the text of everything except torch's devices and the problems."""
    parts = [
        _columns(_machine(report)),
        "",
        *_packages_as_text(report),
        "",
        *_plugins(report),
        "",
        *_environment(report),
        "",
    ]
    return "\n".join(parts)


def write_torch(torch: DoctorReport) -> str:
    """Return one line about torch: version, build, threads and devices."""
    if "failed" in torch:
        return f"torch: {torch['failed']}"
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "the CPU only"
    devices = ", ".join(torch["devices"]) or "none"
    return f"torch: {torch['version']}, built for {built}, {torch['threads']} threads; devices: {devices}"


def write_problems(problems: Sequence[str]) -> str:
    """Return the text of the list of problems, `none found` if it is empty."""
    return "\n".join(["problems", *(f"  {line}" for line in problems or ("none found",))])


def _machine(report: DoctorReport) -> Iterator[tuple[str, str]]:
    system, cores, memory, accelerators = (report[key] for key in ("system", "cores", "memory", "accelerators"))
    place = ", in a virtual environment" if system["virtual_environment"] else ""
    quota = "" if cores["quota"] is None else f", limited to {cores['quota']:g}"
    yield "rlcore", report["rlcore"]
    yield "python", f"{system['python']} ({system['implementation']}{place})"
    yield "system", f"{system['system']} {system['machine']}"
    yield "cores", f"{cores['allowed']} of {cores['present']}{quota}"
    if report["bfloat16"]:
        yield "bfloat16", f"{', '.join(report['bfloat16'])}: run.mixed_precision=bf16 speeds up larger models"
    if memory:
        yield "memory", f"{memory['total'] / GIB:.1f} GiB, {memory['free'] / GIB:.1f} free"
    yield "accelerators", f"{'; '.join(accelerators['seen']) or 'none found'} ({accelerators['source']})"
    if report["torch"] is None:
        yield "", "devices of torch: rlcore doctor --devices"
    for disk in report["disks"]:
        free = "" if disk["free"] is None else f", {disk['free'] / GIB:.1f} GiB free"
        yield disk["what"], f"{disk['path']}: {'writable' if disk['writable'] else disk['error']}{free}"
    if report["config"]:
        yield "configuration", f"{report['config']['file']}, {len(report['config']['errors']) or 'no'} errors"


def _packages_as_text(report: DoctorReport) -> Iterator[str]:
    own = [row for row in report["packages"] if row["dist"].startswith("rlcore ") or not row["dist"]]
    always = [row for row in own if not row["extra"]]
    yield "packages"
    yield _columns((row["name"], row["installed"] or "not installed", row["required"]) for row in always)
    yield from ("", "optional packages")
    extras = [row for row in own if row["extra"]]
    yield _columns(
        (row["name"], row["installed"] or "not installed", row["required"], f"rlcore[{row['extra']}]") for row in extras
    )


def _plugins(report: DoctorReport) -> Iterator[str]:
    yield "plugins"
    rows: list[tuple[str, ...]] = []
    for plugin in report["plugins"]:
        components = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in plugin["components"].items())
        rows.append((plugin["dist"], plugin["version"], plugin["state"], components))
        rows += [("", "", "", line) for line in (plugin["reason"], *plugin.get("remarks", ())) if line]
    yield _columns(rows)


def _environment(report: DoctorReport) -> Iterator[str]:
    yield "environment"
    yield from (f"  {name}={value}" for name, value in report["environment"].items())
    if not report["environment"]:
        yield "  none of the variables that affect rlcore is set"


def _columns(rows: Iterable[Sequence[str]]) -> str:
    """Align rows in columns, each as wide as its widest cell; the last column is not padded."""
    table = [list(row) for row in rows]
    widths: dict[int, int] = {}
    for row in table:
        for i, cell in enumerate(row[:-1]):
            widths[i] = max(widths.get(i, 0), len(cell))
    lines = ("  ".join(f"{cell:<{widths.get(i, 0)}}" for i, cell in enumerate(row)).rstrip() for row in table)
    return "\n".join(f"  {line}" for line in lines)
