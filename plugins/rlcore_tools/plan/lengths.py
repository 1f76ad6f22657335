"""The lengths of a run's prompts and samples, read if this downloads nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlcore.config.yaml_files import existing_path
from rlcore.errors import ConfigError
from rlcore.settings import TrainConfig
from rlcore.training.inputs import Inputs
from rlcore.training.run_components import Chosen, open_player, with_rows
from rlcore.types import Sample, sequences_of
from rlcore_tools.plan.workload import Workload
from rlcore_transformers.data.data_sets import is_stream
from rlcore_transformers.models.hub import is_hub_id

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
    inputs: Inputs, options: Any, read: Callable[..., PreTrainedTokenizerBase]
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


def _cached(name: str) -> Any:
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


def _is_here(source: Any) -> bool:
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
