"""A tokenizer that also reads images: it is the model's own, with the processor and the images of the run.

Also in this file: the processors of models that see: which one a run reads images with.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoProcessor, PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin

from rlcore.config.yaml_files import existing_path
from rlcore.errors import DataError, ModelError
from rlcore.logging import get_logger
from rlcore.types import is_conversation
from rlcore_transformers.data.messages import holds_images, is_image, shows_image
from rlcore_transformers.models.hub import base_of, first_line, quiet_transformers
from rlcore_transformers.models.tokenizers import load_tokenizer
from rlcore_vision.image_rows import TOKEN, place_images
from rlcore_vision.image_store import ImageStore
from rlcore_vision.options import VisionLanguageConfig


class Seeing:
    """The part of a tokenizer's class that reads images; `images` are those of the run.

    Texts name images as `<image:4f0c21a9>`; their tokens are those of the processor, with the image's own token
    (`rlcore_vision.image_store`) wherever the model puts image features.
    """

    images: ImageStore

    @property
    def fingerprint_parts(self) -> tuple[str, ...]:
        """Return what decides how images are read: a run with another processor of images cannot be resumed."""
        return (str(self.images.processor.to_json_string()),)

    def read_row(self, row: object, column: str, where: str) -> object:
        """Return a row whose images are known and stand in its texts (`rlcore_transformers.data.rows.RowReader`)."""
        return place_images(self.images, row, column, where)

    def check_truncated(self, tokens: Sequence[int], kept: Sequence[int], where: str) -> None:
        """Refuse a truncation that removes an image from a prompt (`rlcore_transformers.data.tokens.Truncatable`)."""
        shown, left = (sum(token in self.images for token in each) for each in (tokens, kept))
        if left < shown:
            raise DataError(
                f"{where}: the prompt has {len(tokens)} tokens, and the truncation would remove {shown - left} of the "
                f"{shown} tokens of its images, so that the policy would answer without seeing them; raise the limit, "
                "or leave it or the row out"
            )

    def apply_chat_template(self, conversation: Any, *args: object, tokenize: bool = False, **kwargs: object) -> Any:
        """Render a conversation; each image's name stands where the template writes the processor's image token.

        Raises:
            DataError: the template does not write one image token for each image, or an image is none of a row's.
            ModelError: `tokenize` is requested of a conversation with images.
        """
        plain, names = self._without_images(conversation)
        text = super().apply_chat_template(plain, *args, tokenize=tokenize, **kwargs)  # type: ignore[misc]
        if not names:
            return text
        if tokenize:
            raise ModelError("a chat template with {% generation %} cannot be used for conversations with images")
        mark = str(self.images.processor.image_token)
        pieces = text.split(mark)
        if len(pieces) - 1 != len(names):
            raise DataError(
                f"the chat template writes {mark!r} {len(pieces) - 1} times for {len(names)} images: write no such "
                "token into texts, and take a template that writes it for parts of the type 'image'"
            )
        return "".join(piece + name for piece, name in zip(pieces, [*names, ""], strict=True))

    def __call__(self, text: object = None, *args: object, **kwargs: object) -> object:
        """Tokenise texts, with the images that they name."""
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, Sequence) or not any(isinstance(each, str) and "<image:" in each for each in texts):
            return super().__call__(text, *args, **kwargs)  # type: ignore[misc]
        expanded = [self.images.expand(each) for each in texts]
        encoded = super().__call__([each for each, _ in expanded], *args, **kwargs)  # type: ignore[misc]
        rows = [self.images.name(ids, found) for ids, (_, found) in zip(encoded["input_ids"], expanded, strict=True)]
        encoded["input_ids"] = rows
        if isinstance(text, str):
            return type(encoded)({name: rows[0] for name, rows in encoded.items()})
        return encoded

    def save_pretrained(self, save_directory: str | Path, **kwargs: object) -> Any:
        """Write the processor, of which the tokenizer is a part."""
        return self.images.processor.save_pretrained(str(save_directory), **kwargs)

    def _mark(self, part: Mapping[str, Any]) -> str:
        if TOKEN not in part:
            raise DataError(
                "a message shows an image that no row has, such as a later message of an environment: images are read "
                "in rows only"
            )
        return self.images.mark(part[TOKEN])

    def _without_images(self, conversation: Sequence[Mapping[str, object]]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return a conversation whose images have no source, and the names of these images."""
        messages, names = [], []
        for message in conversation:
            content = message.get("content")
            if isinstance(content, list | tuple):
                parts = [{"type": "image"} if is_image(part) else part for part in content]
                names += [self._mark(part) for part in content if is_image(part)]
                messages.append({**message, "content": parts})
            else:
                messages.append(dict(message))
        return messages, names


