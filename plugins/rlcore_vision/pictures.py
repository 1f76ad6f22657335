"""Open images from every form in which rows hold them."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from PIL import Image, ImageOps, UnidentifiedImageError

from rlcore.config.paths import existing_path
from rlcore.errors import DataError
from rlcore.safe_text import shorten

FORMS = "an image is a path, a PIL image, bytes, a row of datasets.Image ({bytes, path}), or a data: URL"

_TIMEOUT_S = 60.0
"""Longest wait for a part of an image that is downloaded."""


def open_picture(source: Any, where: str = "image", *, allow_urls: bool = False) -> Image.Image:
    """Return an image in RGB, turned upright if its file says how it was taken.

    Args:
        source: a path, a PIL image, bytes of a file, a mapping {bytes, path} as `datasets` stores images, or a data:
            URL; an http or https URL if `allow_urls`.
        where: the row, for errors.
        allow_urls: download images.

    Raises:
        DataError: the source has another form, does not exist, is no image, or is a URL and these are not allowed.
    """
    if isinstance(source, Image.Image):
        return source.convert("RGB")
    if isinstance(source, Mapping) and (source.get("bytes") is not None or source.get("path") is not None):
        inner = source["bytes"] if source.get("bytes") is not None else source["path"]
        return open_picture(inner, where, allow_urls=allow_urls)
    if isinstance(source, bytes | bytearray):
        return _decode(io.BytesIO(source), f"{len(source)} bytes", where)
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return _download(source, where, allowed=allow_urls)
    if isinstance(source, str) and source.startswith("data:"):
        return _decode(io.BytesIO(_content(source, where)), shorten(source, 40), where)
    if isinstance(source, str | Path):
        path = existing_path(str(source))
        if path is None or not path.is_file():
            raise DataError(f"{where}: image {shorten(str(source), 200)}: there is no such file under {Path.cwd()}")
        return _decode(path, str(path), where)
    raise DataError(f"{where}: {shorten(source, 60)} ({type(source).__name__}) is no image; {FORMS}")


def file_stamp(source: Any) -> tuple[int, int] | None:
    """Return the size and the time of change, in ns, of an image's file; None if it has none, or it does not exist."""
    if isinstance(source, Mapping) and source.get("bytes") is None:
        source = source.get("path")
    if not isinstance(source, str | Path) or str(source).startswith(("http://", "https://", "data:")):
        return None
    try:
        found = (existing_path(str(source)) or Path(source)).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _decode(file: Any, name: str, where: str) -> Image.Image:
    try:
        with Image.open(file) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except UnidentifiedImageError as error:  # whose text names an object
        raise DataError(f"{where}: image {name}: is not in a format of images that PIL knows") from error
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: image {name}: cannot be read as an image: {error}") from error


def _content(url: str, where: str) -> bytes:
    header, _, content = url.partition(",")
    if not header.endswith(";base64"):
        raise DataError(f"{where}: {shorten(url, 40)}: a data: URL of an image must be in base64")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise DataError(f"{where}: {shorten(url, 40)}: is no base64 ({error})") from error


def _download(url: str, where: str, *, allowed: bool) -> Image.Image:
    if not allowed:
        raise DataError(
            f"{where}: image {shorten(url, 200)}: is a URL, and a run downloads none by itself: set "
            "model.allow_urls=true, or download the images and give their paths"
        )
    request = Request(url, headers={"User-Agent": "rlcore-vision"})  # noqa: S310  http or https
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            content = response.read()
    except (OSError, HTTPException, ValueError) as error:
        raise DataError(f"{where}: image {shorten(url, 200)}: cannot be downloaded: {error}") from error
    return _decode(io.BytesIO(content), shorten(url, 200), where)
