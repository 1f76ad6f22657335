"""The images of a run, each named by a number beyond the vocabulary that stands for it in sequences of tokens.

A sequence has one such token at each place that a feature of the image takes. What keeps, sends, groups or pads
sequences therefore keeps their images with them, and two prompts are equal only if their images are.

Also in this file: open images from every form in which rows hold them; pixel values of images, as processors of
`transformers` return them: their memory, and those of several in one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from weakref import WeakSet

import attrs
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from rlcore.config.yaml_files import existing_path
from rlcore.errors import DataError, ModelError
from rlcore.safe_text import shorten


def num_bytes(pixels: Mapping[str, Tensor]) -> int:
    """Return the memory of the pixel values of an image."""
    return sum(array.numel() * array.element_size() for array in pixels.values())


def join(arrays: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate the arrays of several images; smaller ones are padded with zeros, as processors pad them."""
    if all(array.shape[dim + 1 :] == arrays[0].shape[dim + 1 :] for array in arrays):
        return torch.cat(list(arrays), dim)
    height, width = (max(array.shape[k] for array in arrays) for k in (-2, -1))
    pad = torch.nn.functional.pad
    return torch.cat([pad(each, (0, width - each.shape[-1], 0, height - each.shape[-2])) for each in arrays], dim)


FORMS = "an image is a path, a PIL image, bytes, a row of datasets.Image ({bytes, path}), or a data: URL"

_TIMEOUT_S = 60.0
"""Longest wait for a part of an image that is downloaded."""


def open_picture(source: object, where: str = "image", *, allow_urls: bool = False) -> Image.Image:
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


def file_stamp(source: object) -> tuple[int, int] | None:
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


FIRST = 2**30
"""The tokens of images are numbers from FIRST to 2 FIRST - 1, which fit the 32 bits in which ranks send tokens."""
_MARK = re.compile(r"<image:([0-9a-f]{8})>")
_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "text_replacement_offsets")


@attrs.frozen(eq=False)
class Picture:
    """An image of the run.

    Attributes:
        source: what the row held.
        text: the text that the processor writes in its place, before it is tokenised.
        num_tokens: the number of tokens in that text that image features replace.
        stamp: size and time of the file when it was read; None if the source is no file.
    """

    source: Any
    text: str
    num_tokens: int
    stamp: tuple[int, int] | None = None


PROBE = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
"""A small image on which models are tried; it is none of a row's."""
STORES: WeakSet[ImageStore] = WeakSet()
"""The images of the runs of this process, by which observers find those that a prompt names."""


