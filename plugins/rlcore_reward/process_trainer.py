"""The loop of process-reward training: answers in steps, each with a verdict; one optimizer step, one yield.

Also in this file: answers in steps with a verdict each: the pipeline `stepwise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import attrs
import torch
from torch import Tensor

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.protocols import SequenceScorer
from rlcore.safe_text import shorten
from rlcore.training import Meter, Run, by_block, disable_dropout, eval_mode, micro_batches
from rlcore.types import Metrics, Sample, State, Trajectories
from rlcore_reward.config import ProcessRewardConfig
from rlcore_reward.loss import step_loss
from rlcore_reward.scorer import StepScorer
from rlcore_transformers.data.mixtures import indices_by_source, mixing
from rlcore_transformers.data.rows import ANSWERS, load_rows, name_unread
from rlcore_transformers.data.tokens import (
    encode,
    encode_continuations,
    missing_opening,
    opening_tokens,
    shorter,
)
from rlcore_transformers.preferences.answers import number_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig


SEPARATOR = "\n"
"""Text after every step of an answer; the label of the step is that of its last token."""


STEPS = ("completions", "labels")
"""Keys of a row beside the prompt."""
UNLABELLED = -100
"""Label of a token that is not the last of a step, which `torch.nn.functional.cross_entropy` ignores."""


@attrs.frozen
class SteppedSample:
    """An answer in steps, each with a verdict.

    Attributes:
        sample: the prompt with all steps.
        labels: one number for each token: 1 or 0 at the last token of a correct or wrong step, `UNLABELLED` elsewhere.
    """

    sample: Sample
    labels: tuple[int, ...]


@mixing
def build_stepwise(
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[SteppedSample]:
    """Read and tokenise answers in steps with a verdict each, in their order.

    A row is a mapping with `prompt` (or `data.prompt_column`), a string, `completions`, a list of strings, and
    `labels`, one true or false for each. Each step is followed by a line break, whose last token has the label. A row
    that is longer than `data.max_sample_tokens` or the model's context is cut at the end; cut to the context, it may
    have no label left.

    The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is invalid, or `data.max_sample_tokens` leaves no step of it; the message names the first one.
    """
    rows = list(number_rows(load_rows(source, tokenizer, data, what, answers=("completion", *ANSWERS)), what))
    name_unread([row for _, row in rows], [(data.prompt_column, *STEPS)] * len(rows), tokenizer, what)
    read = [_read_steps(row, data.prompt_column, where) for where, row in rows]
    prompts = encode(tokenizer, [prompt for prompt, _, _ in read], lambda i: rows[i][0])
    flat = [step for _, steps, _ in read for step in steps]
    tokens = iter(encode_continuations(tokenizer, flat))
    (separator,) = encode_continuations(tokenizer, [SEPARATOR])
    opening = opening_tokens(tokenizer, data.add_bos)
    made = []
    for prompt, (_, steps, labels), (where, _) in zip(prompts, read, rows, strict=True):
        ids = missing_opening(prompt, opening) + prompt
        start, marks = len(ids), [UNLABELLED] * len(ids)
        for _, label in zip(steps, labels, strict=True):
            step = [*next(tokens), *separator]
            ids += step
            marks += [UNLABELLED] * (len(step) - 1) + [int(label)]
        made.append(_fit(ids, marks, start, data.max_sample_tokens, max_length, where))
    return made


build_stepwise.example_rows = [  # type: ignore[attr-defined]  # read by the conformance kit
    {
        "prompt": "ab" * (1 + i % 3),
        "completions": ["c" * (1 + i % 4), "de"][: 1 + i % 2],
        "labels": [True, i % 3 == 0][: 1 + i % 2],
    }
    for i in range(10)
]


def _read_steps(row: Mapping[str, object], prompt_column: str, where: str) -> tuple[str, Sequence[str], Sequence[bool]]:
    prompt, steps, labels = (row.get(key) for key in (prompt_column, "completions", "labels"))
    if not isinstance(prompt, str):
        raise DataError(
            f"{where}: '{prompt_column}' is {shorten(prompt)} (keys: {', '.join(map(repr, row)) or 'none'}); "
            "the prompt of an answer in steps is a string; data.columns renames columns"
        )
    if not isinstance(steps, list | tuple) or not steps or not all(isinstance(step, str) for step in steps):
        raise DataError(
            f"{where}: 'completions' is {shorten(steps)}; it must be a list of strings, one for each step"
            + _as_json(steps)
        )
    if (
        not isinstance(labels, list | tuple)
        or len(labels) != len(steps)
        or any(label not in (0, 1) for label in labels)
    ):
        raise DataError(
            f"{where}: 'labels' is {shorten(labels)}; it must be one true or false for each of {len(steps)} steps"
            + _as_json(labels)
        )
    return prompt, steps, labels


def _as_json(value: object) -> str:
    """Return the advice for a text, such as a cell of a table."""
    return (
        "; if it is JSON, set data.column_types, as in {completions: json, labels: json}"
        if isinstance(value, str)
        else ""
    )


def _fit(ids: list[int], marks: list[int], start: int, limit: int, max_length: int, where: str) -> SteppedSample:
    size = len(ids)
    ids = ids[: shorter(limit, max_length) or None]
    marks = marks[: len(ids)]
    if 0 < limit == len(ids) and all(mark == UNLABELLED for mark in marks):
        raise DataError(f"{where}: no step ends within data.max_sample_tokens = {limit}; raise it, or remove the row")
    chosen = tuple(k > 0 and k >= start for k in range(len(ids)))
    return SteppedSample(Sample(tuple(ids), chosen, ended=len(ids) == size), tuple(marks))


class ProcessRewardTrainer:
    """Training of a process reward model (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("samples",)
    sample_pipeline = "stepwise"
    architecture = "step_scorer"
    lowers = "loss/total"
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    headline = ("eval/step/accuracy", "step/accuracy", "loss/total", "step/correct_fraction")

    @staticmethod
    def workload(config: object, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG004  (as of every trainer)
        """Return no more for `rlcore plan` than the options say."""
        return {}

    def __init__(self, config: ProcessRewardConfig, run: Run) -> None:
        self.config, self.run = config, run
        self.scorer = cast("StepScorer", run.build("scorer"))
        if not config.dropout:
            disable_dropout(self.scorer.module)
        self.scorer.module.train()
        self.rows = self.usable(run.samples, "samples")
        self.held_out = self.usable(run.data.eval_samples, "eval_samples") if run.data.eval_samples else []
        self.order = run.data.order(self.rows, of=run.samples)
        run.plan_steps(-(-len(self.rows) // config.batch_size))
        self.updater = run.updater(self.scorer, config.optimizer)
        if self.held_out:
            run.add_evaluation(self.validate)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        config = self.config
        while True:
            indices, meter = self.order.take_within_pass(config.batch_size), self.updater.meter()
            batch = stack_steps([self.rows[i] for i in indices]).to(self.updater.device)
            self.updater.accumulate(
                batch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            self.updater.step(meter)
            yield meter.means() | {"lr": self.updater.lr, "progress/epoch": self.order.epoch}

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss at the end of each step, float[B, T], and its metrics."""
        logprobs, correct = self.scorer.logprobs(part), part["labels"]
        losses = step_loss(logprobs, correct)
        right = (logprobs[..., 1] > logprobs[..., 0]) == correct
        return losses, {
            "loss/total": losses, "step/accuracy": right.float(), "step/correct_fraction": correct.float(),
            "step/probability": logprobs[..., 1].exp(),
        }  # fmt: skip

    @torch.no_grad()
    def validate(self) -> Metrics:
        """Return the metrics of the held-out steps, and those of each source of a mixture, on all ranks together.

        Each step has the same weight.
        """
        whole, found = self.updater.meter(), Metrics()
        for source, rows in indices_by_source(self.held_out, of=self.run.data.eval_samples).items():
            meter = self._measured([self.held_out[i] for i in rows])
            whole.merge(meter)
            own = meter.means() if source else {}
            found |= {f"{name.removesuffix('/total')}/{source}": value for name, value in own.items()}
        means = whole.means() | {"data/held_out": float(len(self.held_out))}
        return {name.removesuffix("/total"): value for name, value in means.items()} | found

    def _measured(self, rows: Sequence[SteppedSample]) -> Meter:
        """Return the sums of the metrics over the steps of held-out rows."""
        config, meter = self.config, self.updater.meter()
        with eval_mode(self.scorer.module), by_block(self.scorer):
            for start in range(0, len(rows), config.batch_size):
                batch = stack_steps(rows[start : start + config.batch_size]).to(self.updater.device)
                for part, _ in micro_batches(
                    batch, config.micro_batch_size, self.run.ranks, tokens=config.micro_batch_tokens
                ):
                    meter.add(part.action_mask, self.loss(part)[1])
        return meter

    def usable(self, rows: Sequence[object], what: str) -> list[SteppedSample]:
        """Return the rows that are no longer than `max_length` and the model's context; a warning counts the others.

        Raises:
            DataError: the rows are no answers in steps, or none is left.
        """
        context, asked = self.scorer.max_length, self.run.config.data.max_sample_tokens
        is_cut_on_purpose = bool(asked) and not 0 < context < asked
        return usable_steps(rows, self.config, what, context=0 if is_cut_on_purpose else context)

    def policy(self) -> SequenceScorer:
        """Return the scorer."""
        return self.scorer

    def state_dict(self) -> State:
        """Return the optimizer and the order of rows."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])


def usable_steps(rows: Sequence[Any], config: ProcessRewardConfig, what: str, *, context: int) -> list[SteppedSample]:
    """Return the rows that are no longer than `max_length` and not cut to the context; a warning counts the others.

    Args:
        rows: what the pipeline returned.
        config: the trainer's options.
        what: the option that holds the rows, for errors.
        context: tokens to which the pipeline has cut longer rows; 0 if `data.max_sample_tokens` cuts them on purpose.

    Raises:
        DataError: the rows are no answers in steps, or none is left.
    """
    if rows and not isinstance(rows[0], SteppedSample):
        raise DataError(
            f"{what}: data.sample_pipeline returned rows of {type(rows[0]).__name__}; the trainer 'process_reward' "
            "needs answers in steps with labels: leave data.sample_pipeline out, or set it to stepwise"
        )
    limit = config.max_length
    whole = [row for row in rows if not context or row.sample.ended]
    kept = [row for row in whole if not limit or len(row.sample.tokens) <= limit]
    if not kept:
        raise DataError(
            f"{what}: all {len(rows)} rows are longer than trainer.max_length = {limit} or the model's "
            "context; raise trainer.max_length, or set data.max_sample_tokens to cut off the last steps"
        )
    if len(kept) < len(rows):
        get_logger("reward").warning(
            f"{what}: rows are left out", kept=len(kept), longer_than_max_length=len(rows) - len(kept)
        )
    return kept


def stack_steps(rows: Sequence[SteppedSample]) -> Trajectories:
    """Pad answers in steps into one batch, on the CPU; the last token of each step is chosen.

    The column `labels`, bool[B, T], is True there if the step is correct.
    """
    marks = [row.labels for row in rows]
    batch = Trajectories.stack([row.sample.tokens for row in rows], [[mark >= 0 for mark in row] for row in marks])
    correct = torch.zeros(batch.tokens.shape, dtype=torch.bool)
    correct[batch.mask] = torch.tensor([mark == 1 for row in marks for mark in row])
    return batch.with_columns(labels=correct)
