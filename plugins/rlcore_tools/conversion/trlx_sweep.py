"""A sweep of trlX as the section `sweep`, which `rlcore sweep` of the package rlcore-sweep reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlcore.errors import ConfigError
from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.trlx_config import NULLS, OF_ONE_PROCESS
from rlcore_tools.synonyms import LibraryName, synonyms

TUNE = "tune_config"
OTHER_NAMES = {"lr_init": "trainer.optimizer.lr", "learning_rate_init": "trainer.optimizer.lr"}
"""Names in sweeps of earlier versions of trlX that its configurations no longer have."""
SAMPLERS = {"random": "random", "bayesopt": "tpe", "bohb": "tpe"}
PRUNERS = {"fifo": "none", "hyperband": "hyperband", "hyperbandforbohb": "hyperband"}
STRATEGIES: dict[str, tuple[int, Callable[..., str]]] = {
    "uniform": (2, lambda low, high: f"uniform({low}, {high})"),
    "loguniform": (2, lambda low, high: f"loguniform({low}, {high})"),
    "quniform": (3, lambda low, high, step: f"quniform({low}, {high}, {step})"),
    "randint": (2, lambda low, high: f"int({low}, {high - 1})"),
    "qrandint": (3, lambda low, high, step: f"int({low}, {high}, {step})"),
    "lograndint": (2, lambda low, high: f"logint({low}, {high - 1})"),
}
"""Strategy → number of its values, and the distribution here; the upper bound of Ray's `randint` is excluded."""
LISTS = ("choice", "grid", "grid_search")


def is_sweep(sections: Mapping[str, Any]) -> bool:
    """Return whether a file is a sweep of trlX."""
    return isinstance(sections.get(TUNE), Mapping)


def convert_sweep(sections: Mapping[str, Any], trainer: str, options: type) -> Conversion:
    """Convert a sweep of trlX to a configuration with the section `sweep` alone.

    Args:
        sections: `tune_config`, and for each option `strategy` and `values`, as in its YAML files.
        trainer: name of the trainer here.
        options: class of its options.
    """
    conversion = Conversion(trainer, options)
    tune = dict(sections[TUNE])
    section: dict[str, Any] = {}
    _metric(conversion, section, tune)
    for name, ours in (("num_samples", "trials"), ("max_concurrent_trials", "parallel"), ("time_budget_s", "time_s")):
        if (value := tune.pop(name, None)) is not None:
            section[ours] = value
    _named(conversion, section, "sampler", tune.pop("search_alg", None), SAMPLERS)
    _named(conversion, section, "prune", tune.pop("scheduler", None), PRUNERS)
    for name, value in tune.items():
        conversion.leave(f"{TUNE}.{name}", value, "`rlcore sweep` has no such option")
    if section.get("parallel", 1) > 1:
        conversion.notes.append(
            f"parallel: {section['parallel']} trials at the same time share one machine, unless the sweep runs --on ray"
        )
    space: dict[str, Any] = {}
    for name, entry in sections.items():
        if name != TUNE:
            _option(conversion, space, str(name), entry)
    strategies = {entry.get("strategy") for name, entry in sections.items() if name != TUNE and isinstance(entry, dict)}
    if strategies & set(LISTS[1:]):
        if strategies <= set(LISTS):
            section["sampler"] = "grid"
        else:
            conversion.notes.append("sampler: values of a grid are chosen from, because other options are continuous")
    conversion.values = {"sweep": {**section, "space": space}}
    conversion.notes.append("space: `rlcore sweep CONFIG.yaml --space THIS.yaml` sweeps these options of CONFIG.yaml")
    return conversion


def _metric(conversion: Conversion, section: dict[str, Any], tune: dict[str, Any]) -> None:
    section["mode"] = str(tune.pop("mode", "max"))
    metric = str(tune.pop("metric", "mean_reward"))
    if metric in ("mean_reward", "reward/mean") or metric.startswith("reward/mean@"):
        section["metric"] = f"eval/reward/mean{metric.removeprefix('mean_reward').removeprefix('reward/mean')}"
    elif metric.startswith("metrics/"):
        section["metric"] = f"eval/{metric.removeprefix('metrics/')}"
    else:
        section["metric"] = metric
        conversion.notes.append(f"metric: {metric} may have another name here; the sweep names those that there are")


