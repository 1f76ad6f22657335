"""Load tokenizers from memory, a hub id or a folder, with the user's options."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import (
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from rlcore.checkpoints.manifest import READ_BESIDE, verify_model
from rlcore.config import evolve, structure, unstructure
from rlcore.config.yaml_files import existing_path
from rlcore.data.text import decode
from rlcore.errors import ModelError
from rlcore.logging import get_logger
from rlcore_transformers.models.gguf import check_gguf, find_gguf, read_tokenizer
from rlcore_transformers.models.hub import base_of, first_line, quiet_transformers
from rlcore_transformers.models.model_options import TokenizerConfig, TransformerConfig

log = get_logger("models")
SPECIAL = ("bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Special tokens, without EOS, whose ids a configuration may have."""
_decode_each = decode.dispatch(object)


@decode.register
def decode_batch(
    tokenizer: PreTrainedTokenizerFast, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool
) -> list[str]:
    """Decode token ids by the backend, which takes half the time, unless the tokenizer's class decodes otherwise."""
    kind, plain = type(tokenizer), PreTrainedTokenizerFast
    if kind.decode is plain.decode and kind._decode is plain._decode:  # noqa: SLF001  which such classes override
        return list(
            tokenizer.backend_tokenizer.decode_batch(
                [list(row) for row in rows], skip_special_tokens=skip_special_tokens
            )
        )
    return list(_decode_each(tokenizer, rows, skip_special_tokens=skip_special_tokens))


def load_tokenizer(
    spec: str | os.PathLike[str] | PretrainedConfig | PreTrainedModel,
    given: object = None,
    config: TransformerConfig | None = None,
) -> PreTrainedTokenizerBase:
    """Return the given tokenizer, or else the model's own, at the model's revision.

    A tokenizer without a padding token is copied and pads with EOS, which is safe because padding is marked by masks.

    Args:
        spec: the model, in any form.
        given: a tokenizer, its hub id or folder, or a mapping with `path` (either of these) and other options of
            `rlcore_transformers.models.model_options.TokenizerConfig`.
        config: the model's options.

    Raises:
        ModelError: no tokenizer is given and the model has none, or it has neither a padding nor an EOS token.
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


def carry_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, given: object) -> None:
    """Write the special tokens of a run's tokenizer into the configuration of its model and of its generation.

    There `generate` and servers read them. The tokenizer's EOS, at which the run's sampling stops, comes before those
    that are there: `eos_token_id: [new, old]`. Other tokens replace theirs, if the run's options state them or name
    another tokenizer; a model's own tokenizer may differ from its configuration, and then both stay.

    Args:
        model: the model, whose configuration is changed.
        tokenizer: the result of `load_tokenizer`.
        given: what `load_tokenizer` made it of.
    """
    changed = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in _changed_tokens(tokenizer, given)}
    configs: Any = {id(each): each for each in (model.config, model.config.get_text_config())}.values()
    generation: Any = getattr(model, "generation_config", None)  # which classifiers have not
    eos, is_new = tokenizer.eos_token_id, False
    for config in [*configs, *([generation] if generation is not None else [])]:
        has = config.to_dict()
        for name, token in changed.items():
            if name in has:
                setattr(config, name, token)
        own = has.get("eos_token_id")
        ends = [] if own is None else list(own) if isinstance(own, (list, tuple)) else [own]
        if eos is None or eos in ends:
            continue
        # Encoder-decoders that classify compare tokens with the one EOS of their configuration.
        is_single = not ends or (model.config.is_encoder_decoder and config is not generation)
        config.eos_token_id = eos if is_single else [eos, *ends]
        is_new = True
    if is_new:
        log.info("EOS of the tokenizer is set in the model's configuration, at which others stop too", eos=[eos, *ends])


def _changed_tokens(tokenizer: PreTrainedTokenizerBase, given: object) -> list[str]:
    """Return the names of special tokens, but for EOS, that the run's options state, or that another tokenizer has."""
    stated = unstructure(given) if isinstance(given, TokenizerConfig) else given
    if isinstance(stated, Mapping):
        names = [name for name in SPECIAL if stated.get(name) is not None]
        is_other = bool(stated.get("path"))
    else:
        names, is_other = [], given is not None
    if is_other:
        pads_with_eos = tokenizer.pad_token_id == tokenizer.eos_token_id  # perhaps only since `load_tokenizer`
        has = [name for name in SPECIAL if getattr(tokenizer, f"{name}_id") is not None]
        names += [name for name in has if name not in names and not (name == "pad_token" and pads_with_eos)]
    return names


