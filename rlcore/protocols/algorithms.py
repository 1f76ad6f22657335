"""What an algorithm is, and what generates and holds its rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rlcore.components import Traits
from rlcore.protocols.learners import Learner, Policy
from rlcore.protocols.run_views import RunView
from rlcore.types import Metrics, Prompt, State, Trajectories

if TYPE_CHECKING:
    from rlcore.ranks import Ranks
    from rlcore.settings import SamplingConfig


class Trainer(Protocol):
    """An algorithm whose training loop is a generator.

    A trainer is built as `Trainer(config, run)` on every rank, where `config` is an object of the class it was
    registered with, or None if it has none, and `run` is described in [one run](../run.md).

    * `__init__` builds the model with `run.build()`, `run.build("scorer")` or `run.build(KIND)`, makes an updater with
      `run.updater(...)`, and calls `run.plan_steps(...)` with the number of yields in one pass over the data, so that
      users may set `run.epochs`.
    * `steps` trains. A trainer whose rounds are rollouts calls `run.observers.on_rollout(run, batch)` once a round.
    * `state_dict` and `policy()` together hold everything needed to resume at every `yield`: the states of the updater,
      of the order of the data and of the store among them. They are equal on all ranks.
    """

    needs: tuple[str, ...]
    """Names of the required inputs, such as `("reward_fn", "prompts")`."""
    default_budget: Mapping[str, float]
    """Options of the section `run` for users who set no budget, such as `{"steps": 100}` or `{"epochs": 1.0}`."""

    def steps(self) -> Iterator[Metrics]:
        """Yield the metrics of one step after another; the loop stops when a budget is spent, or the generator ends.

        Between two yields the loop logs, evaluates, writes checkpoints and calls observers, and then restores the
        random number generators. All ranks must yield together. An exception ends the run; so does a metric under
        `loss/` that is not finite, with `Diverged`.
        """
        ...

    def policy(self) -> Learner:
        """Return the model that is evaluated and saved, which is `run.learner`; the same object on every call."""
        ...

    def state_dict(self) -> State:
        """Return the training state that `policy()` does not save: nested dicts, lists, numbers, strings and tensors.

        Called on every rank at a checkpoint, where it must be equal; rank 0's is saved.
        """
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore a state that `state_dict` returned; called on every rank, before `steps`.

        Args:
            state: what `state_dict` returned, with tensors on the CPU.
        """
        ...


OwnComponent = str | Callable[[Any], str | None] | None
"""The name of a component that a trainer stands on, or a function of the trainer's options that returns it."""


class TrainerTraits(Traits):
    """What the class of a trainer may state, and a trainer may offer, beside `Trainer`.

    The conformance kit feeds a trainer the `example_rows` of the pipeline that it names, and trains the `example_model`
    of the architecture that it names.
    """

    needs: Sequence[str] = ()
    """Names of the required inputs, which every trainer states; none for a class that is no trainer."""
    default_for: Sequence[str] = ()
    """Names of the inputs for which this trainer is selected when the user names none, such as `("reward_fn",)` or
    `("samples", "rewards")`. A reward function takes precedence over samples, and several inputs over one of them; two
    trainers that fit equally well are an error that names both."""
    headline: Sequence[str] = ()
    """Names of the metrics that matter most, such as `("reward/mean", "cost/")`, where a slash at the end names a
    group. They come first on the console and in the report. The first that begins with `eval/` ranks checkpoints where
    samples are held out and the user sets no `checkpoint.metric`."""
    prompt_pipeline: OwnComponent = None
    """Name of the registered pipeline for runs in which the user does not set `data.prompt_pipeline`. If it depends on
    the trainer's options, a static method that returns it, called with them."""
    sample_pipeline: OwnComponent = None
    """Likewise for `data.sample_pipeline`, such as `"preferences"`."""
    architecture: OwnComponent = None
    """Likewise for `model.architecture`."""
    off_policy: bool = False
    """Whether the loss is right for samples of any distribution, such as that of imitating the best ones. A sampler of
    another model than the policy, such as `openai`, refuses a trainer that needs prompts without it."""
    scores_samples: bool = False
    """Whether reward functions score outputs to the prompts of `samples`, whose columns they receive."""
    default_beta: float = 0.0
    """The value of `gen.beta` where the user sets none, for a policy with Q-heads."""
    upcoming: Callable[[int], Sequence[tuple[Sequence[Prompt], int]]] | None = None
    """A method `upcoming(steps)` that returns the arguments of the next calls of `run.rollout`, with which
    `run.asynchronous` samples rounds ahead."""
    lowers: str | None = None
    """The metric that must fall in the conformance kit's training law, such as `"loss/policy"`; for a trainer that
    learns from samples without making them more likely, for example from preferences."""
    workload: Callable[[Any, int], Any] | None = None
    """A static method `workload(config, num_prompts)` for `rlcore plan`, the command that estimates memory. It returns
    batch sizes and model heads by the names of that package's class `Workload`, without those that have an option of
    the same name."""
    rehearse: Callable[..., Any] | None = None
    """A static method, for a trainer of models that are no language models, that returns the parts of a step that
    `rlcore plan` measures, by the names of that package's class `Rehearsal`."""


