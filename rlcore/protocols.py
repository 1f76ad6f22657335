"""What a component must offer to stand behind each registry; nothing here is a base class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
from torch import Tensor

from rlcore.types import Metrics, PolicyOutputs, Prompt, Trajectories

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.data.samples import Sample
    from rlcore.settings import DataConfig, SamplingConfig


class Trainer(Protocol):
    """An algorithm: a loop of its own, given to the core as a generator.

    A trainer is built as `Trainer(config, run)`. Every `yield` of `steps` is a promise: `policy()` and `state_dict()`
    together hold all that is needed to go on.
    """

    needs: tuple[str, ...]
    """Names of the inputs the algorithm cannot do without, such as `("reward_fn", "prompts")`."""
    default_budget: Mapping[str, float]
    """What `run.steps` or `run.epochs` are when the user sets no budget at all."""

    def steps(self) -> Iterator[Metrics]:
        """Yield the metrics of one step after another, without end; the driver stops when a budget is spent."""
        ...

    def policy(self) -> Policy:
        """Return what evaluation samples from and what gets saved."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that `policy()` does not save: nested dicts, lists, numbers, strings and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        ...


@attrs.frozen(eq=False)
class DecodeStep:
    """Hold what a decoder says after reading a token.

    Attributes:
        logits: float[B, V], of the next token.
        values: float[B] or None, V of everything read so far, where the policy has a value head on its trunk.
    """

    logits: Tensor
    values: Tensor | None


class Decoder(Protocol):
    """A batch of sequences being continued token by token, with its cache."""

    def start(self) -> DecodeStep:
        """Read the prompts."""
        ...

    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B]."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` (long[K], ascending) only."""
        ...


class Policy(Protocol):
    """A language model as an algorithm sees it."""

    tokenizer: PreTrainedTokenizerBase
    module: torch.nn.Module
    """Holds every trainable parameter (heads included) and nothing of the reference."""
    forward: Callable[..., Any]
    """What `score` calls: `module` itself, until an updater puts the wrapped module of several processes here."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """The precision that `score`, `reference_score` and decoders run in; an updater puts the run's mixed one here."""
    eos_token_ids: tuple[int, ...]
    max_length: int
    """Tokens that fit in the model's context; 0 where there is no bound."""

    @property
    def device(self) -> torch.device:
        """Tell where the parameters are."""
        ...

    def to(self, device: torch.device) -> None:
        """Move everything, the reference included."""
        ...

    def score(self, batch: Trajectories, *, entropy: bool = False, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy finds each chosen token of `batch`, with gradients where they are enabled."""
        ...

    def reference_score(self, batch: Trajectories, *, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy found each chosen token before training began; never with gradients."""
        ...

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> Decoder:
        """Begin to continue `prompts`, B sequences of ids of any lengths >= 1."""
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write a folder that plain `transformers` loads; heads go into a file of their own beside the model's."""
        ...

    def load_pretrained(self, folder: Path) -> None:
        """Take the weights, heads included, from a folder that `save_pretrained` wrote."""
        ...


class Architecture(Protocol):
    """A way to turn a model specification into a policy; the built-in one is `rlcore.models.causal.build_causal_lm`."""

    def __call__(
        self, spec: Any, config: Any, *, tokenizer: Any = None, value_head: bool = False, reference: bool = False
    ) -> Policy:
        """Build a policy from `spec` (hub id, folder, configuration or module) and the architecture's options.

        Args:
            spec: what the user passed as the model.
            config: an object of the class the architecture was registered with, None if it has none.
            tokenizer: object, folder or hub id; the model's own when left out.
            value_head: give the policy a value function.
            reference: keep the policy as it is now, for `reference_score`.
        """
        ...


class PromptPipeline(Protocol):
    """A way to turn a source into prompts; the built-in one is `rlcore.data.prompts.build_prompts`."""

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Prompt]:
        """Tokenise `source`; `max_length` is the policy's context (0: unbounded), `what` names the source in errors."""
        ...


class SamplePipeline(Protocol):
    """A way to turn a source into demonstrations; the built-in one is `rlcore.data.samples.build_samples`."""

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Sample]:
        """Tokenise `source` and mark the tokens to be learned."""
        ...


class Sampler(Protocol):
    """A way to generate rollouts; the built-in one is `rlcore.sampling.sample`."""

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
    ) -> Trajectories:
        """Continue each prompt once; row i of the result belongs to prompt i.

        The result lies on the policy's device; `ended` is True only where EOS or a stop sequence was drawn. It may
        have the columns `logprobs` (of the untempered policy) and `values`; what is missing the trainer computes.
        """
        ...


class RolloutStore(Protocol):
    """Where trajectories wait between sampling and learning."""

    def append(self, batch: Trajectories) -> None:
        """Add a batch."""
        ...

    def take(self) -> Trajectories:
        """Return everything as one batch and forget it."""
        ...

    def __len__(self) -> int:
        """Count the sequences held."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what is held."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        ...


class Logger(Protocol):
    """Where metrics go besides `metrics.jsonl`; built as `Logger(config, run)` on rank 0 only.

    Of the run a logger may use what `rlcore.loggers.LoggedRun` names.
    """

    def metrics(self, step: int, metrics: Metrics) -> None:
        """Record the metrics of a training step or of an evaluation (keys that begin with `eval/`)."""
        ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record evaluation samples, each with `prompt`, `output`, and the scores it got."""
        ...

    def close(self, error: BaseException | None) -> None:
        """Finish; `error` is what ended the run, None if it ended well."""
        ...