def _named(conversion: Conversion, section: dict[str, Any], ours: str, name: Any, known: Mapping[str, str]) -> None:
    if name in known:
        section[ours] = known[name]
    elif name is not None:
        conversion.leave(f"{TUNE}: {ours}", name, f"there are {', '.join(dict.fromkeys(known.values()))}")


def _option(conversion: Conversion, space: dict[str, Any], name: str, entry: Any) -> None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), list):
        raise ConfigError(f"{name} = {entry!r:.60}: must have a `strategy` and a list of `values`")
    strategy, values = str(entry.get("strategy")), entry["values"]
    found = _paths(conversion, name)
    if isinstance(found, str):
        conversion.leave(name, f"{strategy} {values}", found)
        return
    paths, table = found
    if len(paths) > 1:
        conversion.leave(name, f"{strategy} {values}", f"it sets {' and '.join(paths)} at once")
        return
    null = next((value for full, value in NULLS.items() if full.endswith(f".{name.rpartition('.')[2]}")), None)
    if strategy in LISTS:
        keys = [str(value).lower() if isinstance(value, bool) or value is None else str(value) for value in values]
        tried = [table.get(key, value) for key, value in zip(keys, values, strict=True)]
        tried = [None if null == value == -1 else value for value in tried]
        space[paths[0]] = tried
    elif strategy in STRATEGIES and len(values) == STRATEGIES[strategy][0] and not table:
        tried = _range(conversion, space, name, (paths[0], strategy, values), null)
    else:
        known = ", ".join([*STRATEGIES, *LISTS])
        conversion.leave(name, f"{strategy} {values}", f"has no counterpart; strategies with one are {known}")
        return
    problems = (conversion.problem_of(paths[0], value) for value in tried)
    conversion.refused += [f"{name}: {problem}" for problem in problems if problem]
    if name in OF_ONE_PROCESS:
        conversion.notes.append(f"{paths[0]}: is the count of all processes together")


def _range(
    conversion: Conversion, space: dict[str, Any], name: str, given: tuple[str, str, list[Any]], null: int | None
) -> list[Any]:
    """Add the distribution of a range to the space, and return its bounds, which the option must accept."""
    path, strategy, values = given
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        conversion.refuse(name, f"{strategy} {values}", "the bounds of a range must be numbers")
        return []
    if null == -1 and values[0] < 0:
        how = "-1 is null here, and a range has numbers only: list the values, as a choice"
        conversion.leave(name, f"{strategy} {values}", how)
        return []
    space[path] = STRATEGIES[strategy][1](*values)
    if strategy == "loguniform" and values[0] <= 0:
        conversion.notes.append(f"{path}: the lower bound must be above 0")
        return []
    last = values[1] - 1 if strategy in ("randint", "lograndint") else values[1]
    return [values[0], last]


def _paths(conversion: Conversion, name: str) -> tuple[tuple[str, ...], Mapping[str, Any]] | str:
    """Return the options that an option of trlX sets and its table of values, or why it cannot be swept."""
    short = name.rpartition(".")[2]
    plain = [OTHER_NAMES.get(name, "")]
    plain += [f"trainer.optimizer.{short}"] if name.startswith("optimizer.kwargs.") else []
    plain += [f"gen.{short}"] if name.startswith("method.gen_") else []
    fitting = [path for path in plain if path and conversion.has(path)]
    if fitting:
        return (fitting[0],), {}
    in_sections = {other.partition(".")[2]: found for other, found in synonyms("trlx").items()}
    synonym: LibraryName | None = synonyms("trlx").get(name) or in_sections.get(name)
    if synonym is None:
        return "no option of this meaning is known"
    groups = [paths for paths in synonym.alternatives if all(map(conversion.has, paths))]
    if not groups:
        return f"trainer '{conversion.trainer}' has no {synonym.ours}" if synonym.alternatives else synonym.how
    if synonym.negated or (synonym.how and not (synonym.same or synonym.values or synonym.name in OF_ONE_PROCESS)):
        return f"set {' and '.join(groups[0])} by hand{f': {synonym.how}' if synonym.how else ''}"
    return groups[0], synonym.values
