"""The rows of a configuration, read and tokenised as its run would, with the tokenizer and without the model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
from transformers import PretrainedConfig

from rlcore.components import LANGUAGE_MODEL, SCORER, kind_built
from rlcore.config import evolve, structure
from rlcore.errors import ConfigError, InputsError
from rlcore.plugins.choice import Wrapping
from rlcore.plugins.metadata import configured
from rlcore.settings import DataConfig, TrainConfig
from rlcore.training.inputs import DATA_INPUTS, Inputs
from rlcore.training.run_components import choose, open_player, with_rows
from rlcore_tools.shown_rows import Shown, show_rows
from rlcore_transformers.data.streams import open_stream
from rlcore_transformers.models.kind import ENCODER_DECODER, declared, kind_of
from rlcore_transformers.models.tokenizers import load_tokenizer

EPISODE = "example episode"
STREAMED = 1000
"""Rows of a stream that are read for their lengths."""


def read_data(values: Mapping[str, Any], where: str, *, num_rows: int) -> list[Shown]:
    """Return the first rows and the lengths of each source of rows of a configuration.

    Args:
        values: a configuration as read from YAML.
        where: its name, for errors.
        num_rows: number of rows to show of each source.

    Raises:
        RLCoreError: the configuration or its data cannot be used.
    """
    settings = structure(TrainConfig, values, where=where)
    with configured(settings.plugins.disable, settings.plugins.only):
        return _read(settings, where, num_rows)


def _read(settings: TrainConfig, where: str, num_rows: int) -> list[Shown]:
    named = {name: getattr(settings.data, name) for name in DATA_INPUTS}
    inputs = Inputs(model=settings.model.get("path"), tokenizer=settings.model.get("tokenizer"), **named)
    if inputs.model is None:
        raise InputsError(f"{where}: model.path is missing: name a hub id or a folder, whose tokenizer is used")
    given = [name for name in ("samples", "prompts", "eval_samples", "eval_prompts") if named[name] is not None]
    if not given and inputs.environment is None:
        raise InputsError(f"{where}: has no rows to show: set data.samples or data.prompts")
    chosen = choose(settings, inputs, where, Wrapping(config=settings))
    kind = kind_built(chosen.architecture.component.target())
    if kind not in (LANGUAGE_MODEL, SCORER):
        raise ConfigError(f"{where}: this run trains {kind}; rlcore preview shows the rows of models of text")
    read = getattr(chosen.architecture.component.target(), "read_tokenizer", load_tokenizer)  # such as a processor
    tokenizer = read(inputs.model, inputs.tokenizer, chosen.architecture.options)
    config = _model_config(inputs.model, settings.model.get("revision"))
    is_split = config is not None and kind_of(config) is ENCODER_DECODER
    context = 0 if config is None or is_split else _context_length(config)
    data = settings.data
    if data.outputs_begin_text is None:
        data = evolve(data, outputs_begin_text=is_split)
    found, player = [], None
    if inputs.environment is not None:
        player = open_player(chosen.environment, inputs, settings)
        completed = with_rows(inputs, player)
        named |= {name: getattr(completed, name) for name in ("prompts", "eval_prompts")}
        given = [name for name in ("samples", "prompts", "eval_samples", "eval_prompts") if named[name] is not None]
    for name in given:
        build: Any = (chosen.samples if name.endswith("samples") else chosen.prompts).build()
        if player is not None and name.endswith("prompts"):
            build = player.pipeline(build)
        source = _taken(named[name], data, settings.run.seed) if name == "samples" else named[name]
        rows: Sequence[Any] = build(source, tokenizer, data, max_length=context, what=name)
        found.append(show_rows(name, rows, source, tokenizer, data, context=context, num_rows=num_rows))
        if player is not None and name == "prompts":
            episode, transcript = player.example(rows[0], tokenizer)
            lengths = show_rows(EPISODE, [episode], None, tokenizer, data, context=context)
            (shown,) = lengths.rows
            said = {f"{i} {each['role']}": each["content"] for i, each in enumerate(transcript)}
            one = attrs.evolve(shown, values={**shown.values, **said})
            found.append(attrs.evolve(lengths, rows=[one]))
    if player is not None:
        player.close()
    return found


def _taken(source: Any, data: DataConfig, seed: int) -> Any:
    """Return a source, or the first rows of a stream."""
    stream = open_stream(source, data, seed=seed)
    return source if stream is None else list(islice(iter(stream), STREAMED))


def _model_config(model: Any, revision: Any) -> PretrainedConfig | None:
    if isinstance(model, str | os.PathLike):
        return declared(model, revision if isinstance(revision, str) else None)
    return model if isinstance(model, PretrainedConfig) else getattr(model, "config", None)


def _context_length(config: PretrainedConfig) -> int:
    return int(getattr(config.get_text_config(), "max_position_embeddings", 0) or 0)
