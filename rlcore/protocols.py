"""The interfaces of components, by kind; a component implements one by having its methods, not by inheriting."""

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

__all__ = [
    "Architecture",
    "Command",
    "DecodeStep",
    "Decoder",
    "Learner",
    "Logger",
    "MovingReference",
    "OptimizerBuilder",
    "Policy",
    "PromptPipeline",
    "QPolicy",
    "RolloutStore",
    "RunView",
    "SamplePipeline",
    "Sampler",
    "SchedulerBuilder",
    "SequenceScorer",
    "Trainer",
]


class Trainer(Protocol):
    """An algorithm whose training loop is a generator.

    A trainer is built as `Trainer(config, run)` on every rank, where `config` is an object of the class it was
    registered with, or None if it has none. Its `__init__` must call `run.build_policy`; `run.build_scorer` if it
    trains a model that scores, or `run.build_learner` if it trains a model of another kind. At every `yield` of
    `steps`, `policy()` and `state_dict()` together must hold everything needed to resume.

    These attributes are optional:

    * `lowers`: the metric that must fall in the conformance kit's training law, such as `"loss/policy"`; for a trainer
      that learns from samples without making them more likely, for example from preferences.
    * `workload`: a static method `workload(config, num_prompts)` that returns a `rlcore.config.workload.Workload`, the
      batch sizes and model heads that `rlcore plan` reads.
    * `default_for`: names of the inputs for which this trainer is selected when the user names none, such as
      `("reward_fn",)` or `("samples", "rewards")`. A reward function takes precedence over samples, and several inputs
      over one of them; two trainers that fit equally well are an error that names both.
    * `sample_pipeline`, `prompt_pipeline`, `architecture`: names of the registered components that this trainer stands
      on, such as `"preferences"`, for runs in which the user does not set `data.sample_pipeline`,
      `data.prompt_pipeline` or `model.architecture`. If the name depends on the trainer's options, the attribute is a
      static method that returns it, called with them. The conformance kit then feeds the trainer the `example_rows` of
      that pipeline, and trains the `example_model` of that architecture.
    """

    needs: tuple[str, ...]
    """Names of the required inputs, such as `("reward_fn", "prompts")`."""
    default_budget: Mapping[str, float]
    """`run.steps` or `run.epochs` to use when the user sets no budget."""

    def steps(self) -> Iterator[Metrics]:
        """Yield the metrics of one step after another, without end; the driver stops when a budget is spent.

        Between two yields the driver logs, evaluates, writes checkpoints and calls observers, and then restores the
        random number generators. All ranks must yield together. An exception ends the run; so does a metric under
        `loss/` that is not finite, with `Diverged`.
        """
        ...

    def policy(self) -> Learner:
        """Return the policy or scorer that is evaluated and saved; the same object on every call."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the training state that `policy()` does not save: nested dicts, lists, numbers, strings and tensors.

        Called on every rank at a checkpoint; rank 0's is saved.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; called on every rank, before `steps`.

        Args:
            state: what `state_dict` returned, with tensors on the CPU.
        """
        ...


class PromptPipeline(Protocol):
    """A function that turns a data source into prompts; the built-in one is `rlcore.data.prompts.build_prompts`.

    A pipeline whose rows have a format of their own provides examples for the conformance kit in an attribute
    `example_rows`.
    """

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Prompt]:
        """Tokenise a source; the result must be the same on every rank.

        Args:
            source: what the user passed; `rlcore.data.sources.load_source` turns every supported form into rows, and
                `rlcore.data.rows.load_rows` also renames columns and converts known formats.
            tokenizer: the policy's tokenizer.
            data: the section `data` of the configuration: columns, limits, special tokens; not its sources.
            max_length: the policy's context length in tokens, prompt and continuation together; 0 if unbounded.
            what: name of the option that holds the source, for error messages.

        Returns:
            One `Prompt` per row, in the order of the rows.
        """
        ...


