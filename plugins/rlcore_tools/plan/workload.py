"""The batch sizes and model heads that a trainer declares in its static methods `workload` and `rehearse`.

Also in this file: the workload of a trainer: as it declares it, or guessed from the names of its options; the lengths
of a run's prompts and samples, read if this downloads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlcore.config.yaml_files import existing_path
from rlcore.errors import ConfigError, PluginError
from rlcore.protocols import TrainerTraits
from rlcore.settings import BatchOptions, TrainConfig
from rlcore.training.inputs import Inputs
from rlcore.training.run_components import Chosen, open_player, with_rows
from rlcore.types import Options, Sample, sequences_of
from rlcore_transformers.data.files import is_stream
from rlcore_transformers.models.hub import is_hub_id

if TYPE_CHECKING:
    import torch

    from rlcore.protocols import Trainer


@attrs.frozen(kw_only=True)
class Workload:
    """The batch sizes and model heads that a trainer will use.

    A trainer states those that `default_workload` does not derive from its options, in a static method, called with
    its options and the number of its prompts (0 where that is unknown):

        @staticmethod
        def workload(config: MyConfig, num_prompts: int) -> Mapping[str, Any]:
            return {"num_scored": config.batch_size, "reference": True}

    Attributes:
        batch_size: sequences of one optimizer step, on all ranks together.
        group: so many consecutive sequences stay together in every batch, 2 for pairs.
        micro_batch_size: sequences of one forward pass with gradients on a rank; 0 takes all.
        micro_batch_tokens: tokens of one such pass at the most, padding counted; 0 sets no bound.
        num_sampled: prompts continued in a round, on all ranks together; 0 where it learns from samples alone.
        num_held: sequences kept between sampling and learning, on all ranks together.
        passes: how often each of them is learned from.
        num_scored: sequences of one forward pass without gradients on a rank; 0 where there are none.
        value_head: the policy has a value head.
        reference: the policy has a frozen reference.
        heads: what builds each further head of the policy (`rlcore.protocols.HeadBuilder`), by name.
        entropy: the loss contains the entropy of every chosen token's distribution.
        dropout: training uses the model's own dropout.
    """

    batch_size: int
    group: int = 1
    micro_batch_size: int = 0
    micro_batch_tokens: int = 0
    num_sampled: int = 0
    num_held: int = 0
    passes: int = 1
    num_scored: int = 0
    value_head: bool = False
    reference: bool = False
    heads: Mapping[str, Any] = attrs.field(factory=dict)
    entropy: bool = False
    dropout: bool = False


@attrs.frozen(kw_only=True, eq=False)
class Rehearsal:
    """The parts of a training step of a model that is no language model, which `rlcore plan` runs on fake tensors.

    A trainer of such models returns them by name from a static method, called with the model that its architecture
    built from configurations alone, its options, the whole configuration (a `rlcore.settings.TrainConfig`), and the
    number of processes:

        @staticmethod
        def rehearse(model: MyModel, config: MyConfig, settings: TrainConfig, world: int) -> Mapping[str, Any]: ...

    Attributes:
        frozen: modules that the run holds besides the model's `module`.
        sampling: by phase, `sampling` or `evaluation`, a function that allocates what the phase does.
        sampled_at_once: outputs that are sampled at once.
        loss: returns the loss of a rank's largest micro-batch, with gradients.
        num_passes: such passes of one optimizer step on a rank.
        num_held_bytes: bytes kept between sampling and learning.
        notes: assumptions of the estimate.
    """

    frozen: Sequence[torch.nn.Module] = ()
    sampling: Mapping[str, Callable[[], None]] = attrs.field(factory=dict)
    sampled_at_once: int = 1
    loss: Callable[[], torch.Tensor]
    num_passes: int = 1
    num_held_bytes: int = 0
    notes: tuple[str, ...] = ()


def default_workload(config: Any, num_prompts: int = 0) -> Workload:  # noqa: ARG001  (of a trainer's `workload`)
    """Return the workload that follows from options with the usual names.

    `rollouts` is the number of responses of a round, `batch_size` that of sequences of one optimizer step, the whole
    round where there is none; `dropout` says whether training uses it.

    Args:
        config: options of a trainer, a `rlcore.settings.BatchOptions`.
        num_prompts: ignored.
    """
    rollouts = getattr(config, "rollouts", 0)
    return Workload(
        batch_size=getattr(config, "batch_size", rollouts),
        micro_batch_size=config.micro_batch_size,
        micro_batch_tokens=config.micro_batch_tokens,
        num_sampled=rollouts,
        num_held=rollouts,
        dropout=getattr(config, "dropout", False),
    )


T = TypeVar("T")


def declared(cls: type[T], found: Any, name: str, base: Options | None = None) -> T:
    """Return what a component declares: attributes by name, or an object of the class.

    Args:
        cls: the class.
        found: what its method has returned.
        name: the component and the method, for errors.
        base: attributes that it may leave out.

    Raises:
        PluginError: it has returned another type, or attributes that the class does not have or lacks.
    """
    if isinstance(found, cls):
        return found
    make: Callable[..., T] = cls
    try:
        return make(**{**(base or {}), **found})
    except TypeError as error:
        raise PluginError(
            f"{name}() returned {found!r:.80}; it must return attributes of {cls.__module__}.{cls.__name__} by "
            f"name: {error}"
        ) from None


ASSUMED = ("batch_size", "micro_batch_size", "micro_batch_tokens")
"""Options with the usual names, from which the workload of a trainer is guessed that declares none."""


def workload_of(trainer: Trainer, options: Any, name: str, num_prompts: int) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload that a trainer declares, or one guessed from the names of its options, with a note.

    Raises:
        PluginError: `workload` of the trainer returns no attributes of a workload.
    """
    declare = TrainerTraits(trainer).workload
    if declare is not None:
        base = attrs.asdict(default_workload(options)) if isinstance(options, BatchOptions) else {}
        return declared(Workload, declare(options, num_prompts), f"{name}: workload", base), ()
    values: Mapping[str, Any] = {} if options is None else attrs.asdict(options, recurse=False)
    sizes = {key: int(values[key]) for key in ASSUMED if isinstance(values.get(key), int)}
    samples = "prompts" in trainer.needs
    sampled = int(values.get("rollouts", sizes.get("batch_size", 32))) if samples else 0
    guess = Workload(
        batch_size=sizes.get("batch_size", sampled or 32),
        micro_batch_size=sizes.get("micro_batch_size", 0),
        micro_batch_tokens=sizes.get("micro_batch_tokens", 0),
        num_sampled=sampled,
        num_held=sampled,
        reference=bool(values.get("kl_coef")),
        num_scored=sampled if values.get("kl_coef") else 0,
    )
    return guess, (f"{name} declares no workload; assumed from the names of its options: {guess}",)