def _options(spec: object, given: object, config: TransformerConfig | None) -> TokenizerConfig:
    """Complete the options: path, revision, and whether the repository's code may run."""
    if isinstance(given, Mapping) and isinstance(given.get("path"), PreTrainedTokenizerBase):
        raise ModelError(
            f"model.tokenizer.path: is a {type(given['path']).__name__} already; change its attributes and pass it "
            "without other options"
        )
    options: TokenizerConfig
    if isinstance(given, (Mapping, TokenizerConfig)):
        options = structure(TokenizerConfig, given, path="model.tokenizer")
    elif given is None or isinstance(given, (str, os.PathLike)):
        options = TokenizerConfig(path=None if not given else os.fspath(given))
    else:
        raise ModelError(f"tokenizer = {given!r:.80}: give a tokenizer, a folder or hub id, or a mapping of options")
    own = spec if isinstance(spec, (str, os.PathLike)) else getattr(spec, "name_or_path", "")
    if own and not existing_path(Path(own, "tokenizer_config.json")):
        own = base_of(os.fspath(own)) or own  # the folder may hold an adapter alone
    if options.path is None and not own:
        raise ModelError(
            f"tokenizer = {given!r:.80}: a {type(spec).__name__} comes without a tokenizer; pass tokenizer=, "
            "an object, folder or hub id"
        )
    if options.path is None:
        revision = options.revision or (None if config is None else config.revision)
        options = evolve(options, path=os.fspath(own), revision=revision)
    if options.trust_remote_code is None:
        options = evolve(options, trust_remote_code=config is not None and config.trust_remote_code)
    return options


def _read_tokenizer(options: TokenizerConfig) -> PreTrainedTokenizerBase:
    name = str(options.path)
    folder, keywords = existing_path(name), _keywords(options)
    if (gguf := find_gguf(name)) is not None:
        check_gguf(gguf, f"tokenizer = {name!r}")
    elif folder is not None and folder.is_dir():
        verify_model(folder, READ_BESIDE)
    try:
        with quiet_transformers():
            tokenizer: PreTrainedTokenizerBase
            if gguf is not None:
                tokenizer = read_tokenizer(gguf, keywords)
            else:
                tokenizer = AutoTokenizer.from_pretrained(str(folder or name), **keywords)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if folder is None:
            raise ModelError(
                f"{name!r}: there is no such folder under {Path.cwd()}, and as a hub id it cannot be loaded: "
                f"{first_line(error)}"
            ) from None
        raise _no_tokenizer(name, first_line(error)) from None
    # If files are missing, transformers creates an empty tokenizer of the class in the model's configuration.
    if not set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens):
        raise _no_tokenizer(name, "its vocabulary is empty")
    if options.use_fast is not None and tokenizer.is_fast != options.use_fast:
        log.warning(
            "model.tokenizer.use_fast: transformers has no such tokenizer of this kind", is_fast=tokenizer.is_fast
        )
    return tokenizer


def _keywords(options: TokenizerConfig) -> dict[str, object]:
    """Return the arguments of `from_pretrained`: only the options that were set."""
    arguments = {name: value for name, value in unstructure(options).items() if value not in (None, [])}
    del arguments["path"]
    more = arguments.pop("options")
    template = arguments.get("chat_template", "")
    if template.endswith(".jinja"):
        try:
            arguments["chat_template"] = (existing_path(template) or Path(template)).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"model.tokenizer.chat_template = {template!r}: cannot be read: {error}") from error
    return {"revision": "main", **more, **arguments}


def _no_tokenizer(name: str, reason: str) -> ModelError:
    return ModelError(
        f"{name!r} holds no tokenizer that transformers can load ({reason}): pass tokenizer= "
        "(in a configuration file model.tokenizer), a folder or hub id"
    )
