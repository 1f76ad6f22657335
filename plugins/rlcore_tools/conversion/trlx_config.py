"""A configuration of trlX (`TRLConfig`) as one of rlcore.

Also in this file: a sweep of trlX as the section `sweep`, which `rlcore sweep` of the package rlcore-tools reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlcore.errors import ConfigError
from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.synonyms import LibraryName, synonyms

if TYPE_CHECKING:
    from rlcore.types import Options

ENDLESS = 1e9
"""`T_max` from which a cosine does not leave its start within any run."""

NULLS: Mapping[str, int] = MappingProxyType({"model.num_layers_unfrozen": -1, "method.num_value_layers_unfrozen": 0})
"""Values of counts that are this library's null, or its default."""
COUNTS = (
    "train.seq_length", "train.epochs", "train.total_steps", "train.batch_size", "train.minibatch_size",
    "train.eval_interval", "train.checkpoint_interval", "method.num_rollouts", "method.chunk_size", "method.ppo_epochs",
)  # fmt: skip
"""Options that are whole numbers of at least 1."""
NUMBERS = (
    "method.cliprange_reward",
    "train.lr_init",
    "train.lr_target",
    "scheduler.kwargs.T_max",
    "scheduler.kwargs.eta_min",
)
MAPPINGS = ("optimizer.kwargs", "scheduler.kwargs", "method.gen_kwargs", "method.gen_experience_kwargs")
OF_ONE_PROCESS = ("train.batch_size", "method.num_rollouts", "method.chunk_size")
"""Counts of one process, which are those of all processes here."""

OF_ILQL: Mapping[str, float] = MappingProxyType({"beta": 1.0, "top_k": 20, "max_new_tokens": 32})
"""Defaults of `generate` of trlX's models with Q-heads, which hold where `gen_kwargs` does not name them."""


def trainers() -> list[str]:
    """Return the trainers whose configurations can be converted."""
    return sorted({str(name) for name in synonyms("trlx")["train.trainer"].values.values()})


def trainer_of(sections: Options) -> str | None:
    """Return the trainer that a configuration of trlX names; None if it names none."""
    name = sections.get("train", {}).get("trainer")
    named = synonyms("trlx")["train.trainer"].values.get(str(name))
    method = synonyms("trainers").get(str(sections.get("method", {}).get("name", "")).lower())
    if named is not None:
        return str(named)
    return None if method is None else method.ours


def convert_trlx(sections: Mapping[str, Any], trainer: str, options: type, processes: int = 1) -> Conversion:
    """Convert a configuration of trlX.

    Args:
        sections: train, model, tokenizer, optimizer, scheduler and method, as in its YAML files.
        trainer: name of the trainer here.
        options: class of its options.
        processes: number of processes that the file was written for.

    Raises:
        ConfigError: one line for each value of another type or range than trlX's.
    """
    conversion = Conversion(trainer, options)
    named = _read(sections)
    given = {name: value * processes if name in OF_ONE_PROCESS else value for name, value in named.items()}
    given.pop("method.name", None)
    given.pop("train.trainer", None)
    given.pop("model.model_type", None)
    conversion.put("trainer.optimizer.max_grad_norm", 0.0)
    if processes > 1:
        conversion.put("run.processes", processes)
        conversion.notes.append(f"batch sizes and rollouts are those of {processes} processes together")
    else:
        conversion.notes.append(
            "batch sizes and rollouts are those of one process: multiply them by the number of processes, which "
            "--processes N does"
        )
    for rule in (_sampling, _length, _texts, _model, _optimizer, _method, _files):
        rule(conversion, given)
    for name, value in given.items():
        conversion.convert(synonyms("trlx").get(name), name, value)
    conversion.check(named, "trlx")
    return conversion