class SamplePipeline(Protocol):
    """A function that turns a data source into rows to train on; built-in: `rlcore.data.samples.build_samples`.

    A demonstration is a `Sample`. A row of more than one sequence is an object of an attrs class whose fields are
    samples and plain values: `rlcore.types.Pair`, or a class of the plugin's own. `run.samples` then holds these
    objects, in which the core finds the sequences (`rlcore.types.sequences_of`) to fingerprint and to plan them.

    A pipeline whose rows have a format of their own provides examples for the conformance kit in an attribute
    `example_rows`.
    """

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> Sequence[Any]:
        """Tokenise a source and mark the tokens to train on; the result must be the same on every rank.

        Args:
            source: what the user passed; `rlcore.data.sources.load_source` turns every supported form into rows, and
                `rlcore.data.rows.load_rows` also renames columns and converts known formats.
            tokenizer: the policy's tokenizer.
            data: the section `data` of the configuration: columns, limits, special tokens; not its sources.
            max_length: the policy's context length in tokens; 0 if unbounded.
            what: name of the option that holds the source, for error messages.

        Returns:
            One `Sample`, or one object of another class, per row, in the order of the rows.
        """
        ...


class Sampler(Protocol):
    """A function that generates rollouts; the built-in one is `rlcore.sampling.sample`.

    A sampler that intentionally samples from another distribution than the policy's sets an attribute
    `draws_from_policy = False`, which the conformance kit reads. One that keeps a copy of the weights compares
    `policy.version` at each call and renews the copy when it has changed.

    A sampler may have a method `close()`, without arguments, which is called once at the end of the run, whether or not
    the run failed: to end processes or free memory. The sampler may be called again afterwards, for example by
    `Result.generate`, and then starts anew.
    """

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        row_seeds: Sequence[int] | None = None,
        logit_mask: torch.Tensor | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Continue each prompt once with the current weights of the policy.

        Args:
            policy: the policy to sample from; `policy.decoder` encodes prompts and returns logits.
            prompts: the B prompts of this rank.
            sampling: temperature, truncation, weight of the advantages, length limits and stop sequences.
            generator: source of every random number, so that the run is reproducible; on the CPU. In a run it differs
                by rank.
            row_seeds: a seed in 0..2^63-1 for each prompt; the random numbers of row i then follow from its seed alone,
                and `generator` is not used, so that a row is sampled alike on every number of ranks. An engine with a
                seed for each request, such as vLLM, receives them as these. A sampler may omit this parameter; its
                runs then depend on the number of ranks.
            logit_mask: bool[V, V] on the policy's device; entry [i, j] is True if token j may follow token i. Passed
                only in runs with a logit mask; such runs refuse a sampler without this parameter.
            on_batch: callback for finished sequences, called on the calling thread with their indices in `prompts` and
                their trajectories, which equal the returned ones up to padding; every index is passed once. A sampler
                may omit this parameter; rewards are then computed after all sequences are finished.

        Returns:
            B sequences on the policy's device; row i continues prompt i. `ended` is True only if EOS or a stop sequence
            was sampled. The columns `logprobs` (log softmax(logits / temperature), of the whole vocabulary; with
            temperature 1 if sampling is greedy) and `values` are optional; the trainer computes its own
            and compares the log-probs with them.
        """
        ...


class RolloutStore(Protocol):
    """A buffer of trajectories between sampling and training, built as `Store()`, or `Store(config)` with options.

    Every rank has its own. It may hold trajectories when a checkpoint is written.
    """

    def append(self, batch: Trajectories) -> None:
        """Append a batch.

        Args:
            batch: any number of sequences, with the same columns as the batches before.
        """
        ...

    def take(self) -> Trajectories:
        """Return all sequences as one batch, in the order they were appended, and empty the store.

        Raises:
            EmptyStore: nothing has been appended since the last call.
        """
        ...

    def __len__(self) -> int:
        """Return the number of sequences in the store."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the contents, or where they are kept: nested dicts, lists, numbers, strings and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the contents.

        Args:
            state: what `state_dict` returned, with tensors on the CPU.
        """
        ...


class RunView(Protocol):
    """A run, as loggers and observers see it; read-only, except that observers may end it with `request_stop`."""

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
        """The processes of the run; `ranks.is_main` is True on rank 0, which writes files."""
        ...

    @property
    def step(self) -> int:
        """Number of steps done."""
        ...

    @property
    def total_steps(self) -> int | None:
        """Number of steps after which the run ends; None if only `run.time_s` limits it."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of every metric."""
        ...

    @property
    def export_class(self) -> str:
        """Name of the class of `transformers`, or in full of another package's, that loads the trained model."""
        ...

    @property
    def dropped(self) -> Sequence[Dropped]:
        """The observers, loggers and wrappers that raised and are disabled for the rest of the run."""
        ...

    def request_stop(self, reason: str) -> None:
        """End the run after the current step, with a checkpoint and the trained model.

        Args:
            reason: logged at the end; a later request keeps the first reason.
        """
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends after the current step; a component that waits for long checks it."""
        ...

    def keep_folder(self) -> None:
        """Keep the run's folder even if the first step fails, because it contains something that cannot be repeated."""
        ...

    def take_unreported(self) -> Sequence[Dropped]:
        """Return the entries of `dropped` that no closing summary has listed yet, and mark them as listed."""
        ...


