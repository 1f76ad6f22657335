"""Evaluate a policy: continue the evaluation prompts and score the completions as in training.

Also in this file: the grid of sampling options that an evaluation sweeps, and the metric suffix of each combination.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from rlcore.config import structure, unstructure
from rlcore.errors import ConfigError, DataError, RewardError
from rlcore.logging import get_logger
from rlcore.ops import eval_mode
from rlcore.protocols import Policy
from rlcore.rewards.combine import Scored
from rlcore.rewards.values import call_metric, call_metric_on
from rlcore.safe_text import shorten
from rlcore.sampling import check_options, check_vocabulary, derive_seeds, takes
from rlcore.settings import CheckpointConfig, SamplingConfig
from rlcore.training.rollout import TRANSCRIPT, episode_columns, prompt_columns
from rlcore.training.run import Run
from rlcore.types import Episodes, Metrics, Options, Prompt, Trajectories

REWARD = "eval/reward/mean"
LISTS = ("stop_sequences", "eos_token_ids")
"""Options whose value is a list; a list of lists sweeps them."""
UNSWEPT = {"batch_size": "it does not change the samples (eval.batch_size is the number of prompts sampled at once)"}
"""Options that cannot be swept, each with the reason."""


def eval_samplings(base: SamplingConfig, changes: Options) -> Iterator[tuple[str, SamplingConfig]]:
    """Yield the sampling options of each combination that an evaluation uses, with the suffix of its metrics.

    Any option of `changes` may be a list of values (a list of lists where one value is a list). All combinations are
    yielded: `{"beta": [0, 4], "temperature": [0.5, 1]}` gives `@beta=0@temperature=0.5`, `@beta=0@temperature=1` and so
    on, with the options in the order of `changes`. An option with one value is not part of the suffix.

    Args:
        base: the options that `changes` does not contain.
        changes: options by name, each with its value or a list of values.

    Raises:
        ConfigError: an option is unknown, a value cannot be used, a list is empty or repeats a value, or an option of
            UNSWEPT has a list.
    """
    swept = {name: value for name, value in changes.items() if _is_sweep(name, value)}
    plain = unstructure(base)
    for name, values in swept.items():
        if name in plain:  # others are refused below, without their values
            _check_values(name, values)
    for values in itertools.product(*swept.values()):
        chosen = dict(zip(swept, values, strict=True))
        suffix = "".join(f"@{name}={value}" for name, value in chosen.items())
        yield suffix, structure(SamplingConfig, {**plain, **changes, **chosen}, where="eval.gen")


def refuse_sweeps(gen: Options, where: str) -> None:
    """Refuse a list of values in `gen`; only `eval.gen` takes one.

    Raises:
        ConfigError: an option that takes one value has a list.
    """
    lines = [
        f"{where}: gen.{name} = {shorten(list(gen[name]))}: training uses one value, only evaluations sweep a list: "
        f"set eval.gen.{name} to the list, and gen.{name} to one value or leave it out"
        for name in sweeps_in(gen)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def sweeps_in(gen: Mapping[str, object]) -> list[str]:
    """Return the names of the options that have lists of values."""
    return [
        name for name in unstructure(SamplingConfig()) if name not in LISTS and isinstance(gen.get(name), (list, tuple))
    ]


def ranking(keep: CheckpointConfig) -> tuple[str, Literal["max", "min"]]:
    """Return the metric that ranks checkpoints, and whether the largest or the smallest value of it is the best."""
    metric = keep.metric or REWARD
    return metric, keep.mode or ("min" if "loss" in metric else "max")


def find_score(metrics: Metrics, metric: str, suffixes: Sequence[str], mode: Literal["max", "min"]) -> float | None:
    """Return the value of the metric that ranks checkpoints; of a sweep, the best of its values.

    Args:
        metrics: the metrics of one evaluation.
        metric: its name, with or without the suffix of a combination.
        suffixes: the suffixes that `eval_samplings` yields.
        mode: whether the largest or the smallest value is the best.

    Returns:
        None if no metric has that name; nan if none of its values is finite.
    """
    if metric in metrics:
        return metrics[metric]
    found = [metrics[metric + suffix] for suffix in suffixes if metric + suffix in metrics]
    finite = [value for value in found if math.isfinite(value)]
    if not finite:
        return math.nan if found else None
    return max(finite) if mode == "max" else min(finite)


def _is_sweep(name: str, value: object) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return name not in LISTS or any(isinstance(part, (list, tuple)) for part in value)


def _check_values(name: str, values: Sequence[object]) -> None:
    if name in UNSWEPT:
        raise ConfigError(f"eval.gen.{name} = {list(values)}: cannot be a list: {UNSWEPT[name]}")
    if not values:
        raise ConfigError(f"eval.gen.{name} is an empty list; give the values to evaluate at, or leave it out")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ConfigError(f"eval.gen.{name} = {list(values)}: holds {twice[0]!r} twice; give each value once")


Row = dict[str, Any]
log = get_logger("evaluation")


def check_evaluation(run: Run) -> None:
    """Load everything that sampling and evaluations need, so that a mistake ends the run before its first step.

    Raises:
        RLCoreError: evaluation data, a reward or metric function, the logit mask, or an option of `gen` or `eval.gen`
            cannot be used, evaluations are asked for and there is nothing to evaluate, or none will yield the metric
            that ranks checkpoints.
    """
    samplings = list(eval_samplings(run.config.gen, run.config.eval.gen))
    if run.models.built is None:
        return
    if run.models.kind == "scorer":
        given = run.data.inputs
        unused = [name for name in ("prompts", "eval_prompts", "reward_fn") if getattr(given, name) is not None]
        if unused:
            log.warning("a run that trains a scorer samples nothing, and does not use these inputs", inputs=unused)
    else:
        _ = run.data.reward_fn, run.data.metric_fn
    if run.models.has_policy:
        _check_sampling(run, run.models.policy, [sampling for _, sampling in samplings])
    _ = run.data.eval_prompts, run.data.eval_samples
    if run.config.checkpoint.keep_best:
        _check_metric(run, [suffix for suffix, _ in samplings])
    _check_any(run)


def _check_sampling(run: Run, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
    check_options(policy, run.config.gen)
    for sampling in samplings:
        check_options(policy, sampling, "eval.gen")
    run.sampling.traits.check(policy, [run.config.gen, *samplings])
    _warn_of_room(run, policy, [run.config.gen, *samplings])
    has_beta = any(sampling.beta for sampling in (run.config.gen, *samplings))
    if run.sampling.logit_mask is not None or has_beta:
        with torch.no_grad(), eval_mode(policy.module):
            options = {"advantages": True} if has_beta else {}
            first = policy.decoder([[0]], max_new_tokens=1, **options).start()
        _check_logit_mask(run, first.logits.shape[1])


def _warn_of_room(run: Run, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
    """Warn once of prompts that leave less room in the model's context than `max_new_tokens`."""
    prompts = run.prompts if run.data.inputs.prompts is not None else run.data.eval_prompts
    most, context = max(sampling.max_new_tokens for sampling in samplings), policy.max_length
    short = [len(prompt.tokens) for prompt in prompts if 0 < context < len(prompt.tokens) + most]
    if short:
        log.warning(
            "responses to some prompts end at the model's context, before max_new_tokens", max_new_tokens=most,
            context=context, longest_prompt=max(short), prompts=len(short), of=len(prompts),
        )  # fmt: skip


