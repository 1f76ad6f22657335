"""Collects the identity of a run: what has to stay the same for a resumed run to equal an uninterrupted one."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from rlcore.checkpoints.fingerprints import (
    describe_bound,
    describe_function,
    describe_model,
    fingerprint_rows,
    fingerprint_table,
    fingerprint_tokenizer,
    rendered_time,
    time_variables,
)
from rlcore.checkpoints.identity import TIME, TIME_VARIABLES, flatten
from rlcore.config import unstructure
from rlcore.data.user_code import load_reference
from rlcore.dropout import is_stochastic
from rlcore.errors import RLCoreError
from rlcore.safe_text import redact
from rlcore.sampling import takes
from rlcore.settings import to_record
from rlcore.training.inputs import describe_input
from rlcore.training.run import Run
from rlcore.training.run_components import Chosen

ROWS = {
    "prompts": "prompts", "eval_prompts": "eval_prompts", "samples": "samples", "eval_samples": "eval_samples",
    "rewards": "sample_rewards",
}  # fmt: skip
"""Inputs of rows, and the attributes of `RunData` with the rows as the run uses them."""


EPISODES = ("max_turns", "max_new_tokens", "history", "refill", "curriculum", "seeds")
"""Options of `data.episodes` that change what is learned; the others are about time, processes and failures."""
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""What `module:attribute` looks like."""


def identify(run: Run, chosen: Chosen) -> dict[str, Any]:
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
    rows: dict[str, Any] = dict.fromkeys(ROWS) | {name: fingerprint_rows(getattr(data, ROWS[name])) for name in read}
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
        about = _described(given) if is_here else f"{given}, {getattr(run.sampling.sampler, 'source', 'no source')}"
    return {"environment": about, "episodes": {name: episodes[name] for name in EPISODES if name in episodes} or None}


def _described(given: Any) -> Any:
    """Return a value with each function, class or `module:attribute` in it described by its source."""
    if isinstance(given, list | tuple):
        return [_described(each) for each in given]
    if isinstance(given, str) and REFERENCE.fullmatch(given):
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
