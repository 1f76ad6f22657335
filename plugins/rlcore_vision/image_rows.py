"""Put the images of a row where its texts and conversations show them.

Also in this file: the reward `vision_reward_model` where rlcore-reward is not installed: an error that names the
package; light.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlcore.config import config, option
from rlcore.errors import ConfigError, DataError
from rlcore.safe_text import shorten
from rlcore.types import is_conversation
from rlcore_transformers.data.messages import IMAGE_COLUMNS, is_image

if TYPE_CHECKING:
    from rlcore_vision.image_store import ImageStore

TOKEN = "image_token"  # noqa: S105  no password
"""Key of a part of a message: the token of its image in the run."""
PLACE = "<image>"
"""How data sets mark the place of an image in a text, whatever token the processor has for it."""
CONTINUATIONS = ("completion", "output", "response", "completions")
"""Columns that continue a prompt."""
PREFERENCES = ("chosen", "rejected")
"""Columns that continue a prompt, or are whole conversations or texts that begin alike."""
MARK = re.compile(r"<image:([4-7][0-9a-f]{7})>")
"""The text that names an image of the run (`ImageStore.mark`)."""
_SOURCES = ("image", "path", "url", "bytes", "base64", "image_url")
_OTHER_MEDIA = ("video", "video_url", "audio", "audio_url", "input_audio", "file", "input_file")


def place_images(images: ImageStore, row: object, column: str, where: str) -> object:
    """Return a row in which each image has a token, and a place in a text or a conversation.

    The images of the column `images` (or `image`) take, in their order, the places of the parts {type: image} without a
    source, or of the processor's image token in a text, or of `<image>`. Without such places they stand before the
    prompt's text, or before the first message of the user. Which of the columns is the prompt depends on the trainer:
    each of those that may be it shows the same images.

    Args:
        images: the images of the run, to which those of the row are added.
        row: a row.
        column: the column of the prompt.
        where: the row, for errors.

    Raises:
        DataError: an image cannot be read, there are more places than images, or fewer, or columns that may be the
            prompt show different images.
    """
    if not isinstance(row, Mapping):
        if isinstance(row, list | tuple) and not is_conversation(row):  # texts in turns
            return [_place(images, each, [], f"{where}[{k}]") for k, each in enumerate(row)]
        return _place(images, row, [], where)
    given = _tokens(images, row, where)
    prompts, answers = _parts(row, column)
    if given and not prompts and (ids := [key for key in row if str(key).endswith("_ids")]):
        raise DataError(
            f"{where}: has images, and its prompt is token ids ({', '.join(map(repr, ids))}), which show none: give "
            "the prompt as text or messages, or leave the images out"
        )
    made = dict(row)
    for key in prompts:
        made[key] = _place(images, row[key], given, f"{where}[{key!r}]")
    for key in answers:
        made[key] = _place(images, row[key], [], f"{where}[{key!r}]")
    _check_alike({key: _shown(made[key]) for key in prompts}, where)
    return made


def _parts(row: Mapping[str, object], column: str) -> tuple[list[str], list[str]]:
    """Return the columns that may hold the prompt, and those that only continue it."""
    found = {key: value for key, value in row.items() if isinstance(value, str) or is_conversation(value)}
    prompts = [key for key in dict.fromkeys((column, "messages")) if key in found]
    if isinstance(found.get("messages"), str) and column != "messages":
        prompts.remove("messages")
    both = [key for key in PREFERENCES if key in found and key != column]
    continues = column in found and (
        not isinstance(found[column], str) or all(isinstance(found[key], str) for key in both)
    )
    prompts += [] if continues else both
    if not prompts and "text" in found:
        prompts = ["text"]
    return prompts, [key for key in (*PREFERENCES, *CONTINUATIONS) if key in found and key not in prompts]


def _check_alike(shown: Mapping[str, Counter[int]], where: str) -> None:
    """Refuse a row whose possible prompts show different images, since the trainer decides which of them is read."""
    (first, expected), *others = shown.items() or [("", Counter())]
    for key, found in others:
        if found != expected:
            raise DataError(
                f"{where}: {first!r} shows {expected.total()} images and {key!r} {found.total()}, not the same ones, "
                "and which of the two is read depends on the trainer: leave one of them out, or put the row's images "
                "into a column 'images', which both show"
            )


def _tokens(images: ImageStore, row: Mapping[str, object], where: str) -> list[int]:
    columns = [column for column in IMAGE_COLUMNS if row.get(column) is not None]
    if len(columns) > 1:
        raise DataError(f"{where}: has both 'images' and 'image'; leave one of them out")
    for column in columns:
        value = row[column]
        each = value if isinstance(value, list | tuple) else [value]
        return [images.add(source, f"{where}[{column!r}]") for source in each]
    return []


def _shown(value: Any) -> Counter[int]:
    """Return the images that a text or a conversation shows, each with the number of times."""
    if isinstance(value, str):
        return Counter(int(digits, 16) for digits in MARK.findall(value))
    contents = [message.get("content") for message in value]
    return Counter(part[TOKEN] for parts in contents if isinstance(parts, list) for part in parts if is_image(part))


def _place(images: ImageStore, value: object, given: list[int], where: str) -> Any:
    if isinstance(value, str):
        return _write(images, value, given, where)
    return _converse(images, value, given, where) if is_conversation(value) else value


def _split(images: ImageStore, text: str, *, has_images: bool) -> list[str]:
    """Return the pieces of a text between the places of images."""
    token = str(images.processor.image_token)
    return text.split(token if token in text or not has_images else PLACE)


def _write(images: ImageStore, text: str, given: list[int], where: str) -> str:
    names = [images.mark(token) for token in given]
    if (found := MARK.findall(text)) and [f"<image:{digits}>" for digits in found] == names:
        return text  # a row that is read again, with the first messages of its environment
    _refuse_names(text, where)
    pieces = _split(images, text, has_images=bool(given))
    if len(pieces) == 1:
        return "".join(names) + text
    if len(pieces) - 1 != len(names):
        raise DataError(
            f"{where}: has the places of {len(pieces) - 1} images ({images.processor.image_token!r}), and the row has "
            f"{len(names)} images"
        )
    return "".join(piece + name for piece, name in zip(pieces, [*names, ""], strict=True))


def _refuse_names(text: str, where: str) -> None:
    if (name := MARK.search(text)) is not None:
        raise DataError(
            f"{where}: contains {name[0]}, by which a run names an image in its logs: write {PLACE} in its place, and "
            "give the image in the column 'images'"
        )


def _converse(images: ImageStore, messages: Any, given: list[int], where: str) -> list[dict[str, object]]:
    rest = list(given)
    made: list[dict[str, object]] = []
    has_places = False
    for k, message in enumerate(messages):
        own = _tokens(images, message, f"{where}[{k}]")
        parts: list[object] = [{"type": "image", TOKEN: token} for token in own]
        content = message.get("content")
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in texts if isinstance(texts, list | tuple) else ():
            marks = bool(given) and message["role"] != "assistant"
            placed, is_place = _part(images, part, rest, f"{where}[{k}]", has_images=marks)
            has_places = has_places or is_place
            parts += placed
        if message["role"] == "assistant" and any(map(is_image, parts)):
            raise DataError(f"{where}[{k}]: has an image in a turn of the assistant, which writes text only")
        changed = {"content": parts} if any(map(is_image, parts)) else {}
        made.append({**{key: value for key, value in message.items() if key not in IMAGE_COLUMNS}, **changed})
    if rest and has_places:
        raise DataError(
            f"{where}: the row has {len(given)} images, and {len(rest)} of them have no part {{type: image}} and no "
            "place in a text"
        )
    if rest:
        _put_first(made, rest, where)
    return made


def _part(images: ImageStore, part: Any, rest: list[int], where: str, *, has_images: bool) -> tuple[list[object], bool]:
    """Return the parts that a part of a message becomes, and whether it has the place of an image of the row."""
    if is_image(part):
        source = next((part[key] for key in _SOURCES if part.get(key) is not None), None)
        if source is None and not rest and TOKEN in part:  # a row that is read again
            return [part], False
        return [{**part, "type": "image", TOKEN: _token(images, source, rest, where)}], source is None
    if isinstance(part, Mapping) and part.get("type") in _OTHER_MEDIA:
        raise DataError(f"{where}: has a part of type {part['type']!r}, which is not read; images and texts are")
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        return [part], False
    _refuse_names(text, where)
    first, *others = _split(images, text, has_images=has_images)
    if not others:
        return [part], False
    placed: list[object] = [{"type": "text", "text": first}] if first else []
    for piece in others:
        placed.append({"type": "image", TOKEN: _token(images, None, rest, where)})
        placed += [{"type": "text", "text": piece}] if piece else []
    return placed, True


def _token(images: ImageStore, source: object, rest: list[int], where: str) -> int:
    if source is None:
        if not rest:
            raise DataError(
                f"{where}: has a part {{type: image}} without a source, or {images.processor.image_token!r}, and the "
                "row has no image left for it"
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


OPTIONS = (
    "path", "tokenizer", "batch_size", "dtype", "device", "max_length", "trust_remote_code", "revision", "allow_urls",
    "image_cache_gb",
)  # fmt: skip
"""Names of the reward's options, which are accepted here so that the error is about the package."""


NEEDS = (
    "vision_reward_model needs the package rlcore-reward, which is not installed: pip install 'rlcore-vision[reward]' "
    "(in a clone of rlcore: pip install ./plugins/rlcore_transformers ./plugins/rlcore_reward)"
)


def _refuse(_: object) -> None:
    raise ConfigError(NEEDS)


def _make_options() -> object:
    defaults = {name: option(None, "an option of the reward, whose package is not installed") for name in OPTIONS}
    others = {"__annotations__": dict.fromkeys(OPTIONS, Any), "__module__": __name__, "__attrs_post_init__": _refuse}
    return config(type("MissingOptions", (), {**defaults, **others, "__doc__": "Options that are never read."}))


MissingOptions: Any = _make_options()
"""Options that raise a `ConfigError` when they are set, before the run loads its model."""


class MissingReward:
    """A reward that cannot be built, since its options cannot."""

    def __init__(self, config: object) -> None:
        _refuse(config)

    def __call__(self, outputs: list[str]) -> list[float]:
        """Return nothing; there is no object with this method."""
        del outputs
        raise ConfigError(NEEDS)
