"""Which parts of a message are images or other media: models that see read images, and all else is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

IMAGE_TYPES = ("image", "image_url", "input_image")
"""Types of the parts of a message that show an image: of `transformers`, of chat completions and of responses."""
IMAGE_SOURCES = ("image", "image_url")
"""Keys that make a part without a type an image."""
IMAGE_COLUMNS = ("images", "image")
"""Keys under which a row or a message holds its images."""

MEDIA_COLUMNS = (*IMAGE_COLUMNS, "videos", "video", "audios", "audio")
"""Keys under which a row or a message holds images, videos or sounds."""
MEDIA_TYPES = (
    *IMAGE_TYPES, "video", "video_url", "input_video", "audio", "audio_url", "input_audio", "file", "input_file",
)  # fmt: skip
"""Types of the parts of a message that are no texts."""


def is_image(part: Any) -> bool:
    """Return whether a part of a message's content is an image."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind in IMAGE_TYPES or (kind is None and any(part.get(key) is not None for key in IMAGE_SOURCES))


def holds_images(row: Mapping[str, Any]) -> bool:
    """Return whether a row or a message has images in a column of its own."""
    return any(_is_there(row.get(name)) for name in IMAGE_COLUMNS)


def media_column(row: Mapping[str, Any], columns: Sequence[str] = MEDIA_COLUMNS) -> str | None:
    """Return the first of `columns` in which a row or a message has images, videos or sounds, or None."""
    return next((name for name in columns if _is_there(row.get(name))), None)


def media_part(message: Mapping[str, Any]) -> str | None:
    """Return the type of the first part of a message's content that is no text but an image, a video or a sound."""
    content = message.get("content")
    for part in content if isinstance(content, list | tuple) else ():
        if is_image(part) or (isinstance(part, Mapping) and part.get("type") in MEDIA_TYPES):
            return str(part.get("type") or "image")
    return None


def _is_there(value: Any) -> bool:
    if isinstance(value, float):  # NaN, an empty cell of a DataFrame
        return not math.isnan(value)
    return value is not None and not (isinstance(value, str | list | tuple) and not value)


def shows_image(message: Mapping[str, Any]) -> bool:
    """Return whether a message shows an image, in a part of its content or in a column of its own."""
    content = message.get("content")
    return holds_images(message) or (isinstance(content, list | tuple) and any(map(is_image, content)))