def _read(sections: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of all sections by dotted name, whole numbers written as 1e3 as such.

    Raises:
        ConfigError: one line for each value of another type or range than trlX's.
    """
    errors = [
        f"{section} = {values!r:.60}: must be a mapping of options"
        for section, values in sections.items()
        if not isinstance(values, Mapping | None)
    ]
    found = {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in (values.items() if isinstance(values, Mapping) else ())
    }
    schedule = found.get("scheduler.kwargs")
    options = schedule if isinstance(schedule, Mapping) else {}
    inner = {f"scheduler.kwargs.{name}": value for name, value in options.items()}
    for name, value in {**found, **inner}.items():
        if value is not None and (allowed := _allowed(name, value)):
            errors.append(f"{name} = {value!r:.60}: must be {allowed}")
    if errors:
        raise ConfigError("\n".join(errors))
    return {name: int(value) if name in COUNTS and value is not None else value for name, value in found.items()}


def _allowed(name: str, value: Any) -> str:
    """Return what a value of trlX must be, if it is not that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name in MAPPINGS and not isinstance(value, Mapping):
        return "a mapping of options"
    if name in COUNTS and not (is_number and value == int(value) and value >= 1):
        return "a whole number of at least 1"
    if name in NUMBERS and not is_number and value is not False:
        return "a number"
    return ""


def _sampling(conversion: Conversion, given: dict[str, Any]) -> None:
    rollouts, evaluations = given.pop("method.gen_experience_kwargs", None), given.pop("method.gen_kwargs", None) or {}
    for name, value in (rollouts or evaluations).items():
        section = "gen" if not isinstance(value, list) else "eval.gen"
        conversion.put_sampling(name, value, source="gen_kwargs.", section=section)
    for name, value in evaluations.items() if rollouts else ():
        conversion.put_sampling(name, value, source="gen_kwargs.", section="eval.gen")
    if conversion.has("trainer.awac_beta"):
        missing = {name: value for name, value in OF_ILQL.items() if name not in conversion.values.get("gen", {})}
        for name, value in missing.items():
            conversion.put(f"gen.{name}", value)
        if missing:
            conversion.notes.append(f"trlX's defaults of sampling are written for {', '.join(missing)}")
    if {"max_length", "min_length"} & {*evaluations, *(rollouts or ())}:
        given["gen_kwargs.max_length"] = True


def _length(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert counts of optimizer steps to counts of steps, which are rounds for trainers that sample."""
    rounds = 1
    is_rounds = conversion.has("trainer.target_kl")
    if is_rounds:
        size = given.get("train.batch_size", 32)
        rounds = given.get("method.ppo_epochs", 4) * math.ceil(given.get("method.num_rollouts", 128) / size)
        conversion.put("trainer.target_kl", None)  # trlX makes all epochs of every round
        conversion.notes.append(f"steps are rounds of {rounds} optimizer steps; counts of steps are divided by it")
    total, epochs = given.pop("train.total_steps", None), given.pop("train.epochs", None)
    limits = {} if total is None else {"train.total_steps": math.ceil(total / rounds)}
    if epochs is not None and is_rounds:
        limits["train.epochs"] = epochs
    elif epochs is not None:
        conversion.put("run.epochs", epochs)
    if limits:
        lowest = min(limits, key=lambda name: limits[name])
        conversion.put("run.steps", limits[lowest])
        others = "".join(f"; {name} allows {steps}" for name, steps in limits.items() if name != lowest)
        conversion.notes.append(f"run.steps: {limits[lowest]}, from {lowest}{others}")
        total = total if lowest == "train.total_steps" else limits[lowest] * rounds
    given["scheduler.total_steps"] = total
    for name, path in (("eval_interval", "eval.every"), ("checkpoint_interval", "checkpoint.every")):
        if (every := given.pop(f"train.{name}", None)) is not None:
            conversion.put(path, math.ceil(every / rounds))
    if "train.batch_size" in given:
        conversion.put("trainer.batch_size", given.pop("train.batch_size"))


def _texts(conversion: Conversion, given: dict[str, Any]) -> None:
    length, is_whole = given.pop("train.seq_length", None), given.pop("gen_kwargs.max_length", False)
    sampled = conversion.values.get("gen", {}).get("max_new_tokens", 40)
    if length is not None and (conversion.has("trainer.rollouts") or conversion.has("trainer.generations")):
        if is_whole and "max_new_tokens" not in conversion.values.get("gen", {}):
            reason = "data.max_prompt_tokens is this number less gen.max_new_tokens, which the file does not name"
            conversion.leave("train.seq_length", length, reason)
        elif length > sampled:
            conversion.put("data.max_prompt_tokens", length - sampled)
        else:
            conversion.leave("train.seq_length", length, f"is not above max_new_tokens = {sampled}")
    elif length is not None:
        conversion.put("data.max_sample_tokens", length)


def _model(conversion: Conversion, given: dict[str, object]) -> None:
    for name, null in NULLS.items():
        if given.get(name) == null:
            given.pop(name)
    for name in ("tokenizer.tokenizer_path", "model.tokenizer_path"):
        if given.get(name) == given.get("model.model_path"):
            given.pop(name, None)
    if given.get("train.pipeline") == "PromptPipeline":
        given.pop("train.pipeline")
    adapter = given.pop("model.peft_config", None)
    if isinstance(adapter, Mapping):
        kind = str(adapter.get("peft_type", "lora")).lower()
        rest = {name: value for name, value in adapter.items() if name not in ("peft_type", "task_type")}
        conversion.put("model.peft", {"type": kind, **rest})


def _optimizer(conversion: Conversion, given: dict[str, Any]) -> None:
    for name, value in (given.pop("optimizer.kwargs", None) or {}).items():
        own = conversion.has(f"trainer.optimizer.{name}")
        conversion.put(f"trainer.optimizer.{name}" if own else f"trainer.optimizer.options.{name}", value)
    total, name = given.pop("scheduler.total_steps"), given.pop("scheduler.name", None)
    options = given.pop("scheduler.kwargs", None) or {}
    start, end = given.pop("train.lr_init", None), given.pop("train.lr_target", None)
    if start is not None:
        conversion.put("trainer.optimizer.lr", start)
    if end is not None and total is not None and name is None:  # versions that had no section scheduler
        _cosine(conversion, float(total), float(end), total)
    if name == "cosine_annealing":
        _cosine(conversion, float(options.get("T_max", ENDLESS)), float(options.get("eta_min", 0.0)), total)
    elif name == "linear":
        conversion.put("trainer.optimizer.scheduler", "linear")
        if options:
            conversion.leave("scheduler.kwargs", options, "linear decays to 0 at the end of the run")
    elif name is not None:
        conversion.leave("scheduler.name", name, "set trainer.optimizer.scheduler by hand")
    elif options:
        conversion.leave("scheduler.kwargs", options, "the file names no scheduler")


def _cosine(conversion: Conversion, period: float, lowest: float, total: int | None) -> None:
    """Convert a cosine that falls from `lr` to `lowest` in `period` optimizer steps, and rises again after them."""
    rate = conversion.values["trainer"]["optimizer"].get("lr")
    if period >= ENDLESS or lowest == rate:
        conversion.put("trainer.optimizer.scheduler", "constant")
    elif total is not None and period == total:
        conversion.put("trainer.optimizer.scheduler", "cosine_with_min_lr" if lowest else "cosine")
        if lowest:
            conversion.put("trainer.optimizer.scheduler_options.min_lr", lowest)
    else:
        conversion.leave(
            "scheduler.kwargs.T_max", period, "schedules end with the run; this one has its lowest rate at another step"
        )


def _method(conversion: Conversion, given: dict[str, Any]) -> None:
    if (bound := given.pop("method.cliprange_reward", None)) not in (None, False):
        conversion.put("trainer.score_min", -float(bound))
        conversion.put("trainer.score_max", float(bound))
    for name, path in (("num_rollouts", "trainer.rollouts"), ("chunk_size", "gen.batch_size")):
        if (value := given.pop(f"method.{name}", None)) is not None:
            conversion.put(path, value)
    if conversion.has("trainer.history"):
        conversion.notes.append("trlX learns from all earlier rounds; trainer.history is the number of rounds used")


def _files(conversion: Conversion, given: dict[str, object]) -> None:
    if (folder := given.pop("train.checkpoint_dir", None)) is not None:
        path = PurePath(str(folder))
        conversion.put("run.root", str(path.parent))
        conversion.put("run.name", path.name)
    tracker = given.pop("train.tracker", None)
    names = {"project_name": "project", "entity_name": "entity", "group_name": "group", "tags": "tags"}
    wandb = {ours: given.pop(f"train.{name}", None) for name, ours in names.items()}
    folder = given.pop("train.logging_dir", None)
    if tracker == "wandb":
        used = {name: value for name, value in wandb.items() if value}
        conversion.put("loggers", ["console", {"name": "wandb", **used}])
    elif tracker == "tensorboard":
        conversion.put("loggers", ["console", {"name": "tensorboard", **({"log_dir": folder} if folder else {})}])
    elif tracker is not None:
        conversion.leave("train.tracker", tracker, "there is no such logger")
    unused = {name: value for name, value in wandb.items() if value and tracker != "wandb"}
    unused |= {"logging_dir": folder} if folder and tracker != "tensorboard" else {}
    for name, value in unused.items():
        conversion.leave(f"train.{name}", value, "it belongs to a tracker that is not used")
    resume = given.pop("train.resume_from_checkpoint", None)
    if resume:
        conversion.put("run.resume", "auto" if resume is True else resume)
    if given.pop("train.rollout_logging_dir", None):
        conversion.put("run.rollouts", "all")


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


def is_sweep(sections: Mapping[str, object]) -> bool:
    """Return whether a file is a sweep of trlX."""
    return isinstance(sections.get(TUNE), Mapping)


def convert_sweep(sections: Options, trainer: str, options: type) -> Conversion:
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
    space: dict[str, object] = {}
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


def _metric(conversion: Conversion, section: dict[str, object], tune: dict[str, object]) -> None:
    section["mode"] = str(tune.pop("mode", "max"))
    metric = str(tune.pop("metric", "mean_reward"))
    if metric in ("mean_reward", "reward/mean") or metric.startswith("reward/mean@"):
        section["metric"] = f"eval/reward/mean{metric.removeprefix('mean_reward').removeprefix('reward/mean')}"
    elif metric.startswith("metrics/"):
        section["metric"] = f"eval/{metric.removeprefix('metrics/')}"
    else:
        section["metric"] = metric
        conversion.notes.append(f"metric: {metric} may have another name here; the sweep names those that there are")


def _named(conversion: Conversion, section: dict[str, object], ours: str, name: Any, known: Mapping[str, str]) -> None:
    if name in known:
        section[ours] = known[name]
    elif name is not None:
        conversion.leave(f"{TUNE}: {ours}", name, f"there are {', '.join(dict.fromkeys(known.values()))}")


def _option(conversion: Conversion, space: dict[str, object], name: str, entry: object) -> None:
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
    conversion: Conversion, space: dict[str, object], name: str, given: tuple[str, str, list[Any]], null: int | None
) -> list[object]:
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


def _paths(conversion: Conversion, name: str) -> tuple[tuple[str, ...], Mapping[str, object]] | str:
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
