"""The data of a run: prompts, samples, reward and metric functions, each loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs
from torch import Tensor

from rlcore.config import evolve
from rlcore.data.logit_masks import load_logit_mask
from rlcore.data.order import Order
from rlcore.data.sample_rewards import SampleReward, build_sample_rewards
from rlcore.data.truncation import check_parts, count_truncated, warn_of_counts
from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError, DataError
from rlcore.plugins.registry import registries
from rlcore.protocols import (
    Learner,
    Policy,
    PromptPipeline,
    RowStream,
    SamplePipeline,
    SequenceScorer,
    SourcePipeline,
)
from rlcore.rewards.combine import Rewards
from rlcore.settings import DataConfig, TrainConfig
from rlcore.training.inputs import Inputs
from rlcore.training.run_components import PIPELINES
from rlcore.types import Prompt, Sample, to_device


@attrs.define(eq=False, kw_only=True)
class RunData:
    """What `Run` reads of the user's inputs. Tokenising needs the policy, so a trainer builds that first.

    Attributes:
        config: the resolved configuration.
        inputs: the user's model, data and functions.
        build_prompts: the pipeline that tokenises prompts.
        build_samples: the pipeline that tokenises demonstrations.
        make_rewards: loads the reward functions.
        policy: the policy of the run; None before it is built, and in a run with another model.
        scorer: the scorer of the run; likewise.
        other: the model of a run that trains neither, such as an image pipeline; likewise.
    """

    config: TrainConfig
    inputs: Inputs
    build_prompts: PromptPipeline
    build_samples: SamplePipeline
    make_rewards: Callable[[], Rewards]
    policy: Policy | None = None
    scorer: SequenceScorer | None = None
    other: Learner | None = None

    @property
    def built_policy(self) -> Policy:
        """Return the policy.

        Raises:
            ConfigError: the trainer has not built it yet, or trains a model that generates no text.
        """
        if self.scorer is not None:
            raise ConfigError("this run trains a model that scores sequences, which generates no text")
        if self.other is not None:
            raise ConfigError(f"this run trains a {type(self.other).__name__}, which generates no text")
        if self.policy is None:
            raise ConfigError("a trainer must call run.build_policy before it asks for prompts or samples")
        return self.policy

    @property
    def learner(self) -> Learner:
        """Return the model that the run trains.

        Raises:
            ConfigError: the trainer has not built it yet.
        """
        return self.built or self.built_policy

    @property
    def built(self) -> Learner | None:
        """Return the model that the run trains, of whatever kind; None before it is built."""
        return self.policy or self.scorer or self.other

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of the model."""
        return self.learner.tokenizer

    @cached_property
    def data(self) -> DataConfig:
        """Return the section `data` of the configuration, with `outputs_begin_text` taken from the policy if unset."""
        section = self.config.data
        if section.outputs_begin_text is not None:
            return section
        begin_text = self.learner is self.policy and self.built_policy.outputs_begin_text
        return evolve(section, outputs_begin_text=begin_text)

    @cached_property
    def prompts(self) -> list[Prompt]:
        """Return the training prompts, tokenised; the same on all ranks."""
        return self.read_prompts(self.inputs.prompts, "prompts")

    @cached_property
    def eval_prompts(self) -> list[Prompt]:
        """Return the evaluation prompts, by default the first training prompts; none in a run with a scorer."""
        if self.scorer is not None:
            return []
        if self.inputs.eval_prompts is not None:
            return self.read_prompts(self.inputs.eval_prompts, "eval_prompts")
        return self.prompts[: self.config.eval.num_prompts] if self.inputs.prompts is not None else []

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
        config, sources = self.config, self._sources
        if sources is None:
            if config.data.streaming:
                raise DataError("data.streaming: the pipeline of samples opens no streams; leave data.streaming out")
            return None
        return sources.open_stream(self.inputs.samples, config.data, seed=config.run.seed, read=self._read_samples)

    @cached_property
    def _sources(self) -> SourcePipeline | None:
        """Return the pipeline that opens streams and reads rows: that of samples, or else the default one."""
        if isinstance(self.build_samples, SourcePipeline):
            return self.build_samples
        default = registries().pipelines.matches(PIPELINES["sample_pipeline"])
        return next((each.target() for each in default if isinstance(each.target(), SourcePipeline)), None)

    def ordered_samples(
        self,
        read: Callable[[Sequence[Any], str], Sequence[Any]] | None = None,
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
            return stream, stream
        rows = self.samples if read is None else read(self.samples, "samples")
        return rows, Order(len(rows), self.config.run.seed)

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
        columns = {name: theirs for name, theirs in self.data.columns.items() if name == "reward"}
        if self._sources is None:
            raise DataError("rewards: the pipeline of samples reads no rewards; name another with data.sample_pipeline")
        return build_sample_rewards(self._sources.read_rows(self.inputs.rewards, columns, what="rewards"), samples)

    def read_prompts(self, source: Any, what: str) -> list[Prompt]:
        """Tokenise prompts of any form for the model; errors call them `what`."""
        longest = self.other.max_length if self.other is not None else self.built_policy.max_prompt_length
        limit = longest + 1 if longest else 0
        return self.build_prompts(source, self.tokenizer, self.data, max_length=limit, what=what)

    def _read_whole(self, source: Any, what: str) -> Sequence[Any]:
        rows = self._read_samples(source, what)
        counts = count_truncated(rows)
        if not all(isinstance(row, Sample) for row in rows):
            del counts["truncated"]  # trainers count these rows themselves
        warn_of_counts(counts, what, read=len(rows))
        return rows

    def _read_samples(self, source: Any, what: str) -> Sequence[Any]:
        limit = self.learner.max_length
        rows = self.build_samples(source, self.tokenizer, self.data, max_length=limit, what=what)
        if self.policy is not None and self.policy.outputs_begin_text:
            most = self.policy.max_prompt_length
            check_parts(rows, max_prompt=most, max_output=max(limit - most, 0), what=what)
        return rows

    @cached_property
    def reward_fn(self) -> Rewards | None:
        """Return the reward functions as one, None if the user gave none."""
        return None if self.inputs.reward_fn is None else self.make_rewards()

    @cached_property
    def metric_fn(self) -> Callable[..., Any] | None:
        """Return the function that computes metrics of completions, None if the user gave none."""
        function = self.inputs.metric_fn
        return load_reference(function, what="metric_fn") if isinstance(function, str) else function

    @cached_property
    def logit_mask(self) -> Tensor | None:
        """Return bool[V, V], True where the token of the column may follow the token of the row; None if unset."""
        source = self.inputs.logit_mask
        return None if source is None else to_device(load_logit_mask(source), self.built_policy.device)
