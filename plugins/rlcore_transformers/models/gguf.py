"""Read models in GGUF files, the format of llama.cpp, with the readers of `transformers`, and train them as plain ones.

The weights are dequantised when they are loaded. Tokenizer, chat template and special tokens are in the same file.
Whatever a run saves is a usual folder with safetensors.
"""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Mapping
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GgufConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    modeling_gguf_pytorch_utils,
)
from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
from transformers.integrations.gguf.reader import read_gguf_metadata

from rlcore.config.yaml_files import existing_path
from rlcore.errors import ModelError
from rlcore.types import Options
from rlcore_transformers.models.hub import DESCRIBED, base_of, first_line

SUFFIX = ".gguf"
DAMAGED = (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error)
"""Errors that the reader of `transformers` raises for a file that is damaged, or in another format."""


def find_gguf(name: str | os.PathLike[str]) -> Path | None:
    """Return the GGUF file that a name denotes: the file, or that of a folder without a model in another format.

    Raises:
        ModelError: the folder has several such files.
    """
    path = existing_path(name)
    if path is None or path.is_file():
        return path if path is not None and path.suffix.lower() == SUFFIX else None
    found = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else []
    if not found or any((path / each).exists() for each in DESCRIBED) or base_of(os.fspath(name)):
        return None
    if len(found) > 1:
        raise ModelError(
            f"model = {os.fspath(name)!r}: the folder has {len(found)} GGUF files: name one of them, such as "
            f"{os.fspath(found[0])!r} (there are {', '.join(each.name for each in found[:8])})"
        )
    return found[0]


def check_gguf(file: Path, what: str) -> None:
    """Check, before its weights are read, that `transformers` reads a GGUF file.

    Args:
        file: the file.
        what: beginning of messages, such as `model = 'x.gguf'`.

    Raises:
        ModelError: it is damaged, one part of several, of an unknown architecture, or the package `gguf` is missing.
    """
    try:
        about, _ = read_gguf_metadata(os.fspath(file))
    except DAMAGED as error:
        raise ModelError(f"{what}: {file.name} is damaged, or no GGUF file: {first_line(error)}") from None
    architecture, parts = str(about["general.architecture"]), about.get("split.count", 1)
    if parts > 1:
        raise ModelError(
            f"{what}: {file.name} is one of {parts} parts of a model, and transformers reads whole files only: join "
            "them with llama-gguf-split --merge"
        )
    if architecture in GGUF_CONFIG_ARCHS:
        return
    # Others, such as qwen2moe and gpt-oss, are in the table under the name of transformers.
    known = {
        each.replace("_", "").replace("-", "") for each in modeling_gguf_pytorch_utils.GGUF_SUPPORTED_ARCHITECTURES
    }
    if architecture.replace("_", "").replace("-", "") not in known:
        raise ModelError(
            f"{what}: transformers {transformers.__version__} reads no GGUF files of the architecture "
            f"{architecture!r}: give the folder or hub id of the model that the file was made of"
        )
    if find_spec("gguf") is None:
        raise ModelError(f"{what}: needs the package gguf: pip install 'rlcore-transformers[gguf]'")


def read_config(file: Path) -> PretrainedConfig:
    """Return the configuration of the model in a GGUF file, which is read once while the file stays as it is."""
    return copy.deepcopy(_read_config(file, file.stat().st_mtime_ns))


@lru_cache(maxsize=4)
def _read_config(file: Path, changed: int) -> PretrainedConfig:
    del changed
    config: PretrainedConfig = AutoConfig.from_pretrained(os.fspath(file.parent), gguf_file=file.name)
    return config


def read_tokenizer(file: Path, options: Mapping[str, object]) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a GGUF file, without tokens that the file does not have.

    Of byte-level vocabularies `transformers` adds GPT-2's `<|endoftext|>` if it is missing, as in those of Llama 3.

    Args:
        file: the file.
        options: arguments of `from_pretrained`.
    """
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        os.fspath(file.parent), **{**options, "gguf_file": file.name}
    )
    about, _ = read_gguf_metadata(os.fspath(file))
    size = int(about["tokenizer.ggml.tokens"])
    if len(found) > size and isinstance(found, PreTrainedTokenizerFast):
        written = json.loads(found.backend_tokenizer.to_str())
        written["added_tokens"] = [token for token in written["added_tokens"] if token["id"] < size]
        found._tokenizer = Tokenizer.from_str(json.dumps(written))  # noqa: SLF001
    return found


def read_model(loader: Any, file: Path, name: str, options: Options) -> Any:
    """Return a model with dequantised weights, and what `from_pretrained` reports of loading it.

    Args:
        loader: auto class of `transformers`.
        file: the file.
        name: the user's name of it, by which the model beneath an adapter is loaded again.
        options: further arguments of `from_pretrained`; `num_labels` is for a loader of classifiers.
    """
    about, options = read_config(file), dict(options)
    if "num_labels" in options:  # which from_pretrained hands to the model if it is given a configuration
        about.num_labels = options.pop("num_labels")
    reader: Any = modeling_gguf_pytorch_utils
    bar = reader.tqdm  # which `transformers` shows even where its own bars are switched off
    reader.tqdm = partial(bar, disable=True)
    try:
        model, info = loader.from_pretrained(
            os.fspath(file.parent), gguf_file=file.name, config=about,
            quantization_config=GgufConfig(dequantize=True), **options,
        )  # fmt: skip
    finally:
        reader.tqdm = bar
    model.name_or_path = model.config.name_or_path = name
    return model, info