UNREAD = "not read here"
ONE_TURN = (
    "episodes are counted as one turn after the first messages of the environment: if they have more, set "
    "gen.max_new_tokens to the tokens of all turns and answers together to plan for the longest"
)
FILES = (".jsonl", ".json", ".csv", ".parquet", ".txt")


@attrs.frozen
class Lengths:
    """Lengths and numbers of the run's prompts and samples.

    Attributes:
        prompt: tokens of the longest prompt; 0 if there are no prompts.
        num_prompts: number of prompts; 0 if unknown.
        eval_prompt: tokens of the longest evaluation prompt.
        num_eval_prompts: number of evaluation prompts; 0 if unknown.
        samples: the sequences of the tokenized demonstrations, or of rows of another form, such as pairs.
        notes: the assumptions about lengths.
    """

    prompt: int = 0
    num_prompts: int = 0
    eval_prompt: int = 0
    num_eval_prompts: int = 0
    samples: Sequence[Sample] = ()
    notes: tuple[str, ...] = ()


def find_tokenizer(
    inputs: Inputs, options: object, read: Callable[..., PreTrainedTokenizerBase]
) -> PreTrainedTokenizerBase | None:
    """Return the run's tokenizer if it is on this machine; None if it would have to be downloaded.

    Args:
        inputs: the run's inputs.
        options: those of the architecture.
        read: what reads it, such as `load_tokenizer`.

    Raises:
        ModelError: the tokenizer is on this machine but cannot be used.
    """
    given = inputs.tokenizer
    if isinstance(given, PreTrainedTokenizerBase):
        return read(inputs.model, given, options)
    named = given.get("path") if isinstance(given, dict) else given
    place = named or (inputs.model if isinstance(inputs.model, (str, os.PathLike)) else None)
    if place is None:
        return None
    if existing_path(place) or isinstance(_cached(os.fspath(place)), str):
        return read(inputs.model, given, options)
    return None


def _cached(name: str) -> object:
    try:
        return try_to_load_from_cache(name, "tokenizer_config.json") or try_to_load_from_cache(name, "tokenizer.json")
    except ValueError:  # not a valid repository name
        return None


