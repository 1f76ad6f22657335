"""What an algorithm is, and what generates and holds its rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import attrs
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rlcore.protocols.learners import Learner, Policy
from rlcore.types import Metrics, Prompt, Trajectories

if TYPE_CHECKING:
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

    Optional attributes that a run reads:

    * `default_for`: names of the inputs for which this trainer is selected when the user names none, such as
      `("reward_fn",)` or `("samples", "rewards")`. A reward function takes precedence over samples, and several inputs
      over one of them; two trainers that fit equally well are an error that names both.
    * `headline`: names of the metrics that matter most, such as `("reward/mean", "cost/")`, where a slash at the end
      names a group. They come first on the console and in the report. The first that begins with `eval/` ranks
      checkpoints where samples are held out and the user sets no `checkpoint.metric`.
    * `sample_pipeline`, `prompt_pipeline`, `architecture`: names of the registered components that this trainer stands
      on, such as `"preferences"`, for runs in which the user does not set `data.sample_pipeline`,
      `data.prompt_pipeline` or `model.architecture`. If the name depends on the trainer's options, the attribute is a
      static method that returns it, called with them. The conformance kit then feeds the trainer the `example_rows` of
      that pipeline, and trains the `example_model` of that architecture.
    * `off_policy`: True if the loss is right for samples of any distribution, such as that of imitating the best ones.
      A sampler of another model than the policy, such as `openai`, refuses a trainer that needs prompts without it.
    * `scores_samples`: True if reward functions score outputs to the prompts of `samples`, whose columns they receive.
    * `default_beta`: the value of `gen.beta` where the user sets none, for a policy with Q-heads; 0 if left out.
    * `upcoming`: a method `upcoming(steps)` that returns the arguments of the next calls of `run.rollout`, with which
      `run.asynchronous` samples rounds ahead.

    Optional attributes for the conformance kit and for `rlcore plan`, the command that estimates memory:

    * `lowers`: the metric that must fall in the kit's training law, such as `"loss/policy"`; for a trainer that learns
      from samples without making them more likely, for example from preferences.
    * `workload`: a static method `workload(config, num_prompts)` for `rlcore plan`. It returns batch sizes and model
      heads by the names of that package's class `Workload`, without those that have an option of the same name.
    * `rehearse`: for a trainer of models that are no language models, a static method that returns the parts of a step
      that `rlcore plan` measures, by the names of that package's class `Rehearsal`.
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

    def state_dict(self) -> dict[str, Any]:
        """Return the training state that `policy()` does not save: nested dicts, lists, numbers, strings and tensors.

        Called on every rank at a checkpoint, where it must be equal; rank 0's is saved.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; called on every rank, before `steps`.

        Args:
            state: what `state_dict` returned, with tensors on the CPU.
        """
        ...


T = TypeVar("T")


class Stated(Generic[T]):
    """An attribute that a component may have, read from it at each use; where it has none, the default."""

    def __init__(self, default: T) -> None:
        self.default, self.name = default, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, traits: Any, owner: type) -> T:
        return cast("T", getattr(traits.component, self.name, self.default))


@attrs.frozen
class TrainerTraits:
    """What a trainer's class states beside the attributes it must have, with defaults for what it leaves out.

    `Trainer` describes each. The class is not changed, and need not inherit from anything.
    """

    component: object
    needs = Stated[Sequence[str]](())
    default_for = Stated[Sequence[str]](())
    headline = Stated[Sequence[str]](())
    off_policy = Stated(default=False)
    scores_samples = Stated(default=False)
    default_beta = Stated(0.0)


class Sampler(Protocol):
    """A function that generates rollouts; the one called `default` comes with the package of models.

    A sampler that intentionally samples from another distribution than the policy's sets an attribute
    `draws_from_policy = False`, which the conformance kit reads. One that keeps a copy of the weights compares
    `policy.version` at each call and renews the copy when it has changed.

    A sampler whose columns `logprobs` and `values` are what the policy itself computes, with its current weights and in
    its precision, sets an attribute `exact_logprobs = True`. In a run at full precision, trainers then use these
    columns in place of a forward pass over the sampled tokens (`gen.reused_logprobs`). An object that wraps a sampler
    has the attribute only if it sets it itself.

    A sampler may have methods `submit` and `collect`, with which a run with `run.asynchronous` begins a round and asks
    for its rows later; other samplers are called in a thread.

    A sampler that does not run the policy needs no whole weights where they are divided, and has a method
    `renew_weights(policy, prompts)`: every rank calls it before ranks sample, with some of its prompts, or none. It
    reads `Divisible.weights()` to the end on every rank, and makes passes of the policy inside `Divisible.by_block`.

    A sampler may have methods `open(run)`, which receives the run before its model is built, and
    `check(policy, samplings)`, which receives those of `gen` and `eval.gen` before the first step, to refuse options.
    Methods with the names of observer hooks are called as those of an observer, as they are of the run's model.

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


@attrs.frozen
class SamplerTraits:
    """What a sampler states about its samples, with defaults for what it leaves out.

    `Sampler` describes the first two. They are read at each use, because an engine may change them.
    """

    component: object
    draws_from_policy = Stated(default=True)
    exact_logprobs = Stated(default=False)
    lags = Stated(default=False)
    """Whether the sampler has older weights on purpose (`run.asynchronous`)."""
    one_version = Stated(default=False)
    """Whether a round ahead is sampled with one version of the weights."""


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