class TextsOnly:
    """The part of a class of tokenizers that come without an image processor: rows with images are refused."""

    def read_row(self, row: Any, column: str, where: str) -> Any:
        """Return a row without images as it is.

        Raises:
            DataError: the row has images.
        """
        del column
        values = row.values() if isinstance(row, Mapping) else [row]
        messages = [message for value in values if is_conversation(value) for message in value]
        if any(map(shows_image, messages)) or (isinstance(row, Mapping) and holds_images(row)):
            raise DataError(
                f"{where}: has images, and the run's tokenizer comes without an image processor: pass tokenizer=, the "
                "model's processor"
            )
        return row


def make_blind(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return a copy of a tokenizer that refuses images, of a subclass of its class."""
    return _of_subclass(tokenizer, TextsOnly)


def _of_subclass(tokenizer: PreTrainedTokenizerBase, part: type) -> Any:
    kind = type(tokenizer)
    made: object = copy.copy(tokenizer)
    made.__class__ = type(kind.__name__, (part, kind), {"__module__": kind.__module__})
    return made


def make_seeing(tokenizer: PreTrainedTokenizerBase, images: ImageStore) -> Any:
    """Return a copy of a tokenizer that also reads images, of a subclass of its class."""
    seeing = _of_subclass(tokenizer, Seeing)
    seeing.images = images
    return seeing


log = get_logger("models")

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
PLACE_OPTIONS = ("path", "revision", "trust_remote_code")
"""Options of a tokenizer that say where it is; all others change it."""


def read_processor(spec: Any, given: object, config: VisionLanguageConfig, about: PreTrainedConfig) -> object:
    """Return the tokenizer that reads images, made of the processor of the model or of the one that is given.

    Raises:
        ModelError: there is none, or it processes no images.
    """
    is_loaded = isinstance(given, ProcessorMixin | PreTrainedTokenizerBase)
    processor: Any = given if is_loaded else load_processor(spec, given, config)
    if isinstance(processor, PreTrainedTokenizerBase):
        log.warning("the tokenizer comes without an image processor: rows with images are refused")
        return make_blind(load_tokenizer(spec, processor, config))
    if not hasattr(processor, "image_processor") or not hasattr(processor, "image_token"):
        raise ModelError(f"tokenizer = {type(processor).__name__}: has no image processor; pass the model's processor")
    stated = given if isinstance(given, Mapping) and set(given) - set(PLACE_OPTIONS) else {}
    plain = load_tokenizer(spec, stated or processor.tokenizer, config)
    if stated:
        processor.tokenizer = plain  # which is saved with the processor
    if stated.get("chat_template"):
        processor.chat_template = plain.chat_template
    if not plain.chat_template and getattr(processor, "chat_template", None):
        plain.chat_template = processor.chat_template
    images = ImageStore(
        processor, int(about.image_token_id), allow_urls=config.allow_urls,
        cache_bytes=config.image_cache_gb * 1e9,
    )  # fmt: skip
    return make_seeing(plain, images)


def load_processor(spec: Any, given: object, config: VisionLanguageConfig) -> ProcessorMixin | PreTrainedTokenizerBase:
    """Return the processor that is named, or else that of the model; the tokenizer of a folder without a processor.

    Raises:
        ModelError: there is none that can be loaded.
    """
    path = given.get("path") if isinstance(given, Mapping) else given
    own = spec if isinstance(spec, str | os.PathLike) else getattr(spec, "name_or_path", "")
    name = path or own
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise ModelError(
            f"tokenizer = {given!r:.80}: a model that sees images needs its processor, which a {type(spec).__name__} "
            "comes without: pass tokenizer=, the processor, its folder or hub id"
        )
    place = os.fspath(name)
    if not path and existing_path(Path(place, "processor_config.json")) is None:
        place = base_of(place) or place
    folder = existing_path(place)
    if folder is not None and folder.is_dir() and not any((folder / file).exists() for file in PROCESSOR_FILES):
        return load_tokenizer(spec, given, config)
    try:
        with quiet_transformers():
            loaded: ProcessorMixin | PreTrainedTokenizerBase = AutoProcessor.from_pretrained(
                str(existing_path(place) or place), revision=config.revision or "main",
                trust_remote_code=config.trust_remote_code,
            )  # fmt: skip
            return loaded
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(
            f"{place!r}: holds no processor that transformers can load ({first_line(error)}): pass tokenizer=, a "
            "processor, its folder or hub id; or train on texts alone with model.architecture=causal_lm"
        ) from error