def stand_in(size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer of one token and EOS, for a model whose tokenizer is not on this machine."""
    words = {"a": 0, "b": min(1, size - 1)}
    special = dict.fromkeys(("eos_token", "pad_token"), "b")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), **special)


def find_lengths(
    settings: TrainConfig,
    inputs: Inputs,
    chosen: Chosen,
    tokenizer: PreTrainedTokenizerBase | None,
    workload: Workload,
    *,
    max_prompt: int,
    max_length: int,
) -> Lengths:
    """Read prompts and samples as the run would, or use the limits in the section `data`.

    Args:
        settings: the configuration.
        inputs: the prompts and samples that it names.
        chosen: the components that it names, among them the pipelines.
        tokenizer: the run's tokenizer; None if it would have to be downloaded.
        workload: the batch sizes of the run.
        max_prompt: largest number of tokens of a prompt that the policy accepts, 0 for any number.
        max_length: largest number of tokens of prompt and continuation together, 0 for any number.

    Raises:
        ConfigError: neither the data nor a limit bounds the lengths.
        DataError: data on this machine cannot be read.
    """
    data, is_played = settings.data, inputs.environment is not None
    notes = [ONE_TURN] if is_played else []

    def read(given: Inputs, name: str, build: Any, bound: int) -> Any:
        source = getattr(given, name)
        is_streamed = is_stream(source) or (name == "samples" and data.streaming)
        if tokenizer is None or is_streamed or not _is_here(source):
            return None
        return build(source, tokenizer, data, max_length=bound, what=name)

    with _played(settings, inputs, chosen, tokenizer) as (given, build_prompts):
        prompts = read(given, "prompts", build_prompts, max_prompt + 1 if max_prompt else 0)
        held_out = read(given, "eval_prompts", build_prompts, max_prompt + 1 if max_prompt else 0)
    samples = read(inputs, "samples", chosen.samples.build(), max_length)
    longest = max((len(prompt.tokens) for prompt in prompts or ()), default=0)
    if (given.prompts is not None or is_played) and prompts is None:
        longest = data.max_prompt_tokens or max(max_prompt - settings.gen.max_new_tokens + 1, 0)
        notes.append(_note("prompts", longest, "data.max_prompt_tokens", given=bool(data.max_prompt_tokens)))
    if inputs.samples is not None and samples is None:
        length = data.max_sample_tokens or max_length
        notes.append(_note("samples", length, "data.max_sample_tokens", given=bool(data.max_sample_tokens)))
        one = Sample(tokens=(0,) * length, action_mask=(False,) + (True,) * (length - 1))
        samples = [one] * max(workload.batch_size, workload.group)
    evaluated = max((len(prompt.tokens) for prompt in held_out or ()), default=longest)
    num_eval = (
        len(held_out or ()) if given.eval_prompts is not None else min(len(prompts or ()), settings.eval.num_prompts)
    )
    sequences = [sequence for row in samples or () for sequence in sequences_of(row)]
    return Lengths(longest, len(prompts or ()), evaluated, num_eval, sequences, tuple(notes))


@contextmanager
def _played(
    settings: TrainConfig, inputs: Inputs, chosen: Chosen, tokenizer: PreTrainedTokenizerBase | None
) -> Iterator[tuple[Inputs, Any]]:
    """Yield the inputs and the pipeline of prompts; those of an environment have its rows and its first messages."""
    build = chosen.prompts.build()
    if inputs.environment is None or tokenizer is None:
        yield inputs, build
        return
    player = open_player(chosen.environment, inputs, settings)
    try:
        yield with_rows(inputs, player), player.pipeline(build)
    finally:
        player.close()


def _is_here(source: object) -> bool:
    """Return whether rows can be read without a download, that is, are not a data set of the hub."""
    if source is None or not isinstance(source, (str, Path)):
        return source is not None
    name = str(source)
    is_repository = is_hub_id(name) and "/" in name and Path(name).suffix not in FILES
    return existing_path(name) is not None or not is_repository


def _note(what: str, length: int, option: str, *, given: bool) -> str:
    """Return a note on which option or context bounds a length.

    Raises:
        ConfigError: neither an option nor the context bounds the length.
    """
    if length <= 0:
        raise ConfigError(
            f"data.{what}: {UNREAD}, and neither {option} nor the model's context bounds its length: set {option}"
        )
    by = option if given else f"the model's context; set {option} for less"
    return f"{what} are {UNREAD}: each is assumed to have {length} tokens, by {by}"
