"""Which parts of a message are images: models that see read them, and models of texts refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IMAGE_TYPES = ("image", "image_url", "input_image")
"""Types of the parts of a message that show an image: of `transformers`, of chat completions and of responses."""
IMAGE_SOURCES = ("image", "image_url")
"""Keys that make a part without a type an image."""
IMAGE_COLUMNS = ("images", "image")
"""Keys under which a row or a message holds its images."""


def is_image(part: Any) -> bool:
    """Return whether a part of a message's content is an image."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind in IMAGE_TYPES or (kind is None and any(part.get(key) is not None for key in IMAGE_SOURCES))


def holds_images(row: Mapping[str, Any]) -> bool:
    """Return whether a row or a message has images in a column of its own."""
    values = [row.get(name) for name in IMAGE_COLUMNS]
    return any(value is not None and not (isinstance(value, list | tuple) and not value) for value in values)


def shows_image(message: Mapping[str, Any]) -> bool:
    """Return whether a message shows an image, in a part of its content or in a column of its own."""
    content = message.get("content")
    return holds_images(message) or (isinstance(content, list | tuple) and any(map(is_image, content)))
