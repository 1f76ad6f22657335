"""The data of a run: prompts, samples, reward and metric functions, each loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs
from torch import Tensor

from rlcore.config import evolve
from rlcore.data.order import Order, OrderedRows
from rlcore.data.text import check_parts, count_truncated, warn_of_counts, warn_of_ends
from rlcore.data.user_code import load_reference
from rlcore.errors import DataError
from rlcore.plugins.registry import registries
from rlcore.protocols import PromptPipeline, RowStream, SamplePipeline, SourcePipeline
from rlcore.rewards.combine import Rewards
from rlcore.settings import DataConfig, TrainConfig
from rlcore.training.inputs import Inputs
from rlcore.training.models import Models
from rlcore.training.run_components import PIPELINES
from rlcore.types import Prompt, Sample, SampleReward


@attrs.define(eq=False, kw_only=True, slots=False)
class RunData:
    """The user's inputs as the run uses them. Tokenising needs the model, so a trainer builds that first.

    Attributes:
        inputs: the user's model, data and functions.
        orders: the orders of rows that the trainer takes.
    """

    _config: TrainConfig
    inputs: Inputs
    _models: Models
    _build_prompts: PromptPipeline
    _build_samples: SamplePipeline
    _make_rewards: Callable[[], Rewards]
    orders: list[Any] = attrs.field(factory=list)
    _are_checked: bool = attrs.field(default=False, init=False)

    @cached_property
    def options(self) -> DataConfig:
        """Return the section `data` of the configuration, with what follows from the policy where it is unset."""
        section, policy = self._config.data, self._models.policy if self._models.has_policy else None
        if section.outputs_begin_text is None:
            section = evolve(section, outputs_begin_text=policy is not None and policy.outputs_begin_text)
        if section.end_token_ids is None and policy is not None:
            section = evolve(section, end_token_ids=self._config.gen.eos_token_ids or policy.eos_token_ids)
        return section

    @cached_property
    def prompts(self) -> list[Prompt]:
        """Return the training prompts, tokenised; the same on all ranks."""
        return self.read_prompts(self.inputs.prompts, "prompts")

    @cached_property
    def eval_prompts(self) -> list[Prompt]:
        """Return the evaluation prompts, by default the first training prompts; none in a run with a scorer."""
        if self._models.kind == "scorer":
            return []
        if self.inputs.eval_prompts is not None:
            return self.read_prompts(self.inputs.eval_prompts, "eval_prompts")
        return self.prompts[: self._config.eval.num_prompts] if self.inputs.prompts is not None else []

    @cached_property
    def samples(self) -> Sequence[Any]:
        """Return the demonstrations, tokenised: `Sample` objects, or rows of the form that the pipeline returns.

        Raises:
            DataError: a row is invalid, or the rows are streamed, so that the trainer must call `ordered_samples`.
        """
        if self.sample_stream is not None:
            raise DataError(
                f"samples: is a stream ({type(self.inputs.samples).__name__}), but this trainer reads all rows before "
                "the first step; give a part of the stream, such as list(rows.take(1000)), and leave data.streaming out"
            )
        return self._read_whole(self.inputs.samples, "samples")

    @cached_property
    def sample_stream(self) -> RowStream | None:
        """Return the demonstrations if they are streamed, otherwise None.

        Raises:
            DataError: they cannot be streamed.
        """
        config, sources = self._config, self._sources
        if sources is None:
            if config.data.streaming:
                raise DataError("data.streaming: the pipeline of samples opens no streams; leave data.streaming out")
            return None
        return sources.open_stream(self.inputs.samples, config.data, seed=config.run.seed, read=self._read_samples)

    @cached_property
    def _sources(self) -> SourcePipeline | None:
        """Return the pipeline that opens streams and reads rows: that of samples, or else the default one."""
        if isinstance(self._build_samples, SourcePipeline):
            return self._build_samples
        default = registries().pipelines.matches(PIPELINES["sample_pipeline"])
        return next((each.target() for each in default if isinstance(each.target(), SourcePipeline)), None)

    def ordered_samples(
        self,
        read: Callable[[Sequence[Any], str], Sequence[object]] | None = None,
        *,
        is_usable: Callable[[Any], bool] | None = None,
    ) -> tuple[Any, Order | RowStream]:
        """Return the demonstrations, and the order in which a trainer takes them; both are the stream if there is one.

        Args:
            read: checks and filters rows in memory; called with them and with their name in errors.
            is_usable: returns whether a streamed row is trained on; others are left out.
        """
        stream = self.sample_stream
        if stream is not None:
            stream.is_usable = is_usable or stream.is_usable
            self.orders += [stream] if callable(getattr(stream, "metrics", None)) else []
            return stream, stream
        rows = self.samples if read is None else read(self.samples, "samples")
        return rows, self.order(rows, of=self.samples)

    def order(self, rows: Sequence[object], *, of: Sequence[object] | None = None) -> Order:
        """Return the order in which a trainer takes rows, which it may have made `of` others by leaving some out."""
        mixed, seed = rows if of is None else of, self._config.run.seed
        self.orders.append(mixed.order(rows, seed) if isinstance(mixed, OrderedRows) else Order(len(rows), seed))
        order: Order = self.orders[-1]
        return order

    @cached_property
    def eval_samples(self) -> Sequence[Any]:
        """Return the held-out demonstrations, tokenised; none if the user gave none."""
        if self.inputs.eval_samples is None:
            return []
        return self._read_whole(self.inputs.eval_samples, "eval_samples")

    @cached_property
    def sample_rewards(self) -> list[SampleReward]:
        """Return the reward of each token of each demonstration; none if the user gave no rewards."""
        if self.inputs.rewards is None:
            return []
        samples = self.samples if self.inputs.samples is not None else []
        columns = {name: theirs for name, theirs in self.options.columns.items() if name == "reward"}
        return self._reading("rewards").read_rewards(self.inputs.rewards, samples, columns, what="rewards")

    @cached_property
    def logit_mask(self) -> Tensor | None:
        """Return bool[V, V], True where the token of the column may follow that of the row; None if unset."""
        source = self.inputs.logit_mask
        return None if source is None else self._reading("logit_mask").read_logit_mask(source)

    def _reading(self, what: str) -> SourcePipeline:
        if self._sources is None:
            raise DataError(f"{what}: the pipeline of samples reads no {what}; name another with data.sample_pipeline")
        return self._sources

    def read_prompts(self, source: object, what: str) -> list[Prompt]:
        """Tokenise prompts of any form for the model; errors call them `what`."""
        learner: Any = self._models.prompted
        longest = learner.max_prompt_length if self._models.has_policy else learner.max_length
        limit = longest + 1 if longest else 0
        return self._build_prompts(source, learner.tokenizer, self.options, max_length=limit, what=what)

    def _read_whole(self, source: object, what: str) -> Sequence[object]:
        rows = self._read_samples(source, what)
        counts = count_truncated(rows)
        if not all(isinstance(row, Sample) for row in rows):
            del counts["truncated"]  # trainers count these rows themselves
        warn_of_counts(counts, what, read=len(rows))
        return rows

    def _read_samples(self, source: object, what: str) -> Sequence[object]:
        learner: Any = self._models.learner
        limit = learner.max_length
        rows = self._build_samples(source, learner.tokenizer, self.options, max_length=limit, what=what)
        if self._models.has_policy and self.options.append_eos and what.startswith("samples") and not self._are_checked:
            warn_of_ends(rows, self.options.end_token_ids or (), learner.tokenizer, what.partition("[")[0])
            self._are_checked = True
        if self._models.has_policy and learner.outputs_begin_text:
            most = learner.max_prompt_length
            check_parts(rows, max_prompt=most, max_output=max(limit - most, 0), what=what)
        return rows

    @cached_property
    def reward_fn(self) -> Rewards | None:
        """Return the reward functions as one, None if the user gave none."""
        return None if self.inputs.reward_fn is None else self._make_rewards()

    @cached_property
    def metric_fn(self) -> Callable[..., object] | None:
        """Return the function that computes metrics of completions, None if the user gave none."""
        function = self.inputs.metric_fn
        return load_reference(function, what="metric_fn") if isinstance(function, str) else function
