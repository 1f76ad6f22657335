"""Load tokenizers: as they are in memory, or from a hub id or folder, with options of the user's own."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rlcore.config import evolve, structure, unstructure
from rlcore.errors import ModelError
from rlcore.logging import get_logger
from rlcore.models.hub import base_of, first_line, quiet_transformers
from rlcore.models.settings import LanguageModelConfig, TokenizerConfig

log = get_logger("models")


def load_tokenizer(
    spec: str | os.PathLike[str] | PretrainedConfig | PreTrainedModel,
    given: object = None,
    config: LanguageModelConfig | None = None,
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that was given, else the model's own, at the model's revision.

    A tokenizer without a padding token is copied and pads with EOS, which is safe here: masks tell padding, never ids.

    Args:
        spec: the model, in any form.
        given: a tokenizer, its hub id or folder, or a mapping with `path` (either of these) and other options of
            `rlcore.models.settings.TokenizerConfig`.
        config: the model's options.

    Raises:
        ModelError: none is given and the model brings none, or it has neither a padding nor an EOS token.
        ConfigError: an option is unknown, of the wrong type or out of range.
    """
    tokenizer = given if isinstance(given, PreTrainedTokenizerBase) else _read_tokenizer(_options(spec, given, config))
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                "the tokenizer has neither a padding nor an EOS token: set tokenizer.eos_token (in a configuration "
                "file model.tokenizer.eos_token)"
            )
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _options(spec: Any, given: Any, config: LanguageModelConfig | None) -> TokenizerConfig:
    """Fill in where the tokenizer lies, at which revision, and whether its code may run."""
    if isinstance(given, Mapping) and isinstance(given.get("path"), PreTrainedTokenizerBase):
        raise ModelError(
            f"model.tokenizer.path: is a {type(given['path']).__name__} already; set what is to differ on it and pass "
            "it alone"
        )
    wanted: TokenizerConfig
    if isinstance(given, (Mapping, TokenizerConfig)):
        wanted = structure(TokenizerConfig, given, path="model.tokenizer")
    elif given is None or isinstance(given, (str, os.PathLike)):
        wanted = TokenizerConfig(path=None if not given else os.fspath(given))
    else:
        raise ModelError(f"tokenizer = {given!r:.80}: give a tokenizer, a folder or hub id, or a mapping of options")
    own = spec if isinstance(spec, (str, os.PathLike)) else getattr(spec, "name_or_path", "")
    if own and not (Path(own).expanduser() / "tokenizer_config.json").exists():
        own = base_of(os.fspath(own)) or own  # an adapter may lie alone
    if wanted.path is None and not own:
        raise ModelError(
            f"tokenizer = {given!r:.80}: a {type(spec).__name__} brings none of its own; pass tokenizer=, "
            "an object, folder or hub id"
        )
    if wanted.path is None:
        revision = wanted.revision or (None if config is None else config.revision)
        wanted = evolve(wanted, path=os.fspath(own), revision=revision)
    if wanted.trust_remote_code is None:
        wanted = evolve(wanted, trust_remote_code=config is not None and config.trust_remote_code)
    return wanted


def _read_tokenizer(wanted: TokenizerConfig) -> PreTrainedTokenizerBase:
    name = str(wanted.path)
    folder = Path(name).expanduser()
    try:
        with quiet_transformers():
            where = str(folder) if folder.exists() else name
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(where, **_keywords(wanted))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if not folder.exists():
            raise ModelError(
                f"{name!r}: there is no such folder under {Path.cwd()}, and as a hub id it cannot be loaded: "
                f"{first_line(error)}"
            ) from None
        raise _no_tokenizer(name, first_line(error)) from None
    # Where its files are missing, transformers makes an empty one of the kind the model's configuration tells.
    if not set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens):
        raise _no_tokenizer(name, "its vocabulary is empty")
    if wanted.use_fast is not None and tokenizer.is_fast != wanted.use_fast:
        log.warning(
            "model.tokenizer.use_fast: transformers has no such tokenizer of this kind", is_fast=tokenizer.is_fast
        )
    return tokenizer


def _keywords(wanted: TokenizerConfig) -> dict[str, Any]:
    """Return what `from_pretrained` is told: all that was said, and nothing else."""
    said = {name: value for name, value in unstructure(wanted).items() if value not in (None, [])}
    del said["path"]
    more = said.pop("options")
    template = said.get("chat_template", "")
    if template.endswith(".jinja"):
        try:
            said["chat_template"] = Path(template).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise ModelError(f"model.tokenizer.chat_template = {template!r}: cannot be read: {error}") from error
    return {"revision": "main", **more, **said}


def _no_tokenizer(name: str, reason: str) -> ModelError:
    return ModelError(
        f"{name!r} holds no tokenizer that transformers can load ({reason}): pass tokenizer= "
        "(in a configuration file model.tokenizer), a folder or hub id"
    )