def _check_any(run: Run) -> None:
    """Check that there is something to evaluate if evaluations are asked for; the one at the end is the default."""
    asked = {"eval.every": run.config.eval.every, "eval.at_start": run.config.eval.at_start}
    for name, value in asked.items():
        if value and not run.data.eval_prompts and not run.evaluations:
            raise ConfigError(
                f"{name} = {value!r}: there is nothing to evaluate; give eval_prompts, prompts or eval_samples, "
                f"whichever this trainer evaluates, or leave {name} out"
            )


def _check_logit_mask(run: Run, vocabulary: int) -> None:
    """Check that the logit mask fits the policy and that the sampler takes one."""
    mask, policy = run.sampling.logit_mask, run.models.policy
    if mask is None:
        return
    if not takes(run.sampling.sampler, "logit_mask"):
        raise ConfigError(
            f"logit_mask: sampler {run.config.sampler!r} takes none; leave logit_mask out, or choose another sampler "
            "(sampler: default); its author gives it a keyword argument logit_mask"
        )
    check_vocabulary(mask, vocabulary)
    eos_token_ids = policy.eos_token_ids if run.config.gen.eos_token_ids is None else run.config.gen.eos_token_ids
    ending = [token for token in eos_token_ids if 0 <= token < vocabulary]
    if not bool(mask[:, ending].any()):
        log.warning("logit_mask allows EOS after no token: sequences end only at stop sequences and length limits")
    for i, prompt in enumerate(run.data.eval_prompts):
        if not bool(mask[prompt.tokens[-1]].any()):
            raise DataError(
                f"logit_mask[{prompt.tokens[-1]}]: allows no token after the last token of evaluation prompt {i}, "
                f"{prompt.text[-60:]!r}; allow some token there, or leave the prompt out"
            )
    dead_ends = mask.any(0) & ~mask.any(1)
    dead_ends[ending] = False
    if bool(dead_ends.any()):
        log.warning(
            "logit_mask allows tokens after which it allows none: sampling fails if a sequence continues after one",
            tokens=dead_ends.nonzero()[:8, 0].tolist(), count=int(dead_ends.sum()),
        )  # fmt: skip


