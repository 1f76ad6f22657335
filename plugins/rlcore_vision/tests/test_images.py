"""Rows with images: the forms of an image, its token, and what is refused."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from vision_making import picture, policy_of, prompts_of

from rlcore.errors import DataError, ModelError
from rlcore.settings import DataConfig
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_vision.image_store import FIRST, ImageStore, open_picture
from rlcore_vision.model import build_vision_language
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.tiny_families import FAMILIES

TEXT = {"type": "text", "text": "what colour ?"}


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def store_of(**options: Any) -> ImageStore:
    config, processor = FAMILIES["llava"]()
    return ImageStore(processor, config.image_token_id, **options)


@pytest.fixture(scope="module")
def policy() -> Any:
    return policy_of("llava")[0]


def test_every_form_of_an_image_is_the_same_image(tmp_path: Path, policy: Any) -> None:
    image = picture(1)
    path = tmp_path / "a.png"
    path.write_bytes(png(image))
    url = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    forms = [
        image,
        str(path),
        path,
        png(image),
        {"bytes": png(image), "path": None},
        {"bytes": None, "path": str(path)},
        url,
    ]
    rows: list[Any] = [{"prompt": "red", "images": [form]} for form in forms]
    rows += [{"prompt": "red", "image": image}, {"prompt": "<image>red", "images": [image]}]
    assert len({prompt.tokens for prompt in prompts_of(policy, rows)}) == 1
    parts = [
        {"type": "image", "image": image},
        {"type": "image", "path": str(path)},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    talks = [[{"role": "user", "content": [part, TEXT]}] for part in parts]
    with_column = [{"role": "user", "content": [{"type": "image"}, TEXT]}]
    plain = [{"role": "user", "content": "what colour ?"}]
    rows = [*({"prompt": talk} for talk in talks), *talks]
    rows += [{"prompt": talk, "images": [image]} for talk in (with_column, plain)]
    assert len({prompt.tokens for prompt in prompts_of(policy, rows)}) == 1


def test_rows_of_datasets_with_the_feature_image_are_read(policy: Any) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"prompt": datasets.Value("string"), "images": datasets.List(datasets.Image())})
    source = datasets.Dataset.from_dict({"prompt": ["red"], "images": [[picture(1)]]}, features=features)
    (read,), (given,) = prompts_of(policy, source), prompts_of(policy, [{"prompt": "red", "images": [picture(1)]}])
    assert read.tokens == given.tokens


def test_a_token_follows_from_the_pixels_and_fits_32_bits() -> None:
    first, second = store_of(), store_of()
    tokens = [first.add(picture(k), "a") for k in range(5)]
    assert [second.add(picture(k), "b") for k in reversed(range(5))] == tokens[::-1]
    assert len(set(tokens)) == 5
    assert all(FIRST <= token < 2**31 for token in tokens)


def test_images_that_would_share_a_token_get_two(monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    class Short:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def digest(self) -> bytes:
            return b"\0\0\0\0" + hashlib.md5(self.data).digest()

    monkeypatch.setattr("rlcore_vision.image_store.hashlib", type("Hash", (), {"sha256": Short}))
    store = store_of()
    assert [store.add(picture(k), "a") for k in (1, 2, 1)] == [FIRST, FIRST + 1, FIRST]


def test_pixels_that_do_not_fit_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    picture(1).save(path)
    small, large = store_of(cache_bytes=0), store_of()
    token = small.add(str(path), "a")
    assert large.add(str(path), "a") == token
    torch.testing.assert_close(small.pixels([token])["pixel_values"], large.pixels([token])["pixel_values"])
    picture(2).save(path)
    with pytest.raises(DataError, match="has changed since the run read it"):
        small.pixels([token])


@pytest.mark.parametrize("cache_bytes", [0, 1e9])
def test_a_file_that_is_overwritten_is_another_image_and_an_error_for_rows_that_were_read(
    cache_bytes: float, tmp_path: Path
) -> None:
    path, store = tmp_path / "a.png", store_of(cache_bytes=cache_bytes)
    forms: list[Any] = [path, str(path), {"bytes": None, "path": str(path)}]
    picture(1).save(path)
    before = [store.add(form, "a") for form in forms]
    os.utime(path, ns=(0, 10**9))
    assert store.pixels(before[:1])  # touched, with the same pixels
    picture(2).save(path)
    with pytest.raises(DataError, match="has changed since the run read it"):
        store.pixels(before[:1])
    after = [store.add(form, "a") for form in forms]
    assert len({*before}) == len({*after}) == 1
    assert after[0] == store_of().add(picture(2), "a") != before[0]
    assert store.pixels(after[:1])


def test_an_image_that_is_changed_in_place_is_another_image() -> None:
    image, store = picture(1), store_of()
    before = store.add(image, "a")
    image.paste(picture(2))
    assert store.add(image, "a") == store_of().add(picture(2), "a") != before


def test_pixels_in_memory_outlive_their_file(tmp_path: Path) -> None:
    path, store = tmp_path / "a.png", store_of()
    picture(1).save(path)
    token = store.add(path, "a")
    path.unlink()
    torch.testing.assert_close(store.pixels([token]), store_of_picture(1))


def store_of_picture(seed: int) -> dict[str, torch.Tensor]:
    store = store_of()
    return store.pixels([store.add(picture(seed), "a")])


def test_a_photo_is_turned_upright() -> None:
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    file = io.BytesIO()
    image.save(file, "TIFF", exif=exif)
    assert open_picture(file.getvalue()).size == (1, 2)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"prompt": "red", "images": ["nowhere.png"]},
            r"prompts\[0\]\['images'\]: image 'nowhere.png': there is no such file",
        ),
        ({"prompt": "red", "images": [b"text"]}, "image 4 bytes: is not in a format of images that PIL knows"),
        ({"prompt": "red", "images": [png(picture(1))[:-40]]}, "cannot be read as an image: "),
        ({"prompt": "red", "images": [3]}, r"3 \(int\) is no image"),
        ({"prompt": "red", "images": ["https://example.org/a.png"]}, "model.allow_urls=true"),
        ({"prompt": "red", "images": ["data:image/png,abc"]}, "must be in base64"),
        ({"prompt": "<image>red<image>", "images": [picture(1)]}, "places of 2 images .* and the row has 1 images"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}, TEXT]}]}, "no image left"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}, TEXT]}], "images": [picture(1), picture(2)]},
            "has 2 images, and 1 of them",
        ),
        ({"prompt": [{"role": "system", "content": "red"}], "images": [picture(1)]}, "no message of the user"),
    ],
)
def test_an_image_that_cannot_be_used_names_its_row(row: dict[str, Any], reason: str, policy: Any) -> None:
    with pytest.raises(DataError, match=reason):
        prompts_of(policy, [row])


def test_an_image_token_without_an_image_is_refused(policy: Any) -> None:
    talk = [{"role": "user", "content": [{"type": "image", "image": picture(1)}, {"type": "text", "text": "<image>"}]}]
    with pytest.raises(DataError, match="no image left for it"):
        prompts_of(policy, [{"prompt": talk}])


def test_an_image_in_a_turn_of_the_assistant_is_refused(policy: Any) -> None:
    answer = {"role": "assistant", "content": [{"type": "image", "image": picture(1)}, {"type": "text", "text": "red"}]}
    rows = [{"messages": [{"role": "user", "content": "red"}, answer]}]
    with pytest.raises(DataError, match="in a turn of the assistant"):
        build_samples(rows, policy.tokenizer, DataConfig(), max_length=0)


def test_an_image_of_another_process_is_refused() -> None:
    with pytest.raises(ModelError, match="has not read"):
        store_of().pixels([FIRST])


def test_an_image_in_a_message_of_no_row_is_refused(policy: Any) -> None:
    talk = [{"role": "user", "content": [{"type": "image", "image": picture(1)}, TEXT]}]
    with pytest.raises(DataError, match="a message shows an image that no row has"):
        policy.tokenizer.apply_chat_template(talk, tokenize=False)


def test_a_model_of_texts_refuses_messages_that_show_images() -> None:
    _, processor = FAMILIES["llava"]()
    tokenizer = processor.tokenizer
    tokenizer.chat_template = processor.chat_template
    talk = [{"role": "user", "content": [{"type": "image"}, TEXT]}]
    answer = {"role": "assistant", "content": "red"}
    for row, named in (
        (talk, r"a message \('user'\) shows an image"),
        ({"prompt": talk, "images": [picture(1)]}, "images"),
    ):
        with pytest.raises(DataError, match=rf"prompts\[0\]: .*{named}"):
            build_prompts([row], tokenizer, DataConfig(), max_length=0)
    with pytest.raises(DataError, match=r"model\.architecture=vision_language"):
        build_samples([{"messages": [*talk, answer]}], tokenizer, DataConfig(), max_length=0)


@pytest.mark.parametrize(
    "message",
    [
        *({"content": [{"type": kind}, TEXT]} for kind in ("image", "image_url", "input_image")),
        *({"content": [{key: "a.png"}, TEXT]} for key in ("image", "image_url")),
        *({"content": "what colour ?", key: "a.png"} for key in ("image", "images")),
    ],
    ids=str,
)
def test_a_model_of_texts_refuses_images_of_every_form_in_columns_that_it_reads_only(message: dict[str, Any]) -> None:
    _, processor = FAMILIES["llava"]()
    tokenizer = processor.tokenizer
    tokenizer.chat_template = processor.chat_template
    seen = [{"role": "user", **message}]
    plain, answer = (
        [{"role": "user", "content": [TEXT], "images": [], "image": None}],
        [{"role": "assistant", "content": "red"}],
    )
    with pytest.raises(DataError, match=r"prompts\[0\]: a message \('user'\) shows an image"):
        build_prompts([{"prompt": seen}], tokenizer, DataConfig(), max_length=0)
    for row in ({"messages": [*seen, *answer]}, {"prompt": seen, "completion": answer}):
        with pytest.raises(DataError, match=r"samples\[0\]: a message \('user'\) shows an image"):
            build_samples([row], tokenizer, DataConfig(), max_length=0)
    (expected,) = build_prompts([{"prompt": plain}], tokenizer, DataConfig(), max_length=0)
    (found,) = build_prompts(
        [{"prompt": plain, "messages": seen, "notes": seen}], tokenizer, DataConfig(), max_length=0
    )
    assert found.tokens == expected.tokens
    rows = [{"prompt": plain, "completion": answer, "messages": seen, "notes": seen}]
    assert len(build_samples(rows, tokenizer, DataConfig(), max_length=0)) == 1


def test_a_tokenizer_without_an_image_processor_reads_texts_only() -> None:
    config, processor = FAMILIES["llava"]()
    blind = build_vision_language(config, VisionLanguageConfig(), tokenizer=processor.tokenizer)
    assert [len(prompt.tokens) for prompt in prompts_of(blind, ["red green"])] == [2]
    talk = [{"role": "user", "content": [{"type": "image", "image": picture(1)}, TEXT]}]
    for row in ({"prompt": "red", "images": [picture(1)]}, {"prompt": talk}, talk):
        with pytest.raises(DataError, match="the model's processor"):
            prompts_of(blind, [row])
