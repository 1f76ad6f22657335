"""Put the images of a row where its texts and conversations show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import is_conversation

if TYPE_CHECKING:
    from rlcore_vision.image_store import ImageStore

TOKEN = "image_token"  # noqa: S105  no password
"""Key of a part of a message: the token of its image in the run."""
COLUMNS = ("images", "image")
"""Columns that hold a row's images."""
ANSWERS = ("chosen", "rejected", "completion", "output", "response", "completions")
_SOURCES = ("image", "path", "url", "bytes", "base64", "image_url")


def is_image(part: Any) -> bool:
    """Return whether a part of a message's content is an image."""
    return isinstance(part, Mapping) and part.get("type") in ("image", "image_url")


def place_images(images: ImageStore, row: Any, column: str, where: str) -> Any:
    """Return a row in which each image has a token, and a place in a text or a conversation.

    The images of the column `images` (or `image`) take, in their order, the places of the parts {type: image} without a
    source, or of the processor's image token in a text. Without such places they stand before the prompt's text, or
    before the first message of the user.

    Args:
        images: the images of the run, to which those of the row are added.
        row: a row.
        column: the column of the prompt.
        where: the row, for errors.

    Raises:
        DataError: an image cannot be read, or there are more places than images, or fewer.
    """
    if is_conversation(row):
        return _converse(images, row, [], where)
    if not isinstance(row, Mapping):
        return row
    given = _tokens(images, row, where)
    made = dict(row)
    prompts = [key for key in (column, "messages") if row.get(key) is not None][:1]
    answers = [key for key in ANSWERS if row.get(key) is not None]
    for key in prompts or answers or [key for key in ("text",) if row.get(key) is not None]:
        made[key] = _place(images, row[key], given, f"{where}[{key!r}]")
    for key in answers if prompts else ():
        made[key] = _place(images, row[key], [], f"{where}[{key!r}]")
    return made


def _tokens(images: ImageStore, row: Mapping[str, Any], where: str) -> list[int]:
    for column in COLUMNS:
        value = row.get(column)
        if value is not None:
            each = value if isinstance(value, list | tuple) else [value]
            return [images.add(source, f"{where}[{column!r}]") for source in each]
    return []


def _place(images: ImageStore, value: Any, given: list[int], where: str) -> Any:
    if isinstance(value, str):
        return _write(images, value, given, where)
    return _converse(images, value, given, where) if is_conversation(value) else value


def _write(images: ImageStore, text: str, given: list[int], where: str) -> str:
    mark = str(images.processor.image_token)
    pieces = text.split(mark)
    names = [images.mark(token) for token in given]
    if len(pieces) == 1:
        return "".join(names) + text
    if len(pieces) - 1 != len(names):
        raise DataError(f"{where}: contains {mark!r} {len(pieces) - 1} times, and the row has {len(names)} images")
    return "".join(piece + name for piece, name in zip(pieces, [*names, ""], strict=True))


def _converse(images: ImageStore, messages: Any, given: list[int], where: str) -> list[dict[str, Any]]:
    rest = list(given)
    made: list[dict[str, Any]] = []
    has_places = False
    for k, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list | tuple):
            made.append(dict(message))
            continue
        parts = []
        for part in content:
            if is_image(part):
                if message["role"] == "assistant":
                    raise DataError(f"{where}[{k}]: has an image in a turn of the assistant, which writes text only")
                source = next((part[key] for key in _SOURCES if part.get(key) is not None), None)
                has_places = has_places or source is None
                token = _token(images, source, rest, f"{where}[{k}]")
                parts.append({**part, "type": "image", TOKEN: token})
            else:
                parts.append(part)
        made.append({**message, "content": parts})
    if rest and has_places:
        raise DataError(
            f"{where}: the row has {len(given)} images, and {len(rest)} of them have no part {{type: image}}"
        )
    if rest:
        _put_first(made, rest, where)
    return made


def _token(images: ImageStore, source: Any, rest: list[int], where: str) -> int:
    if source is None:
        if not rest:
            raise DataError(
                f"{where}: has a part {{type: image}} without a source, and the row has no image left for it"
            )
        return rest.pop(0)
    if isinstance(source, Mapping) and "url" in source:
        source = source["url"]
    return images.add(source, where)


def _put_first(messages: list[dict[str, Any]], tokens: list[int], where: str) -> None:
    for message in messages:
        if message["role"] == "user":
            content = message.get("content")
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
            message["content"] = [*({"type": "image", TOKEN: token} for token in tokens), *parts]
            return
    roles = shorten([message["role"] for message in messages])
    raise DataError(f"{where}: the row has images, and no message of the user to show them in (roles: {roles})")