def _check_metric(run: Run, suffixes: Sequence[str]) -> None:
    """Check the name of the metric that ranks checkpoints, as far as names are known before an evaluation."""
    keep = run.config.checkpoint
    metric, mode = ranking(keep)
    if not run.data.eval_prompts and not run.evaluations:
        raise ConfigError(
            f"checkpoint.keep_best = {keep.keep_best}: nothing is evaluated, so the best cannot be chosen; give "
            "eval_prompts or eval_samples"
        )
    has_more = bool(run.evaluations) or run.data.metric_fn is not None
    if has_more and metric.startswith("eval/"):  # names that functions return are known once they are called
        return
    names = ["eval/time_s"]
    if run.data.eval_prompts:
        names += ["eval/response/length_mean", "eval/response/truncated_fraction"]
    if run.data.eval_prompts and run.data.reward_fn is not None:
        rewards = run.data.reward_fn.names
        names += [f"eval/reward/{name}" for name in ("mean", "std", *(rewards if len(rewards) > 1 else ()))]
    known = {name + suffix: 0.0 for name in names for suffix in ("", *suffixes)}
    if find_score(known, metric, suffixes, mode) is None:
        more = ", and others that begin with eval/" if has_more else ""
        swept = f", each with one of {', '.join(suffixes)}, or the best without" if any(suffixes) else ""
        raise ConfigError(
            f"checkpoint.metric = {metric!r}: evaluations yield no such metric; they yield {', '.join(names)}"
            f"{more}{swept}"
        )


def evaluate(run: Run) -> tuple[Metrics, list[Row]]:
    """Return the metrics of the current policy, with keys under `eval/`, and on rank 0 all completions.

    Every evaluation uses the same random numbers, separate from those of training, so evaluations do not change what a
    run learns. Those of a completion depend on its index alone, and so not on the number of processes.
    """
    metrics: Metrics = {}
    rows: list[Row] = []
    for evaluation in run.evaluations:
        found = evaluation()
        measured, further = found if isinstance(found, tuple) else (found, [])
        metrics |= {f"eval/{name}": value for name, value in measured.items()}
        rows += further
    if run.models.has_policy and run.data.eval_prompts:
        for suffix, sampling in eval_samplings(run.config.gen, run.config.eval.gen):
            completed = _complete(run, sampling)
            measured = run.ranks.on_main(functools.partial(summarise, completed))
            metrics |= {f"eval/{name}{suffix}": value for name, value in measured.items()}
            rows += [{"sampling": suffix[1:], **row} if suffix else row for row in completed]
    return metrics, rows


def _complete(run: Run, sampling: SamplingConfig) -> list[Row]:
    """Sample and score completions of this rank's prompts; return those of all ranks on rank 0, in prompt order."""
    prompts = [prompt for prompt in run.data.eval_prompts for _ in range(run.config.eval.samples)]
    mine = run.ranks.share(len(prompts))
    seeds = derive_seeds(run.config.run.seed * 1009 + 500, mine)
    rows: list[tuple[int, Row]] = []
    numbers: list[tuple[list[Row], Mapping[str, Sequence[float | None]]]] = []
    run.sampling.prepare([prompts[i] for i in mine])
    for start in range(0, len(mine), run.config.eval.batch_size):
        part = slice(start, start + run.config.eval.batch_size)
        index = mine[part]
        found, batch = _rows(run, [prompts[i] for i in index], sampling, seeds[part])
        rows += zip(index, found, strict=True)
        numbers.append((found, batch.numbers if isinstance(batch, Episodes) else {}))
    run.sampling.check_round()  # which may add numbers that only later episodes have
    for found, by_name in numbers:
        for i, row in enumerate(found):
            row |= {name: values[i] for name, values in by_name.items()}
    return [row for _, row in sorted(run.ranks.gather_to_main(rows), key=lambda pair: pair[0])]