class Sampler(Protocol):
    """A function that generates rollouts; the one called `default` comes with the package of models.

    A sampler that keeps a copy of the weights compares `policy.version` at each call and renews the copy when it has
    changed. Methods with the names of observer hooks are called as those of an observer, as they are of the run's
    model.
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
            sampling: the section `gen`, or `eval.gen`: temperature, limits, stop sequences and so on.
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


class SamplerTraits(Traits):
    """What a sampler may state and offer beside `Sampler`; an engine may change what it states during a run."""

    draws_from_policy: bool = True
    """False for a sampler that intentionally samples from another distribution than the policy's; the conformance kit
    reads it."""
    exact_logprobs: bool = False
    """Whether the columns `logprobs` and `values` are what the policy itself computes, with its current weights and in
    its precision. In a run at full precision, trainers then use these columns in place of a forward pass over the
    sampled tokens (`gen.reused_logprobs`). An object that wraps a sampler has it only if it sets it itself."""
    lags: bool = False
    """Whether the sampler has older weights on purpose (`run.asynchronous`)."""
    one_version: bool = False
    """Whether a round ahead is sampled with one version of the weights."""
    source: str = "no source"
    """Fingerprint of the source of what it samples from, of a sampler whose environment another process imports."""
    submit: Callable[..., Any] | None = None
    """With `collect`, begins a round in a run with `run.asynchronous`, which asks for its rows later; samplers without
    these methods are called in a thread."""
    collect: Callable[[Any], Any] | None = None
    """Returns the rows of a round that `submit` began."""
    renew_weights: Callable[[Policy, Sequence[Prompt]], object] | None = None
    """A method `renew_weights(policy, prompts)` of a sampler that does not run the policy, and needs no whole weights
    where they are divided: every rank calls it before ranks sample, with some of its prompts, or none. It reads
    `Divisible.weights()` to the end on every rank, and makes passes of the policy inside `Divisible.by_block`."""

    def open(self, run: RunView) -> object:
        """Receive the run before its model is built.

        Args:
            run: the run, whose parts that need the model are not there yet.
        """

    def check(self, policy: Policy, samplings: Sequence[SamplingConfig]) -> object:
        """Refuse options before the first step.

        Args:
            policy: the policy to sample from.
            samplings: the sections `gen` and `eval.gen`, the latter once for each of its variants.
        """

    def check_round(self, ranks: Ranks) -> object:
        """Check what all ranks have sampled since the last call; all ranks call together.

        Args:
            ranks: this process's place among the others.
        """

    def close(self) -> object:
        """End processes or free memory; called once at the end of the run, whether or not the run failed.

        The sampler may be called again afterwards, for example by `Result.generate`, and then starts anew.
        """


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

    def state_dict(self) -> State:
        """Return the contents, or where they are kept: nested dicts, lists, numbers, strings and tensors."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore the contents.

        Args:
            state: what `state_dict` returned, with tensors on the CPU.
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
            groups: up to two, `{"params": matrices}` and `{"params": vectors, "weight_decay": 0.0}`.
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