class Logger(Protocol):
    """A destination of metrics besides `metrics.jsonl`, built as `Logger(config, run)` on rank 0 only.

    `run` is a `rlcore.protocols.RunView`. If a logger raises, the error is logged once, and the logger is closed and
    not called again in that run; with `RLCORE_STRICT_PLUGINS` set, the run ends with a `PluginError`.
    """

    def metrics(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of a training step or an evaluation.

        Args:
            step: number of steps done, this one included; 0 for an evaluation before the first.
            metrics: numbers by name, which may be nan or infinite; an evaluation's names begin with `eval/`.
        """
        ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the completions of an evaluation.

        Args:
            step: number of steps done.
            rows: one per completion: `prompt`, `output`, `length`, `ended`, and its scores.
        """
        ...

    def close(self, error: BaseException | None) -> None:
        """Close the logger; the last call, made whether or not the run failed.

        Args:
            error: the exception that ended the run, or None.
        """
        ...


class Learner(Protocol):
    """A model in training: what a `Policy`, a `SequenceScorer` and a model of any other kind have in common."""

    tokenizer: PreTrainedTokenizerBase
    """The model's tokenizer; saved with the model."""
    max_length: int
    """Longest sequence in tokens, prompt and continuation together; 0 if unbounded."""
    version: int
    """Rises with every change of the weights, so that a sampler that keeps a copy of them knows when to renew it.

    The updater adds 1 after each optimizer step, the model itself in `load_pretrained` and `sync_targets`. A trainer
    that changes weights without an updater adds 1 itself.
    """

    @property
    def export_class(self) -> str:
        """Name of the class that loads what `export` writes, such as `AutoModelForCausalLM` of `transformers`.

        A class of another package has its full name, such as `diffusers.StableDiffusionPipeline`.
        """
        ...

    @property
    def module(self) -> torch.nn.Module:
        """Every trainable parameter, heads included, without a reference model."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        ...

    def to(self, device: torch.device) -> None:
        """Move the model, and a reference model if there is one.

        Args:
            device: this process's device, `run.ranks.device`.
        """
        ...

    def use_forward(self, forward: Callable[..., Any], *, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        """Set the wrapped `module` and the precision of an updater; before, `score` calls `module` without autocast.

        Args:
            forward: `score` calls this in place of `module`: the module that synchronises gradients between processes.
            autocast: returns the context of the run's precision, inside which every forward pass runs, also those of
                `reference_score` and of a decoder.
        """
        ...

    def training_step(self) -> AbstractContextManager[Any]:
        """Return a context that the run enters around every training step, for what may be cached within a step.

        A model without such a cache returns `contextlib.nullcontext()`. Weights change inside the context; evaluations
        and checkpoints happen outside it.
        """
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write everything that `load_pretrained` reads, in the formats of `transformers` and `peft` plus the heads.

        Args:
            folder: a folder that does not exist yet or is empty.
        """
        ...

    def load_pretrained(self, folder: Path) -> None:
        """Load the weights, heads included, in place, because an optimizer may refer to the parameters.

        It raises `version`.

        Args:
            folder: a folder that `save_pretrained` wrote.
        """
        ...

    def export(self, folder: Path) -> None:
        """Write the model so that `transformers` alone can load it, with the same outputs; called at the end of a run.

        Args:
            folder: a folder that does not exist yet or is empty.
        """
        ...


class Policy(Learner, Protocol):
    """A language model, as an algorithm uses it."""

    eos_token_ids: tuple[int, ...]
    """Tokens that end a sequence."""
    max_prompt_length: int
    """Longest prompt in tokens that leaves room for one more token; 0 if unbounded."""
    outputs_begin_text: bool
    """Whether outputs begin a text of their own, as in an encoder-decoder, instead of continuing the prompt's text."""
    num_q_heads: int
    """Number of Q-heads; if it is not 0, the policy is a `QPolicy`."""

    def score(
        self, batch: Trajectories, *, entropy: bool = False, logits: bool = False, temperature: float = 1.0
    ) -> PolicyOutputs:
        """Compute the log-prob of each chosen token, with gradients where they are enabled.

        Args:
            batch: B sequences, padded on either side, on the policy's device.
            entropy: also return the entropy of the distribution of each chosen token.
            logits: also return the logits of each chosen token, float[N, V].
            temperature: positive; log-probs, entropies and returned logits are those of logits / temperature.
        """
        ...

    def reference_score(self, batch: Trajectories, *, logits: bool = False, temperature: float = 1.0) -> PolicyOutputs:
        """Compute the log-prob of each chosen token under the policy as it was before training, without gradients.

        Args:
            batch: as for `score`.
            logits: as for `score`.
            temperature: as for `score`.
        """
        ...

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False) -> Decoder:
        """Return a decoder of continuations of `prompts`.

        Args:
            prompts: B sequences of token ids, of any lengths >= 1.
            max_new_tokens: upper bound on the calls of `step`, which sets the size of the cache.
            advantages: also return advantages at each step; only for a policy with Q-heads.
        """
        ...