def _rows(
    run: Run, prompts: Sequence[Prompt], sampling: SamplingConfig, seeds: Sequence[int]
) -> tuple[list[Row], Trajectories]:
    where = f"evaluation after step {run.step}"
    batch = run.sampling.sample(prompts, sampling, row_seeds=seeds)
    scored = run.sampling.score(prompts, batch, stop_sequences=sampling.stop_sequences, where=where)
    rows: list[Row] = [
        {**prompt_columns(prompt), "output": output, "length": length, "ended": ended, **episode_columns(batch, i)}
        for i, (prompt, output, length, ended) in enumerate(
            zip(prompts, scored.outputs, batch.num_actions.tolist(), batch.ended.tolist(), strict=True)
        )
    ]
    return with_scores(rows, scored, _measured(run, prompts, batch, scored.outputs, where), where=where), batch


def _measured(
    run: Run, prompts: Sequence[Prompt], batch: Trajectories, outputs: Sequence[str], where: str
) -> dict[str, list[float | None]]:
    """Call the metric function, if there is one; episodes that failed have no numbers."""
    failures = batch.failures if isinstance(batch, Episodes) else [""] * len(batch)
    rows = [i for i, failure in enumerate(failures) if not failure]
    if run.data.metric_fn is None or not rows:
        return {}
    tokens = batch.action_tokens
    found = call_metric(
        run.data.metric_fn, prompts, [outputs[row] for row in rows], run.learner.tokenizer, where=where, rows=rows,
        output_tokens=[tokens[row] for row in rows],
        timeout_s=run.config.run.reward_timeout_s, further=batch.arguments if isinstance(batch, Episodes) else {},
    )  # fmt: skip
    by_row = {name: dict(zip(rows, values, strict=True)) for name, values in found.items()}
    return {name: [values.get(i) for i in range(len(batch))] for name, values in by_row.items()}


def measure_outputs(run: Run, prompts: Sequence[Prompt], outputs: Mapping[str, object]) -> tuple[Scored, list[Row]]:
    """Score outputs that are no text, and return the rows of completions.jsonl with their prompts and numbers.

    Args:
        run: the run; its reward and metric functions are called.
        prompts: B prompts.
        outputs: B outputs by the name of the argument that the functions receive, such as `{"images": images}`.
    """
    where, measured = f"evaluation after step {run.step}", dict[str, list[float | None]]()
    scored = run.sampling.score_outputs(prompts, outputs, where=where)
    if run.data.metric_fn is not None:
        measured = call_metric_on(
            run.data.metric_fn, prompts, outputs, where=where, timeout_s=run.config.run.reward_timeout_s
        )
    return scored, with_scores([prompt_columns(prompt) for prompt in prompts], scored, measured, where=where)


def with_scores(
    rows: list[Row], scored: Scored, measured: Mapping[str, Sequence[float | None]], *, where: str
) -> list[Row]:
    """Add the scores and metrics of each output to its row.

    Raises:
        RewardError: a metric has the name of another column.
    """
    columns: dict[str, Sequence[float | None]] = {}
    if scored.by_name:
        columns["reward"] = scored.totals
    if len(scored.by_name) > 1:
        columns |= {f"reward/{name}": values for name, values in scored.by_name.items()}
    if measured:
        if clash := sorted((rows[0].keys() | columns.keys()) & measured.keys()):
            raise RewardError(
                f"the metric function ({where}) returned a metric '{clash[0]}', a name that is in use; rename it"
            )
        columns |= measured
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


UNSCORED = "reward/unscored"
"""Metric that counts the rows without a score."""


def summarise(rows: Sequence[Row]) -> Metrics:
    """Return the mean of every numeric column, the standard deviation of the reward, and how many rows have none.

    The metrics of each source of a mixture follow, with `/` and the source's name at the end.
    """
    metrics: Metrics = {}
    for source in dict.fromkeys(row["source"] for row in rows if "source" in row):
        part = [{**row} for row in rows if row.get("source") == source]
        for row in part:
            del row["source"]
        metrics |= {f"{name}/{source}": value for name, value in summarise(part).items()}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in ("prompt", "messages", "output", "source", TRANSCRIPT):
            continue
        values = torch.tensor([float(row[name]) for row in rows if row.get(name) is not None], dtype=torch.float64)
        if name == "reward" and len(values) < len(rows):
            metrics[UNSCORED] = float(len(rows) - len(values))
        if not len(values):
            continue
        if name == "reward":
            metrics |= {"reward/mean": float(values.mean()), "reward/std": float(values.std(correction=0))}
        elif name == "length":
            metrics["response/length_mean"] = float(values.mean())
        elif name == "ended":
            metrics["response/truncated_fraction"] = 1.0 - float(values.mean())
        else:
            metrics[name] = float(values.mean())
    return metrics
