"""Every form of a row has its images in the tokens that the trainer reads, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from vision_making import picture, policy_of, prompts_of

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.preferences.preferences import build_preferences, build_unpaired
from rlcore_vision.image_rows import place_images
from rlcore_vision.image_store import FIRST

IMAGE, OTHER = picture(1), picture(2)
TEXT = {"type": "text", "text": "what colour ?"}
PLACE = {"type": "image"}
SHOWN = {"type": "image", "image": IMAGE}
RED = {"role": "assistant", "content": "red"}
BLUE = {"role": "assistant", "content": "blue"}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


PLAIN = {"role": "user", "content": "what colour ?"}
MARKED = {"role": "user", "content": "<image>what colour ?"}
TALKS = [[user(PLACE, TEXT)], [PLAIN], [MARKED], [user({"type": "text", "text": "<image>what colour ?"})]]
"""Prompts that show the images of a column."""
OWN = [[user(SHOWN, TEXT)], [{**PLAIN, "images": [IMAGE]}], [user({"image": IMAGE}, TEXT)]]
OWN += [[user({"type": "input_image", "image_url": IMAGE}, TEXT)]]
"""Prompts that hold their images."""
COLUMN = {"images": [IMAGE]}
TEXTS = ["what colour ?", "<image>what colour ?"]


@pytest.fixture(scope="module", params=["llava", "qwen2_vl"])
def policy(request: pytest.FixtureRequest) -> Any:
    return policy_of(request.param)[0]


def seen(policy: Any, tokens: Any) -> list[int]:
    """Return the images in a sequence, each once."""
    found = [token for token in tokens if token >= FIRST]
    sizes = {token: policy.tokenizer.images[token].num_tokens for token in found}
    assert all(found.count(token) == size for token, size in sizes.items())
    return list(dict.fromkeys(found))


def test_every_form_of_a_prompt_shows_its_image(policy: Any) -> None:
    rows: list[Any] = [{"prompt": talk, **COLUMN} for talk in (*TALKS, *TEXTS)]
    rows += [{"prompt": talk} for talk in OWN]
    rows += [{"prompt": talk, "messages": [*TALKS[0], RED], **COLUMN} for talk in (*TALKS, *TEXTS)]
    token = policy.tokenizer.images.add(IMAGE, "")
    assert [seen(policy, prompt.tokens) for prompt in prompts_of(policy, rows)] == [[token]] * len(rows)
    chats = [
        prompt.tokens for prompt, row in zip(prompts_of(policy, rows), rows, strict=True) if row["prompt"] not in TEXTS
    ]
    assert len(set(chats)) == 1


def test_every_form_of_a_demonstration_shows_its_image(policy: Any) -> None:
    rows: list[Any] = [{"messages": [*talk, RED], **COLUMN} for talk in TALKS]
    rows += [{"messages": [*talk, RED]} for talk in OWN]
    rows += [{"prompt": "what colour ?", "messages": [*talk, RED], **COLUMN} for talk in TALKS]
    rows += [{"prompt": talk, "completion": [RED], **COLUMN} for talk in TALKS]
    rows += [{"prompt": talk, "completion": [RED], "messages": [*talk, RED], **COLUMN} for talk in TALKS]
    rows += [{"prompt": text, "completion": "red", **COLUMN} for text in TEXTS]
    rows += [{"text": text, **COLUMN} for text in TEXTS]
    rows += [{"conversations": [{"from": "human", "value": TEXTS[1]}, {"from": "gpt", "value": "red"}], "image": IMAGE}]
    rows += [{"instruction": "what colour ?", "output": "red", **COLUMN}]
    token = policy.tokenizer.images.add(IMAGE, "")
    samples = build_samples(rows, policy.tokenizer, DataConfig(), max_length=0)
    assert [seen(policy, sample.tokens) for sample in samples] == [[token]] * len(rows)


def test_both_answers_of_every_form_of_a_preference_show_its_image(policy: Any) -> None:
    pairs: list[Any] = [{"prompt": talk, "chosen": [RED], "rejected": [BLUE], **COLUMN} for talk in TALKS]
    pairs += [{"prompt": talk, "chosen": [RED], "rejected": [BLUE]} for talk in OWN]
    whole = [{"chosen": [*talk, RED], "rejected": [*talk, BLUE]} for talk in (*TALKS, *OWN)]
    pairs += [{**row, **COLUMN} for row in whole[: len(TALKS)]]
    pairs += whole[len(TALKS) :]
    pairs += [{"prompt": "what colour ?", **row, **COLUMN} for row in whole[: len(TALKS)]]
    pairs += [{"messages": row["chosen"], **row, **COLUMN} for row in whole[: len(TALKS)]]
    texts: list[Any] = [{"prompt": text, "chosen": "red", "rejected": "blue", **COLUMN} for text in TEXTS]
    texts += [{"chosen": f"{text} red", "rejected": f"{text} blue", **COLUMN} for text in TEXTS]
    token = policy.tokenizer.images.add(IMAGE, "")
    for rows in (pairs, texts):
        for build in (build_preferences, build_unpaired):
            for pair in build(rows, policy.tokenizer, DataConfig(), max_length=0):
                assert seen(policy, pair.chosen.tokens) == seen(policy, pair.rejected.tokens) == [token]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": TEXTS[1] * 2, **COLUMN}, r"\['prompt'\]: has the places of 2 images .* and the row has 1 images"),
        ({"prompt": [MARKED, RED, MARKED], **COLUMN}, "no image left for it"),
        ({"prompt": [user(PLACE, TEXT), MARKED], **COLUMN}, "no image left for it"),
        ({"prompt": [MARKED], "images": [IMAGE, OTHER]}, "the row has 2 images, and 1 of them have no part"),
        ({"prompt": "red", "images": [IMAGE], "image": IMAGE}, "has both 'images' and 'image'"),
        ({"prompt": "red", "messages": OWN[0]}, "'prompt' shows 0 images and 'messages' 1"),
        ({"prompt": [user({"type": "video", "video": "a.mp4"})]}, "part of type 'video', which is not read"),
        ({"prompt": "<image:4f0c21a9>red"}, "contains <image:4f0c21a9>, by which a run names an image"),
        ({"prompt": [{"role": "user", "content": "<image:4f0c21a9>red"}]}, "contains <image:4f0c21a9>"),
        ({"prompt_ids": [1, 2], "completion_ids": [3], **COLUMN}, r"token ids \('prompt_ids', 'completion_ids'\)"),
        ({"prompt": [{"role": "user", "content": "red"}, {**RED, "images": [IMAGE]}]}, "in a turn of the assistant"),
    ],
)
def test_a_row_whose_images_would_not_be_seen_is_refused(row: dict[str, Any], reason: str, policy: Any) -> None:
    with pytest.raises(DataError, match=reason):
        place_images(policy.tokenizer.images, row, "prompt", "prompts[0]")


def test_an_image_token_in_a_row_without_images_is_refused(policy: Any) -> None:
    text = f"{policy.tokenizer.images.processor.image_token}red"
    talk = [{"role": "user", "content": text}]
    rows: list[Any] = [text, [text, "red"], {"prompt": text}, talk, {"messages": talk}, {"text": text}]
    rows += [{"prompt": "red", "completion": text}]
    for row in rows:
        with pytest.raises(DataError, match=r"the row has 0 images|no image left for it"):
            place_images(policy.tokenizer.images, row, "prompt", "prompts[0]")


def test_a_row_that_is_read_again_shows_its_images_once(policy: Any) -> None:
    images = policy.tokenizer.images
    rows: list[Any] = [{"prompt": talk, **COLUMN} for talk in (*TALKS, *TEXTS)]
    rows += [{"prompt": talk} for talk in OWN]
    for row in rows:
        once = place_images(images, row, "prompt", "prompts[0]")
        assert place_images(images, once, "prompt", "prompts[0]") == once


def test_an_image_in_a_text_of_another_family_is_marked_as_data_sets_mark_it() -> None:
    policy, _ = policy_of("gemma3")
    rows = [{"prompt": [MARKED], **COLUMN}, {"prompt": TALKS[0], **COLUMN}, {"prompt": "<image>", "images": None}]
    marked, placed, text = prompts_of(policy, rows)
    assert marked.tokens == placed.tokens
    assert text.text == "<image>"