class ImageStore:
    """The images of a run by their tokens, and their pixel values.

    Args:
        processor: the model's processor.
        image_token_id: the token that image features replace.
        allow_urls: download images that rows name by URL.
        cache_bytes: memory for pixel values.
    """

    def __init__(
        self, processor: Any, image_token_id: int, *, allow_urls: bool = False, cache_bytes: float = 1e9
    ) -> None:
        self.processor, self.image_token_id, self.allow_urls = processor, image_token_id, allow_urls
        self.image_token = str(processor.tokenizer.convert_ids_to_tokens(image_token_id))
        self._pictures: dict[int, Picture] = {}
        self._digests: dict[int, bytes] = {}
        self._known: dict[str, tuple[tuple[int, int] | None, int]] = {}
        self._pixels: OrderedDict[int, dict[str, Tensor]] = OrderedDict()
        self._room = self._free = cache_bytes
        STORES.add(self)

    def __deepcopy__(self, memo: dict[int, object]) -> ImageStore:
        """Return the store itself: copies of a model see the same images."""
        return self

    def __len__(self) -> int:
        return len(self._pictures)

    def __contains__(self, token: int) -> bool:
        return token in self._pictures

    def __getitem__(self, token: int) -> Picture:
        """Return the image that a token stands for.

        Raises:
            ModelError: this process has read no such image.
        """
        if token not in self._pictures:
            raise ModelError(
                f"token {token} stands for an image that this process has not read; sequences with images can be "
                "scored and sampled only in a process that has read their rows"
            )
        return self._pictures[token]

    def add(self, source: object, where: str) -> int:
        """Return the token of an image, which follows from its pixels and, where two would share one, their order.

        Raises:
            DataError: the source is no image that can be read.
        """
        key = str(source) if isinstance(source, str | Path) else ""  # other sources may change in place
        stamp = file_stamp(source)
        if key in self._known and self._known[key][0] == stamp:
            return self._known[key][1]
        token = self._insert(open_picture(source, where, allow_urls=self.allow_urls), source, stamp, where)
        if key:
            self._known[key] = (stamp, token)
        return token

    def adopt(self, other: ImageStore, token: int, where: str) -> int:
        """Return this store's token of an image of another store: of the pixels that the other one has read.

        The image's source is opened only if this store has no image with these pixels.

        Raises:
            DataError: the source cannot be opened, or has other pixels than when the other store read it.
        """
        picture, digest = other[token], other._digests[token]
        known = self._pictures.get(own := self._token_of(digest))
        if known is not None and file_stamp(known.source) in (known.stamp, None):
            return own
        stamp = file_stamp(picture.source)
        image = open_picture(picture.source, where, allow_urls=self.allow_urls)
        _require_same(image, digest, picture.source)
        return self._insert(image, picture.source, stamp, where)

    def _token_of(self, digest: bytes) -> int:
        """Return the token of the image with these pixels, or the first one that is free for it."""
        token = FIRST + int.from_bytes(digest[:4], "big") % FIRST
        while self._digests.get(token, digest) != digest:
            token = FIRST + (token + 1) % FIRST
        return token

    def _insert(self, image: Image.Image, source: object, stamp: tuple[int, int] | None, where: str) -> int:
        digest = _digest(image)
        token = self._token_of(digest)
        known = self._pictures.get(token)
        if known is None:
            text, pixels = self._process(image, where)
            self._digests[token] = digest
            self._pictures[token] = Picture(source, text, text.count(self.image_token), stamp)
            self._keep(token, pixels)
        elif file_stamp(known.source) != known.stamp:  # the file from which it was read first is another one now
            self._pictures[token] = attrs.evolve(known, source=source, stamp=stamp)
        return token

    def mark(self, token: int) -> str:
        """Return the text that names an image in rendered prompts, such as `<image:4f0c21a9>`."""
        return f"<image:{token:08x}>"

    def expand(self, text: str) -> tuple[str, list[int]]:
        """Return a text with the processor's text in place of each image's name, and the tokens of these images.

        Raises:
            DataError: the text contains the processor's image token beside them.
        """
        found: list[int] = []

        def replace(match: re.Match[str]) -> str:
            token = int(match[1], 16)
            if token not in self._pictures:
                return match[0]
            found.append(token)
            return self._pictures[token].text

        if _MARK.search(text) is None:
            return text, found
        expanded = _MARK.sub(replace, text)
        if expanded.count(self.image_token) != sum(self[token].num_tokens for token in found):
            raise DataError(
                f"a text contains {self.image_token!r}, which stands for an image that the row does not have"
            )
        return expanded, found

    def name(self, ids: Sequence[int], pictures: Sequence[int]) -> list[int]:
        """Return token ids with each image's own token in place of the processor's image token."""
        places = iter([token for token in pictures for _ in range(self[token].num_tokens)])
        return [next(places) if each == self.image_token_id and pictures else each for each in ids]

    def pixels(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """Return what the model's `get_image_features` takes for several images, in their order.

        Raises:
            DataError: the file of an image has other pixels than when its row was read.
        """
        each = []
        for token in tokens:
            picture = self[token]
            stamp = file_stamp(picture.source)
            is_same = stamp in (picture.stamp, None)  # pixels that are kept outlive a file that is removed
            if token in self._pixels and is_same:
                self._pixels.move_to_end(token)
                each.append(self._pixels[token])
                continue
            image = self.open(token)
            self._pictures[token] = attrs.evolve(picture, stamp=stamp)
            each.append(self._pixels.get(token) or self._keep(token, self._process(image, "image")[1]))
        dim = 1 if each[0]["pixel_values"].dim() == 5 else 0  # [1, parts, channels, height, width]
        return {name: join([inputs[name] for inputs in each], dim) for name in each[0]}

    def open(self, token: int) -> Image.Image:
        """Return an image, opened anew.

        Raises:
            DataError: it cannot be opened any more, or has other pixels than when its row was read.
        """
        source = self[token].source
        image = open_picture(source, "image", allow_urls=self.allow_urls)
        _require_same(image, self._digests[token], source)
        return image

    def probe(self) -> dict[str, Tensor]:
        """Return the pixel values of `PROBE`."""
        return self._process(PROBE, "a small image")[1]

    def _process(self, image: Image.Image, where: str) -> tuple[str, dict[str, Tensor]]:
        token = str(self.processor.image_token)
        try:
            made: Mapping[str, Any] = self.processor(
                text=[token], images=[[image]], return_tensors="pt", add_special_tokens=False,
                return_text_replacement_offsets=True,
            )  # fmt: skip
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            raise DataError(f"{where}: {type(self.processor).__name__} refuses an image: {error}") from error
        (offsets,) = made["text_replacement_offsets"]
        return offsets[0]["replacement"], {name: made[name] for name in made if name not in _OF_TEXT}

    def _keep(self, token: int, pixels: dict[str, Tensor]) -> dict[str, Tensor]:
        size = num_bytes(pixels)
        if size <= self._room:
            self._pixels[token] = pixels
            self._free -= size
            while self._free < 0:
                self._free += num_bytes(self._pixels.popitem(last=False)[1])
        return pixels


def _digest(image: Image.Image) -> bytes:
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()


def _require_same(image: Image.Image, digest: bytes, source: object) -> None:
    if _digest(image) != digest:
        name = shorten(str(source), 200) if isinstance(source, str | Path) else repr(source)[:80]
        raise DataError(
            f"image {name}: has changed since the run read it; keep the files of images as they are during a run"
        )
