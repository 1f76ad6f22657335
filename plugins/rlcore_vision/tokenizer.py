"""A tokenizer that also reads images: it is the model's own, with the processor and the images of the run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from rlcore.errors import DataError, ModelError
from rlcore.types import is_conversation
from rlcore_transformers.data.image_parts import holds_images, is_image, shows_image
from rlcore_vision.image_rows import TOKEN, place_images

if TYPE_CHECKING:
    from rlcore_vision.image_store import ImageStore


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

    def read_row(self, row: Any, column: str, where: str) -> Any:
        """Return a row whose images are known and stand in its texts (`rlcore_transformers.data.rows.RowReader`)."""
        return place_images(self.images, row, column, where)

    def check_truncated(self, tokens: Sequence[int], kept: Sequence[int], where: str) -> None:
        """Refuse a truncation that removes an image from a prompt (`rlcore_transformers.data.limits.Truncatable`)."""
        shown, left = (sum(token in self.images for token in each) for each in (tokens, kept))
        if left < shown:
            raise DataError(
                f"{where}: the prompt has {len(tokens)} tokens, and the truncation would remove {shown - left} of the "
                f"{shown} tokens of its images, so that the policy would answer without seeing them; raise the limit, "
                "or leave it or the row out"
            )

    def apply_chat_template(self, conversation: Any, *args: Any, tokenize: bool = False, **kwargs: Any) -> Any:
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

    def __call__(self, text: Any = None, *args: Any, **kwargs: Any) -> Any:
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

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> Any:
        """Write the processor, of which the tokenizer is a part."""
        return self.images.processor.save_pretrained(str(save_directory), **kwargs)

    def _mark(self, part: Mapping[str, Any]) -> str:
        if TOKEN not in part:
            raise DataError(
                "a message shows an image that no row has, such as a later message of an environment: images are read "
                "in rows only"
            )
        return self.images.mark(part[TOKEN])

    def _without_images(self, conversation: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
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
    made: Any = copy.copy(tokenizer)
    made.__class__ = type(kind.__name__, (part, kind), {"__module__": kind.__module__})
    return made


def make_seeing(tokenizer: PreTrainedTokenizerBase, images: ImageStore) -> Any:
    """Return a copy of a tokenizer that also reads images, of a subclass of its class."""
    seeing = _of_subclass(tokenizer, Seeing)
    seeing.images = images
    return seeing
