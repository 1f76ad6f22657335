"""What a component must offer to stand behind each registry; nothing here is a base class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rlcore.types import Metrics, PolicyOutputs, Prompt, Trajectories

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from transformers import PreTrainedTokenizerBase

    from rlcore.components import Dropped
    from rlcore.ranks import Ranks
    from rlcore.settings import DataConfig, SamplingConfig, TrainConfig
    from rlcore.types import Sample


__all__ = [
    "Architecture",
    "Command",
    "DecodeStep",
    "Decoder",
    "Logger",
    "OptimizerBuilder",
    "Policy",
    "PromptPipeline",
    "QPolicy",
    "RolloutStore",
    "RunView",
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
    a `rlcore.config.workload.Workload`.

    One that shall be chosen where the user names no trainer has an attribute `default_for`, the names of the inputs it
    fits, such as `("reward_fn",)` or `("samples", "rewards")`. A reward function outweighs samples, several inputs
    outweigh one of them, and two trainers that fit equally well are an error that names both.
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


class RunView(Protocol):
    """A run as loggers and observers see it: they read it and change nothing."""

    @property
    def dir(self) -> Path:
        """The run's folder."""
        ...

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        ...

    @property
    def ranks(self) -> Ranks:
        """This process's place among the processes of the run; `ranks.is_main` is true of the one that writes."""
        ...

    @property
    def step(self) -> int:
        """Steps done so far."""
        ...

    @property
    def total_steps(self) -> int | None:
        """Steps after which the run ends, None where only time bounds it."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of every metric so far."""
        ...

    @property
    def dropped(self) -> Sequence[Dropped]:
        """The observers, loggers and wrappers that raised in this run and were left out of the rest of it."""
        ...

    def take_unreported(self) -> Sequence[Dropped]:
        """Return those of `dropped` that no closing summary has listed yet, and count them as listed."""
        ...


class Logger(Protocol):
    """Where metrics go besides `metrics.jsonl`; built as `Logger(config, run)` on rank 0 only.

    Of the run a logger may use what `rlcore.protocols.RunView` names. One that raises is reported once, closed, and not
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


@attrs.frozen(eq=False)
class DecodeStep:
    """Hold what a decoder says after reading a token.

    Attributes:
        logits: float[B, V], of the next token.
        values: float[B] or None, V of everything read so far, where the policy has a value head on its trunk.
        advantages: float[B, V] or None, Q less V of every token that could come next, where they were asked for.
        is_exact: whether these are the policy's own logits; False where they come from a copy of it in a narrower type,
            so that a sampler must not pass log-probs of them on as the policy's.
    """

    logits: Tensor
    values: Tensor | None
    advantages: Tensor | None = None
    is_exact: bool = True

    def rows(self, index: Tensor) -> DecodeStep:
        """Return what is said of the sequences at `index`, long[K]."""
        values, advantages = (None if x is None else x[index] for x in (self.values, self.advantages))
        return DecodeStep(self.logits[index], values, advantages, self.is_exact)


class Decoder(Protocol):
    """A batch of sequences being continued token by token, with its cache."""

    def start(self) -> DecodeStep:
        """Read the prompts."""
        ...

    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence.

        Args:
            tokens: long[B], the tokens drawn from the last step's logits.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the sequences only, as when the others have ended.

        Args:
            rows: long[K], their places among the present ones, ascending.
        """
        ...


