"""What a component must offer to stand behind each registry; nothing here is a base class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from rlcore.model_protocols import Architecture, Decoder, DecodeStep, Policy, QPolicy
from rlcore.optim_protocols import OptimizerBuilder, SchedulerBuilder
from rlcore.types import Metrics, Prompt, Trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.data.samples import Sample
    from rlcore.settings import DataConfig, SamplingConfig

__all__ = [
    "Architecture",
    "DecodeStep",
    "Decoder",
    "Logger",
    "OptimizerBuilder",
    "Policy",
    "PromptPipeline",
    "QPolicy",
    "RolloutStore",
    "SamplePipeline",
    "Sampler",
    "SchedulerBuilder",
    "Trainer",
]


class Trainer(Protocol):
    """An algorithm: a loop of its own, given to the core as a generator.

    A trainer is built as `Trainer(config, run)` on every rank, where `config` is an object of the class it was
    registered with, None if it has none. It must call `run.build_policy` there. Every `yield` of `steps` is a promise:
    `policy()` and `state_dict()` together hold all that is needed to go on.

    One that learns from samples and makes them no likelier, as from preferences, tells the conformance kit which metric
    falls instead by an attribute: `lowers = "loss/policy"`.

    One that tells `rlcore plan` what it will ask for has a static method `workload(config, num_prompts)`, which returns
    a `rlcore.planning.workload.Workload`.
    """

    needs: tuple[str, ...]
    """Names of the inputs the algorithm cannot do without, such as `("reward_fn", "prompts")`."""
    default_budget: Mapping[str, float]
    """What `run.steps` or `run.epochs` are when the user sets no budget at all."""

    def steps(self) -> Iterator[Metrics]:
        """Yield the metrics of one step after another, without end; the driver stops when a budget is spent.

        Between two yields the driver logs, evaluates, writes checkpoints and tells the observers, and gives the random
        numbers back that this took. All ranks must yield together. An error raised here ends the run; a metric under
        `loss/` that is not finite does too, with `Diverged`.
        """
        ...

    def policy(self) -> Policy:
        """Return what evaluation samples from and what gets saved; the same object every time."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that `policy()` does not save: nested dicts, lists, numbers, strings and tensors.

        Called on every rank at a checkpoint; what rank 0 returns is saved.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken, on every rank, before `steps` is called.

        Args:
            state: what `state_dict` returned, tensors on the CPU.
        """
        ...


class PromptPipeline(Protocol):
    """A way to turn a source into prompts; the built-in one is `rlcore.data.prompts.build_prompts`.

    One that reads rows of a form of its own shows some to the conformance kit in an attribute `example_rows`.
    """

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Prompt]:
        """Tokenise a source, the same on every rank.

        Args:
            source: what the user gave; `rlcore.data.sources.load_source` turns every form of it into rows.
            tokenizer: the policy's.
            data: the section `data` of the configuration: columns, limits, special tokens.
            max_length: the policy's context in tokens, prompt and continuation together; 0 where it is unbounded.
            what: the option the source was given in, for errors.

        Returns:
            One `Prompt` for each row, in the rows' order.
        """
        ...


class SamplePipeline(Protocol):
    """A way to turn a source into demonstrations; the built-in one is `rlcore.data.samples.build_samples`.

    One that reads rows of a form of its own shows some to the conformance kit in an attribute `example_rows`.
    """

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Sample]:
        """Tokenise a source and mark the tokens to be learned, the same on every rank.

        Args:
            source: what the user gave; `rlcore.data.sources.load_source` turns every form of it into rows.
            tokenizer: the policy's.
            data: the section `data` of the configuration: columns, limits, special tokens.
            max_length: the policy's context in tokens; 0 where it is unbounded.
            what: the option the source was given in, for errors.

        Returns:
            One `Sample` for each row, in the rows' order.
        """
        ...


class Sampler(Protocol):
    """A way to generate rollouts; the built-in one is `rlcore.sampling.sample`.

    One that draws from another distribution than the policy's on purpose tells the conformance kit so by an attribute
    `draws_from_policy = False`.
    """

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        logit_mask: torch.Tensor | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Continue each prompt once, with the policy as it is now.

        Args:
            policy: what draws; `policy.decoder` reads prompts and gives logits.
            prompts: B prompts, those of this rank.
            sampling: temperature, truncation, weight of advantages, limits and stop sequences.
            generator: where every random number must come from, so that a run can be repeated; on the CPU.
            logit_mask: bool[V, V] on the policy's device, in row i True where a token may come next after token i.
                Given only in runs that have one, so a sampler may do without this argument; such a run then refuses it.
            on_batch: to be called with places in `prompts` and their trajectories, complete as they are returned in the
                end but for padding, whenever some are finished; every place once, on the thread of the call. A sampler
                may do without this argument; what waits for finished sequences then waits for all.

        Returns:
            B sequences on the policy's device, row i belonging to prompt i. `ended` is True only where EOS or a stop
            sequence was drawn. It may have the columns `logprobs` (of the untempered policy) and `values`; what is
            missing the trainer computes.
        """
        ...


class RolloutStore(Protocol):
    """Where trajectories wait between sampling and learning; built as `Store()`, or `Store(config)` with options.

    Every rank has one of its own. A checkpoint may fall where it is not empty.
    """

    def append(self, batch: Trajectories) -> None:
        """Add a batch behind what is held.

        Args:
            batch: any number of sequences; its columns are those of the batches before.
        """
        ...

    def take(self) -> Trajectories:
        """Return everything as one batch, in the order it came, and forget it.

        Raises:
            EmptyStore: nothing has been added since the last time.
        """
        ...

    def __len__(self) -> int:
        """Count the sequences held."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what is held, or where it lies: nested dicts, lists, numbers, strings and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken.

        Args:
            state: what `state_dict` returned, tensors on the CPU.
        """
        ...


class Logger(Protocol):
    """Where metrics go besides `metrics.jsonl`; built as `Logger(config, run)` on rank 0 only.

    Of the run a logger may use what `rlcore.loggers.LoggedRun` names. One that raises is reported once, closed, and not
    called again in that run; with `RLCORE_STRICT_PLUGINS` the run ends with a `PluginError`.
    """

    def metrics(self, step: int, metrics: Metrics) -> None:
        """Record the metrics of a training step or of an evaluation.

        Args:
            step: steps done, this one included; 0 for an evaluation before the first.
            metrics: names to numbers, which may be nan or infinite; an evaluation's names begin with `eval/`.
        """
        ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record evaluation samples.

        Args:
            step: steps done.
            rows: one for each sample: `prompt`, `output`, `length`, `ended`, and the scores it got.
        """
        ...

    def close(self, error: BaseException | None) -> None:
        """Finish: called once, as the last, however the run ended.

        Args:
            error: what ended the run, None if it ended well.
        """
        ...