class QPolicy(Policy, Protocol):
    """A policy with Q-heads, as `run.build_policy(q_heads=2)` returns; its outputs include `q_values` and the like."""

    def sync_targets(self, rate: float) -> None:
        """Move every target Q-head towards its Q-head: target <- rate * Q + (1 - rate) * target.

        Args:
            rate: in [0, 1].
        """
        ...


@runtime_checkable
class MovingReference(Policy, Protocol):
    """A policy whose reference can follow it, if the reference is a copy and not the model without its adapter."""

    def move_reference(self, rate: float) -> None:
        """Move the reference towards the policy: reference <- rate * policy + (1 - rate) * reference.

        Args:
            rate: in [0, 1].

        Raises:
            ModelError: there is no reference that can be moved.
        """
        ...

    def reference_state_dict(self) -> dict[str, Tensor]:
        """Return the weights of the reference that follow the policy, for checkpoints."""
        ...

    def load_reference_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the weights that `reference_state_dict` returned.

        Args:
            state: the weights by name.

        Raises:
            CheckpointError: they belong to another model.
        """
        ...


class SequenceScorer(Learner, Protocol):
    """A model that gives a whole sequence one number, such as a reward model; built by `run.build_scorer()`."""

    def score(self, batch: Trajectories) -> Tensor:
        """Return the score of each sequence, float[B], with gradients where they are enabled.

        Args:
            batch: B sequences, padded on either side, on the scorer's device; `action_mask` has no effect.
        """
        ...


class Decoder(Protocol):
    """A batch of sequences that is decoded token by token, with its key-value cache."""

    def start(self) -> DecodeStep:
        """Encode the prompts and return the outputs for the first new tokens."""
        ...

    def step(self, tokens: Tensor) -> DecodeStep:
        """Append one token to every sequence and return the outputs for the next.

        Args:
            tokens: long[B], sampled from the logits of the previous step.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all other sequences from the batch, for example those that have ended.

        Args:
            rows: long[K], ascending indices into the current batch.
        """
        ...


@attrs.frozen(eq=False)
class DecodeStep:
    """A decoder's outputs after one token of each sequence.

    Attributes:
        logits: float[B, V], of the next token.
        values: float[B] or None, V of the sequence so far; present if the policy has a value head on its trunk.
        advantages: float[B, V] or None, Q - V of every possible next token; only if requested.
        is_exact: whether the policy itself computed the logits; False for a low-precision copy of it, whose log-probs a
            sampler must not return as the policy's.
    """

    logits: Tensor
    values: Tensor | None
    advantages: Tensor | None = None
    is_exact: bool = True

    def rows(self, index: Tensor) -> DecodeStep:
        """Return the outputs of the sequences at `index`, long[K]."""
        values, advantages = (None if x is None else x[index] for x in (self.values, self.advantages))
        return DecodeStep(self.logits[index], values, advantages, self.is_exact)


@runtime_checkable
class JoiningDecoder(Decoder, Protocol):
    """A decoder that may accept more prompts while it runs (continuous batching); `joins` returns whether it does.

    A policy whose `decoder` has a parameter `waiting` receives there the number of prompts that wait for a free row.
    """

    @property
    def joins(self) -> bool:
        """Whether the decoder accepts more prompts; defined after `start`."""
        ...

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Append prompts to the end of the batch and return the outputs for their first new tokens.

        Args:
            prompts: J sequences of token ids, none longer than the longest of the first prompts, each continued by at
                most `max_new_tokens` tokens.
        """
        ...