@runtime_checkable
class JoiningDecoder(Decoder, Protocol):
    """A decoder that takes further prompts in while it runs; whoever decodes asks `joins` whether one does.

    A policy whose `decoder` has an argument `waiting` is told there how many prompts wait for a place.
    """

    @property
    def joins(self) -> bool:
        """Tell whether it does; known once it has read its first prompts."""
        ...

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Read further prompts, whose sequences go behind the present ones; say what follows these prompts.

        Args:
            prompts: J sequences of ids, none longer than the longest of the first ones; nor may they be continued to
                lengths that those were not announced to be continued to.
        """
        ...


def joins(decoder: Decoder) -> JoiningDecoder | None:
    """Return `decoder`, which has read its first prompts, if it takes further ones in."""
    return decoder if isinstance(decoder, JoiningDecoder) and decoder.joins else None


class Policy(Protocol):
    """A language model as an algorithm sees it."""

    tokenizer: PreTrainedTokenizerBase
    """Turns text into the tokens the model reads; saved with the model."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a sequence when they are drawn."""
    max_length: int
    """Tokens a sequence may have, prompt and continuation together; 0 where there is no bound."""
    max_prompt_length: int
    """Tokens a prompt may have that is to be continued by one at least; 0 where there is no bound."""
    outputs_begin_text: bool
    """Whether what it writes begins a text of its own, as with an encoder-decoder, and does not go on the prompt's."""
    num_q_heads: int
    """Q-heads the policy has; with any, it is a `QPolicy`."""

    @property
    def module(self) -> torch.nn.Module:
        """Hold every trainable parameter, heads included, and nothing of the reference."""
        ...

    @property
    def device(self) -> torch.device:
        """Tell where the parameters are."""
        ...

    def to(self, device: torch.device) -> None:
        """Move everything, the reference included.

        Args:
            device: where this process computes, `run.ranks.device`.
        """
        ...

    def use_forward(self, forward: Callable[..., Any], *, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        """Take over what an updater made of `module`; until this is called, `score` calls `module` without autocast.

        Args:
            forward: `score` calls this in place of `module`: the module that synchronises gradients between processes.
            autocast: returns the context of the run's precision. `score`, `reference_score` and every step of a decoder
                run inside it.
        """
        ...

    def training_step(self) -> AbstractContextManager[Any]:
        """Return a context that the run enters around every training step, for what may be cached within a step.

        A policy without such a cache returns `contextlib.nullcontext()`. Weights change inside the context; evaluations
        and checkpoints happen outside it.
        """
        ...

    def score(self, batch: Trajectories, *, entropy: bool = False, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy finds each chosen token, with gradients where they are enabled.

        Args:
            batch: B sequences, padded on either side, on the policy's device.
            entropy: say the entropy of the distribution behind each chosen token too.
            logits: give the logits behind each chosen token too, a tensor of N x V numbers.
        """
        ...

    def reference_score(self, batch: Trajectories, *, logits: bool = False) -> PolicyOutputs:
        """Say how likely the policy found each chosen token before training began; never with gradients.

        Args:
            batch: as for `score`.
            logits: as for `score`.
        """
        ...

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False) -> Decoder:
        """Begin to continue prompts.

        Args:
            prompts: B sequences of ids, of any lengths >= 1.
            max_new_tokens: how often `step` will be called at most, for a cache of that size.
            advantages: give those too; asked only of a policy with Q-heads.
        """
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write all that `load_pretrained` needs, in the formats of `transformers` and `peft`; heads lie beside it.

        Args:
            folder: does not exist yet, or is empty.
        """
        ...

    def load_pretrained(self, folder: Path) -> None:
        """Take the weights, heads included, in place: an optimizer may hold the parameters already.

        Args:
            folder: one that `save_pretrained` wrote.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write what plain `transformers` loads with nothing else installed, as a run's last act.

        Args:
            folder: does not exist yet, or is empty.
        """
        ...


class QPolicy(Policy, Protocol):
    """A policy with Q-heads, as `run.build_policy(q_heads=2)` returns it; what it scores has `q_values` and so on."""

    def sync_targets(self, rate: float) -> None:
        """Move every target Q-head towards its Q-head: target <- rate * Q + (1 - rate) * target.

        Args:
            rate: in [0, 1].
        """
        ...


class Architecture(Protocol):
    """A way to turn a model specification into a policy; the built-in one is `rlcore.models.causal.build_causal_lm`.

    One that does not take GPT-2 and Llama (T5 and BART, if its options are those of `seq2seq_lm` or more) gives the
    conformance kit a model it takes: an attribute `example_model`, a function that returns one.
    """

    def __call__(
        self,
        spec: Any,
        config: Any,
        *,
        tokenizer: Any = None,
        value_head: bool = False,
        reference: bool = False,
        q_heads: int = 0,
    ) -> Policy:
        """Build a policy from `spec` (hub id, folder, configuration or module) and the architecture's options.

        Args:
            spec: what the user passed as the model.
            config: an object of the class the architecture was registered with, None if it has none.
            tokenizer: object, folder or hub id; the model's own when left out.
            value_head: give the policy a value function.
            reference: keep the policy as it is now, for `reference_score`.
            q_heads: how many Q-heads to give the policy, each with a target copy; only a builder that takes this
                argument is asked for any, and then for a value function too.
        """
        ...


class OptimizerBuilder(Protocol):
    """A way to build an optimizer: any class of `torch.optim` as it is, or a function.

    Everything but the groups is given by name: `lr`, and every option of the class that it was registered with, which
    therefore has none called `lr`, `betas`, `eps` or `weight_decay`. The last three are given where the user set them.
    One that was set and is not in the signature is an error before the run begins; one that was not keeps the default
    of the signature.
    """

    def __call__(self, groups: list[dict[str, Any]], *, lr: float, **options: Any) -> Optimizer:
        """Build an optimizer over the parameters that train.

        Args:
            groups: the matrices, and with a `weight_decay` of 0 the vectors, each as `params`; a group may be missing.
            lr: the learning rate after warm-up; the schedule writes the rate of each step into the optimizer's groups.
            options: `betas`, `eps` and `weight_decay`, those that were set, and the optimizer's own options.

        Returns:
            An optimizer whose steps follow from the gradients and its `state_dict()` alone, so that a run goes on from
            a checkpoint as if it had never stopped.

        Raises:
            ValueError: options do not go together; the run is refused with what it says.
        """
        ...


class SchedulerBuilder(Protocol):
    """A way to build a learning-rate schedule: most of those in `transformers` and torch as they are, or a function.

    Everything but the optimizer is given by name: the options of the class it was registered with, and, where its
    signature has them, `num_warmup_steps` and `num_training_steps`. One without the first has no warm-up. One that has
    the second without a default is refused in a run whose last step is not known; one with a default is then given
    None.
    """

    def __call__(self, optimizer: Optimizer, **options: Any) -> LRScheduler:
        """Build a schedule, which sets the learning rate of the first step at once.

        Args:
            optimizer: what `OptimizerBuilder` returned; its groups hold the learning rate after warm-up.
            options: `num_warmup_steps`, `num_training_steps` (of the optimizer), and the schedule's own options.

        Returns:
            A schedule whose `step()`, which takes nothing, is called after each optimizer step.

        Raises:
            ValueError: options do not go together; the run is refused with what it says.
        """
        ...


class Command(Protocol):
    """A subcommand of `rlcore`: a function that adds arguments to a parser and returns the function that runs.

    `rlcore NAME --help` and shell completion call it too, so it and its module import nothing heavy; the function it
    returns imports what the work takes. An argument called `overrides` with `nargs="*"` takes words such as
    `trainer.clip=0.1` wherever they stand among options, as in `rlcore train`.
    """

    def __call__(self, parser: ArgumentParser) -> Callable[[Namespace], int]:
        """Add arguments, and set `parser.description` where the summary is too short.

        Args:
            parser: an empty one, called `rlcore NAME`. Its `error` prints one line about wrong usage and exits with 2.

        Returns:
            What runs the command: called with the parsed arguments, it returns the exit code, 0 for success. An
            `RLCoreError` that it raises is printed as one line, and the exit code is then 1.
        """
        ...
