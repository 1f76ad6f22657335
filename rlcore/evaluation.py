"""Evaluate a policy: continue the evaluation prompts, score them as in training, and keep every completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rlcore.config import structure, unstructure
from rlcore.errors import ConfigError, RewardError
from rlcore.rewards import call_metric
from rlcore.run import Run
from rlcore.settings import SamplingConfig
from rlcore.types import Metrics, Prompt

Row = dict[str, Any]


def check_evaluation(run: Run) -> None:
    """Read all that evaluations need, so that a mistake in it ends a run before its first step and not after its last.

    Raises:
        RLCoreError: evaluation data, a reward or metric function, or an option of `eval.gen` cannot be used.
    """
    for _ in eval_samplings(run.config.gen, run.config.eval.gen):
        pass
    if run.policy is not None:
        _ = run.reward_fn, run.metric_fn, run.eval_prompts, run.eval_samples
        if run.config.checkpoint.keep_best and not any((run.eval_prompts, run.evaluations)):
            raise ConfigError(
                f"checkpoint.keep_best = {run.config.checkpoint.keep_best}: nothing is evaluated that could tell which "
                "are best; give eval_prompts or eval_samples"
            )


def evaluate(run: Run) -> tuple[Metrics, list[Row]]:
    """Return the metrics of the policy as it is now, keys under `eval/`, and all completions, on every rank.

    The random numbers are the same at every evaluation and are not those of training, so neither how often a run is
    evaluated nor on what changes what it learns.
    """
    metrics: Metrics = {}
    for evaluation in run.evaluations:
        metrics |= {f"eval/{name}": value for name, value in evaluation().items()}
    rows: list[Row] = []
    if run.eval_prompts:
        for suffix, sampling in eval_samplings(run.config.gen, run.config.eval.gen):
            found = _complete(run, sampling)
            metrics |= {f"eval/{name}{suffix}": value for name, value in _summarise(found).items()}
            rows += [{"sampling": suffix[1:], **row} if suffix else row for row in found]
    return metrics, rows


def eval_samplings(base: SamplingConfig, changes: dict[str, Any] | Any) -> Iterator[tuple[str, SamplingConfig]]:
    """Yield each way of sampling that an evaluation uses, with the suffix its metrics carry.

    One option of `changes` may be a list (of lists, for an option that is one itself): `{"temperature": [0.5, 1]}`
    yields `@temperature=0.5` and `@temperature=1`.

    Raises:
        ConfigError: an unknown or misfitting option, or more than one list.
    """
    several = {"stop_sequences", "eos_token_ids"}
    swept = [
        name
        for name, value in changes.items()
        if isinstance(value, (list, tuple))
        and (name not in several or any(isinstance(v, (list, tuple)) for v in value))
    ]
    if len(swept) > 1:
        raise ConfigError(f"eval.gen: {' and '.join(swept)} are lists; one option may be swept at a time")
    plain = unstructure(base)
    if swept and not changes[swept[0]]:
        raise ConfigError(f"eval.gen.{swept[0]} is an empty list; give the values to evaluate at, or leave it out")
    if not swept:
        yield "", structure(SamplingConfig, {**plain, **changes}, where="eval.gen")
        return
    name = swept[0]
    for value in changes[name]:
        yield f"@{name}={value}", structure(SamplingConfig, {**plain, **changes, name: value}, where="eval.gen")


def _complete(run: Run, sampling: SamplingConfig) -> list[Row]:
    """Continue and score this rank's share of the prompts, and gather the rows of all ranks in the prompts' order."""
    prompts = [prompt for prompt in run.eval_prompts for _ in range(run.config.eval.samples)]
    mine = run.ranks.share(len(prompts))
    generator = torch.Generator().manual_seed(run.config.run.seed * 1009 + 500 + run.ranks.rank)
    rows: list[tuple[int, Row]] = []
    for start in range(0, len(mine), run.config.eval.batch_size):
        index = mine[start : start + run.config.eval.batch_size]
        rows += zip(index, _rows(run, [prompts[i] for i in index], sampling, generator), strict=True)
    return [row for _, row in sorted(run.ranks.gather(rows), key=lambda pair: pair[0])]


def _rows(run: Run, prompts: Sequence[Prompt], sampling: SamplingConfig, generator: torch.Generator) -> list[Row]:
    where = f"evaluation after step {run.step}"
    batch = run.sample(prompts, sampling, generator=generator)
    scored = run.score(prompts, batch, stop_sequences=sampling.stop_sequences, where=where)
    rows: list[Row] = [
        {"prompt": prompt.text, "output": output, "length": length, "ended": ended}
        for prompt, output, length, ended in zip(
            prompts, scored.outputs, batch.num_actions.tolist(), batch.ended.tolist(), strict=True
        )
    ]
    columns: dict[str, Sequence[float | None]] = {}
    if run.reward_fn is not None:
        columns["reward"] = scored.scores.tolist()
    if len(scored.by_name) > 1:
        columns |= {f"reward/{name}": values for name, values in scored.by_name.items()}
    if run.metric_fn is not None:
        measured = call_metric(run.metric_fn, prompts, scored.outputs, tokenizer=run.tokenizer, where=where)
        if taken := sorted((rows[0].keys() | columns.keys()) & measured.keys()):
            raise RewardError(f"the metric function ({where}) named a metric '{taken[0]}', which is taken; rename it")
        columns |= measured
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def _summarise(rows: Sequence[Row]) -> Metrics:
    """Average every numeric column; the reward's spread besides."""
    metrics: Metrics = {}
    for name in rows[0]:
        if name in ("prompt", "output"):
            continue
        values = torch.tensor([float(row[name]) for row in rows if row[name] is not None], dtype=torch.float64)
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
