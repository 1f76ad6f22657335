"""Checks, before the first step, that all processes of a run have the same plugins, configuration, model and data.

Also in this file: collects the identity of a run: what has to stay the same for a resumed run to equal an
uninterrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from rlcore.checkpoints.fingerprints import (
    describe_bound,
    describe_function,
    describe_model,
    fingerprint_parameters,
    fingerprint_rows,
    fingerprint_table,
    fingerprint_tokenizer,
    rendered_time,
    time_variables,
)
from rlcore.checkpoints.identity import ABSENT, TIME, TIME_VARIABLES, flatten
from rlcore.components import is_reference
from rlcore.config import unstructure
from rlcore.config.options import to_json
from rlcore.data.user_code import load_reference
from rlcore.errors import RanksError, RLCoreError
from rlcore.logging import get_logger
from rlcore.ops import is_stochastic
from rlcore.plugins.discovery import Discovery, Plugin
from rlcore.ranks import Ranks
from rlcore.safe_text import redact, shorten
from rlcore.sampling import takes
from rlcore.settings import TrainConfig, to_record
from rlcore.training.inputs import DATA_INPUTS, describe_input
from rlcore.training.run import Run
from rlcore.training.run_components import Chosen

log = get_logger("plugins")
_logged: set[str] = set()


def agree_on_plugins(ranks: Ranks, discovery: Discovery) -> None:
    """Check that all processes have the same plugins, and log each warning about plugins once per process.

    Raises:
        RanksError: raised on every rank if the plugins of a rank differ from rank 0's.
    """
    if ranks.world > 1:
        lists = ranks.gather([[_describe(plugin) for plugin in discovery.plugins]])
        different = [rank for rank, plugins in enumerate(lists) if _identity(plugins) != _identity(lists[0])]
        if different:
            raise RanksError(_explain(lists, different))
    remarks = (f"{plugin}: {remark}" for plugin in discovery.plugins for remark in plugin.remarks)
    for line in (*discovery.notes, *remarks):
        if line not in _logged:
            _logged.add(line)
            log.warning(line)


def _describe(plugin: Plugin) -> tuple[str, str]:
    """Return the name of a plugin and why it is not loaded, empty if it is."""
    name = f"{plugin} ({plugin.name})"
    return name, "" if plugin.is_loaded else f"{plugin.state}, {plugin.reason}"


def _identity(plugins: Sequence[tuple[str, str]]) -> set[tuple[str, bool]]:
    """Return what must be equal on all ranks: which plugins are loaded, but not the reasons."""
    return {(name, bool(reason)) for name, reason in plugins}


def _explain(lists: Sequence[Sequence[tuple[str, str]]], different: Sequence[int]) -> str:
    rank = different[0]
    lines = [f"rank {', '.join(map(str, different))} has other plugins than rank 0; every rank must have the same"]
    for here, there in ((0, rank), (rank, 0)):
        own = [one for one in lists[here] if (one[0], bool(one[1])) not in _identity(lists[there])]
        lines.append(f"  on rank {here} only: {', '.join(map(_show_plugin, own)) or 'nothing'}")
    loaded = {each: ", ".join(name for name, reason in lists[each] if not reason) for each in (0, rank)}
    lines += [f"  rank {each} has: {names}" for each, names in loaded.items()]
    return "\n".join([*lines, "  see on each machine: rlcore list-plugins"])


def _show_plugin(one: tuple[str, str]) -> str:
    name, reason = one
    return f"{name}: {reason}" if reason else name


LOCAL = {"model.path", "model.tokenizer", "run.root", *(f"data.{name}" for name in DATA_INPUTS)}
"""Options that may differ from machine to machine: paths, whose contents are compared instead."""
REWARDS = "data.reward_fn."
"""Prefix of the reward functions in an identity; what is bound to them, such as a device, may differ."""
MODEL = "weights of the model in memory (seed torch before building it, or pass a folder)"
SHOWN = 8


def agree_on_configuration(ranks: Ranks, config: TrainConfig) -> None:
    """Check that every option is the same on all ranks, except for the names of folders and data sets.

    Raises:
        RanksError: raised on every rank; it names each option that differs, and its values.
    """
    options = flatten(to_record(config))
    kept = {name: value for name, value in options.items() if not any(_is_within(name, local) for local in LOCAL)}
    _agree(ranks, kept, "configuration")


def agree_on_weights(ranks: Ranks, model: Any) -> None:
    """Check that a model in memory has the same weights on all ranks, before the run copies or divides it.

    Weights in a folder are compared by `agree_on_identity`.

    Raises:
        RanksError: raised on every rank, with the digests that differ.
    """
    if ranks.world > 1:
        is_here = isinstance(model, nn.Module)
        _agree(ranks, {MODEL: fingerprint_parameters(model) if is_here else "not in memory"}, "model")


def agree_on_identity(ranks: Ranks, identity: Mapping[str, object]) -> None:
    """Check that all ranks train the same model on the same rows: prompts, samples, rewards and evaluation data.

    Raises:
        RanksError: raised on every rank; it names the data that differ, their numbers of rows and their digests.
    """
    kept = {name: "" if name.startswith(REWARDS) else value for name, value in identity.items()}
    _agree(ranks, kept, "model or data")


def _agree(ranks: Ranks, values: Mapping[str, object], what: str) -> None:
    if ranks.world == 1:
        return
    digest = hashlib.sha256(to_json(sorted(values.items())).encode("utf-8", "surrogatepass")).hexdigest()
    if len(set(ranks.gather([digest]))) == 1:
        return
    everyone = ranks.gather([dict(values)])
    first = everyone[0]
    different = {rank: _differences(first, each) for rank, each in enumerate(everyone) if each != first}
    if not different:
        return
    rank, names = next(iter(different.items()))
    lines = [
        f"  {name}: {_show(everyone[rank], name)} on rank {rank}, {_show(first, name)} on rank 0"
        for name in names[:SHOWN]
    ]
    more = [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    ranks_text = f"rank {', '.join(map(str, different))}"
    head = f"{ranks_text}: another {what} than rank 0; every process of a run must have the same"
    raise RanksError("\n".join([head, *lines, *more]))


def _differences(first: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return sorted(name for name in first.keys() | other.keys() if first.get(name, ABSENT) != other.get(name, ABSENT))


def _show(values: Mapping[str, object], name: str) -> str:
    return shorten(values.get(name, ABSENT))


def _is_within(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")


ROWS = {
    "prompts": "prompts", "eval_prompts": "eval_prompts", "samples": "samples", "eval_samples": "eval_samples",
    "rewards": "sample_rewards",
}  # fmt: skip
"""Inputs of rows, and the attributes of `RunData` with the rows as the run uses them."""


EPISODES = ("max_turns", "max_new_tokens", "history", "refill", "curriculum", "seeds")
"""Options of `data.episodes` that change what is learned; the others are about time, processes and failures."""


def identify(run: Run, chosen: Chosen) -> dict[str, object]:
    """Return the identity of a built run: plain values by dotted name.

    Options count if they change what a run learns: those of trainer, model, sampling and sampler. Rows of data count as
    they are tokenised, so the options of `data` count through them. Not part of it are the length of the run,
    evaluation options, cadences, loggers, paths, devices, plugin versions and the number of processes.
    """
    config = to_record(run.config)  # without secrets
    model = {name: value for name, value in config["model"].items() if name not in ("path", "tokenizer")}
    sampler, ahead = chosen.sampler, {"asynchronous": k} if (k := run.config.run.asynchronous) else {}
    return flatten(
        {
            "trainer": {**config["trainer"], "name": chosen.trainer.component.name},
            "model": {**model, **_model(run)},
            "gen": config["gen"],
            "sampler": {"name": sampler.component.qualified, **(redact(unstructure(sampler.options)) or {})},
            "data": {**_rows(run), "reward_fn": _rewards(run, chosen), **_environment(run, chosen), **_time(run)},
            "run": {"seed": run.config.run.seed, "mixed_precision": run.ranks.mixed_precision, **ahead},
        }
    )


def draws_by_rank(run: Run) -> bool:
    """Return whether ranks draw random numbers by themselves: dropout, or a sampler without seeds for rows."""
    dropout = run.models.built is not None and is_stochastic(run.models.built.module)
    return dropout or (run.models.has_policy and not takes(run.sampling.sampler, "row_seeds"))


def _model(run: Run) -> dict[str, Any]:
    learner = run.models.built
    if learner is None:
        return {}
    revision = run.config.model.get("revision")
    return {
        "path": describe_model(learner.module, run.data.inputs.model, revision if isinstance(revision, str) else None),
        "tokenizer": fingerprint_tokenizer(learner.tokenizer),
    }


def _time(run: Run) -> dict[str, str]:
    """Return the time that the chat template renders into conversations, and what it can be replaced by."""
    tokenizer = None if run.models.built is None else run.models.built.tokenizer
    time = rendered_time(tokenizer)
    return {} if time is None else {TIME: time, TIME_VARIABLES: ", ".join(time_variables(tokenizer))}


def _rows(run: Run) -> dict[str, Any]:
    if run.models.built is None:  # rows are tokenised for the model
        return {}
    given = {name: getattr(run.data.inputs, name) is not None for name in (*ROWS, "logit_mask")}
    if run.models.kind == "scorer":  # which samples nothing
        given |= dict.fromkeys(("prompts", "eval_prompts"), False)
    given["logit_mask"] = given["logit_mask"] and run.models.has_policy
    data, stream = run.data, run.data.sample_stream
    read = [name for name in ROWS if given[name] and not (name == "samples" and stream)]
    rows: dict[str, object] = dict.fromkeys(ROWS) | {name: fingerprint_rows(getattr(data, ROWS[name])) for name in read}
    if stream is not None:
        rows["samples"] = f"stream, first {fingerprint_rows(stream.head())}"
    mask = run.sampling.logit_mask if given["logit_mask"] else None
    return rows | {"logit_mask": None if mask is None else fingerprint_table(mask)}


def _environment(run: Run, chosen: Chosen) -> dict[str, Any]:
    """Describe the environment and the limits of its episodes; nothing in a run without one."""
    given, choice = run.data.inputs.environment, chosen.environment
    episodes = unstructure(run.config.data.episodes) or {}
    is_here = not isinstance(given, str) or episodes.get("isolate", "none") == "none"  # else not imported here
    if given is None:
        return {}
    if choice is not None:
        options = {name: _described(value) for name, value in (unstructure(choice.options) or {}).items()}
        about = describe_bound(choice.component.qualified, describe_input(redact(options), whole=True))
    else:
        about = _described(given) if is_here else f"{given}, {run.sampling.traits.source}"
    return {"environment": about, "episodes": {name: episodes[name] for name in EPISODES if name in episodes} or None}


def _described(given: Any) -> Any:
    """Return a value with each function, class or `module:attribute` in it described by its source."""
    if isinstance(given, list | tuple):
        return [_described(each) for each in given]
    if is_reference(given):
        with contextlib.suppress(RLCoreError):  # an address, or a module of another interpreter
            return describe_function(load_reference(given, "data.environment"))
    return describe_function(given) if callable(given) or callable(getattr(given, "make", None)) else given


def _rewards(run: Run, chosen: Chosen) -> dict[str, str]:
    """Describe each reward function; a registered one by name and options, because its dist has a version."""
    found, rewards = {}, run.data.reward_fn
    for reward, function in zip(chosen.rewards, () if rewards is None else rewards.functions, strict=True):
        if reward.choice is None:
            about = describe_function(function.call)
        else:
            about = describe_bound(reward.choice.component.qualified, unstructure(reward.choice.options) or {})
        found[function.name] = f"{about}, weight {function.weight}"
    return found