def joins(decoder: Decoder) -> JoiningDecoder | None:
    """Return `decoder` if it accepts more prompts, else None; call it after `start`."""
    return decoder if isinstance(decoder, JoiningDecoder) and decoder.joins else None


class Architecture(Protocol):
    """A function that builds a policy from a model spec; the built-in one is `rlcore.models.causal.build_causal_lm`.

    The conformance kit tests an architecture with GPT-2 and Llama, or with T5 and BART if its options include those of
    `seq2seq_lm`. An architecture for other models sets an attribute `example_model`, a function that returns one.

    An architecture with the attribute `scores_sequences = True` builds a `SequenceScorer`, and is called as
    `build(spec, config, tokenizer=...)`; the built-in one is `rlcore.models.scorer.build_sequence_scorer`.

    An architecture that builds a `Learner` of another kind states which in an attribute `builds`, such as
    `"an image pipeline"`, has an `example_model`, and is called in the same way. Trainers pass that kind to
    `run.build_learner`. A mapping `example_inputs` replaces inputs with which the conformance kit trains the example,
    such as `{"reward_fn": "brightness"}`.
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
            spec: the model that the user passed.
            config: an object of the class the architecture was registered with, or None if it has none.
            tokenizer: a tokenizer object, folder or hub id; the model's own if omitted.
            value_head: add a value head.
            reference: keep a copy of the initial weights for `reference_score`.
            q_heads: number of Q-heads, each with a target copy. Passed only to builders that have this parameter, and
                always together with a value head.
        """
        ...


class OptimizerBuilder(Protocol):
    """A function that builds an optimizer: any class of `torch.optim`, or a function of the same form.

    All arguments but the groups are passed by name: `lr`, and every option of the class that it was registered with
    (which must not define `lr`, `betas`, `eps` or `weight_decay`). `betas`, `eps` and `weight_decay` are passed if the
    user set them; otherwise the defaults of the signature apply. Setting one that is not in the signature is an error
    before the run begins.
    """

    def __call__(self, groups: list[dict[str, Any]], *, lr: float, **options: Any) -> Optimizer:
        """Build an optimizer of the trainable parameters.

        Args:
            groups: the matrices, and with `weight_decay` 0 the vectors, each as `params`; either group may be missing.
            lr: the learning rate after warm-up; the schedule writes the rate of each step into the optimizer's groups.
            options: those of `betas`, `eps` and `weight_decay` that were set, and the optimizer's own options.

        Returns:
            An optimizer whose steps depend only on the gradients and its `state_dict()`, so that a resumed run equals
            an uninterrupted one.

        Raises:
            ValueError: the options are incompatible; the run is refused with this message.
        """
        ...


class SchedulerBuilder(Protocol):
    """A function that builds a learning-rate schedule: most of those in `transformers` and torch, or one of your own.

    All arguments but the optimizer are passed by name: the options of the class it was registered with and, if they are
    in its signature, `num_warmup_steps` and `num_training_steps`. Without the former, the schedule has no warm-up. In a
    run without a known last step, `num_training_steps` is None if it has a default; otherwise the run is refused.
    """

    def __call__(self, optimizer: Optimizer, **options: Any) -> LRScheduler:
        """Build a schedule, which sets the learning rate of the first step immediately.

        Args:
            optimizer: what `OptimizerBuilder` returned; its groups hold the learning rate after warm-up.
            options: `num_warmup_steps` and `num_training_steps` (counted in optimizer steps), and the schedule's own
                options.

        Returns:
            A schedule whose `step()`, which takes no argument, is called after each optimizer step, and once more for
            each planned optimizer step that a step of the run leaves out.

        Raises:
            ValueError: the options are incompatible; the run is refused with this message.
        """
        ...


class Command(Protocol):
    """A subcommand of `rlcore`: a function that adds arguments to a parser and returns the function to run.

    `rlcore NAME --help` and shell completion call it too, so its module must not import torch or other slow packages;
    the returned function may. An argument called `overrides` with `nargs="*"` accepts words such as
    `trainer.clip=0.1` at any position among the options, as in `rlcore train`.
    """

    def __call__(self, parser: ArgumentParser) -> Callable[[Namespace], int]:
        """Add arguments to the parser, and a `parser.description` if the summary is too short.

        Args:
            parser: an empty parser for `rlcore NAME`. Its `error` prints a usage error in one line and exits with 2.

        Returns:
            The function that runs the command: it receives the parsed arguments and returns the exit code, 0 for
            success. If it raises an `RLCoreError`, the error is printed in one line and the exit code is 1.
        """
        ...
