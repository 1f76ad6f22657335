"""How a model reads sequences with the tokens of images: their features take the place of embeddings.

Also in this file: whether a model reads images here as it does by itself; one that does not is refused; whether a
model that is compared with the policy, such as a teacher, reads images with the same settings; inputs and decoders of
models that see: batches are padded, and positions after an image are the model's own.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import DataError, ModelError
from rlcore.protocols import Decoder, DecodeStep
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder, ReadHeads
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.activations import probing, require_same
from rlcore_vision.image_store import FIRST, PROBE, ImageStore
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.tokenizer import load_processor

HOOK = "images_read_by_rlcore"


class ReadImages:
    """A hook before a model's forward pass that turns the tokens of images into image features.

    The features of an image are computed once in each pass, however many rows show it. Passes without images are left
    as they are, unless several processes train the model: since these need a gradient of every parameter, the features
    of a small image are added there with a factor of 0.
    """

    def __init__(self, images: ImageStore) -> None:
        self.images = images
        self.is_alone = not dist.is_initialized() or dist.get_world_size() == 1

    def __deepcopy__(self, memo: dict[int, object]) -> ReadImages:
        """Return the hook itself: it keeps no state of a model."""
        return self

    def __call__(
        self, model: PreTrainedModel, args: object, inputs: dict[str, Any]
    ) -> tuple[Any, dict[str, object]] | None:
        """Return the model's inputs with `inputs_embeds` in place of `input_ids`; None to leave them as they are."""
        tokens = inputs.get("input_ids")
        if not isinstance(tokens, Tensor):
            return None
        seen = tokens >= FIRST
        if not (has_images := bool(seen.any())) and (self.is_alone or not torch.is_grad_enabled()):
            return None
        changed = {name: value for name, value in inputs.items() if name != "input_ids"}
        shown = split_images(tokens, seen, self.images)
        plain = tokens.masked_fill(seen, 0)
        embedded = model.get_input_embeddings()(plain)
        if has_images:
            changed["inputs_embeds"] = embedded.masked_scatter(seen[..., None], self._features(model, shown, embedded))
        else:
            features = torch.cat(list(self._encode(model, self.images.probe(), embedded)))
            changed["inputs_embeds"] = embedded + 0 * features.sum().to(embedded.dtype)
        if (positions := self.positions(model, tokens, inputs.get("attention_mask"))) is not None:
            changed["position_ids"] = positions[0]
        if "token_type_ids" in inspect.signature(model.forward).parameters:  # tokens of an image attend to one another
            changed["token_type_ids"] = seen.long()
        return args, changed

    def _features(self, model: PreTrainedModel, shown: Sequence[int], like: Tensor) -> Tensor:
        """Return the features of images one after another, float[N, H]."""
        distinct = list(dict.fromkeys(shown))
        each = self._encode(model, self.images.pixels(distinct), like)
        sizes = [self.images[token].num_tokens for token in distinct]
        if len(each) != len(distinct):
            each = list(torch.cat(each).split(sizes)) if sum(map(len, each)) == sum(sizes) else each
        if [len(features) for features in each] != sizes:
            raise ModelError(
                f"{type(model).__name__} makes {[len(features) for features in each]} features of images for which "
                f"{type(self.images.processor).__name__} writes {sizes} tokens: the processor does not fit the model"
            )
        by_token = dict(zip(distinct, each, strict=True))
        return torch.cat([by_token[token] for token in shown]).to(like.dtype)

    @staticmethod
    def _encode(model: PreTrainedModel, pixels: Mapping[str, Tensor], like: Tensor) -> list[Tensor]:
        encoder: Any = model
        inputs = {name: array.to(like.device) for name, array in pixels.items()}
        pooled = encoder.get_image_features(**inputs, return_dict=True).pooler_output
        return [features.reshape(-1, like.shape[-1]) for features in pooled]

    def positions(self, model: PreTrainedModel, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return the positions of a model that gives images a height and a width, else None.

        Returns:
            positions: long[3, B, T].
            deltas: long[B], what is added to the number of tokens before a token after the last image.
        """
        index: Any = getattr(model.base_model, "get_rope_index", None)
        if index is None:
            return None
        seen = tokens >= FIRST
        shown = split_images(tokens, seen, self.images)
        grids = self.images.pixels(shown)["image_grid_thw"].to(tokens.device) if shown else None
        where = torch.ones_like(tokens) if mask is None else mask[:, -tokens.shape[1] :]
        positions, deltas = index(tokens, seen.int(), image_grid_thw=grids, attention_mask=where)
        return positions, deltas[:, 0]


def split_images(tokens: Tensor, seen: Tensor, images: ImageStore) -> list[int]:
    """Return the images of a batch, in the order of its rows.

    Args:
        tokens: long[B, T].
        seen: bool[B, T], True for the tokens of images.
        images: the images of the run.

    Raises:
        DataError: a sequence begins or ends within an image.
    """
    shown = []
    for row, where in zip(tokens.tolist(), seen.tolist(), strict=True):
        named = [token for token, is_image in zip(row, where, strict=True) if is_image]
        at = 0
        while at < len(named):
            size = images[named[at]].num_tokens
            if named[at : at + size] != [named[at]] * size:
                raise DataError(
                    f"a sequence was truncated within an image of {size} tokens: raise data.max_prompt_tokens and "
                    "data.max_sample_tokens, or leave them out"
                )
            shown.append(named[at])
            at += size
    return shown


def let_see(model: PreTrainedModel, images: ImageStore | None) -> ReadImages | None:
    """Make a model read the tokens of images; of a model that did so in an earlier run, the hook is replaced.

    Without images, the model reads texts only, and None is returned.
    """
    earlier = vars(model).pop(HOOK, None)
    if earlier is not None:
        earlier.remove()
    if images is None:
        return None
    reader = ReadImages(images)
    vars(model)[HOOK] = model.register_forward_pre_hook(reader, with_kwargs=True)
    return reader


def require_own_reading(model: PreTrainedModel, images: ImageStore) -> None:
    """Compare the logits of two small images and words with those of the model's own forward pass.

    They must not depend on later tokens either.

    Raises:
        ModelError: they differ, such as those of Qwen3-VL, whose encoder also adds features to the layers of the
            language model, or depend on later tokens, or a pass fails.
    """
    if model.device.type == "meta":
        return
    processor = images.processor
    shown = [PROBE, PROBE.resize((96, 48))]
    text = f"{processor.image_token} a {processor.image_token} a"
    made = processor(text=[text], images=[shown], return_tensors="pt")
    known = inspect.signature(model.forward).parameters
    own = {name: made[name].to(model.device) for name in made if name in known}
    names = [images.add(image, "a small image") for image in shown]
    try:
        tokens = torch.tensor([images.name(own["input_ids"][0].tolist(), names)], device=model.device)
        with probing(model):
            expected = model(**own).logits
            found = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
            require_same(model, "logits", found, expected)
            begun = model(input_ids=tokens[:, :-1], attention_mask=torch.ones_like(tokens[:, :-1])).logits
            require_same(model, "logits without the last token", begun, found[:, :-1])
    except TechniqueRefused as refusal:
        raise ModelError(
            f"{type(model).__name__} ({model.config.model_type}) does not read small images here as it does by itself "
            f"({refusal}), so it cannot be trained on images: take another family, or a tokenizer without an image "
            "processor to train on texts"
        ) from refusal


NAMES = frozenset({
    "auto_map", "chat_template", "data_format", "feature_extractor", "image_processor_type", "input_data_format",
    "processor_class", "return_tensors", "tokenizer", "video_processor", "_processor_class",
})  # fmt: skip
"""Entries of a processor that have no effect on what the model sees of an image: names of classes, and other parts."""


def require_same_images(spec: object, processor: Any, config: VisionLanguageConfig) -> None:
    """Check that a model that is named, and has a processor, reads images with the same settings as the run.

    Args:
        spec: the model; one in memory, or a folder of weights alone, has no processor to compare.
        processor: the run's.
        config: options of the architecture.

    Raises:
        ModelError: they differ; the message names the first setting and both values.
    """
    if not isinstance(spec, str | os.PathLike):
        return
    try:
        own: Any = load_processor(spec, None, config)
    except ModelError:
        return
    if isinstance(own, PreTrainedTokenizerBase):
        return
    theirs, ours = _settings(own.to_dict()), _settings(processor.to_dict())
    different = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    if not different:
        return
    first, *others = different
    more = f" (also {', '.join(others)})" if others else ""
    raise ModelError(
        f"{os.fspath(spec)!r}: its processor has other settings than the policy's: {first} is {theirs.get(first)}, and "
        f"{ours.get(first)} for the policy{more}. It is compared with the policy on the pixel values of the policy's "
        "processor, which are not those that it was trained on: choose a model whose processor has the same settings; "
        "pass its processor to the run (tokenizer=); or, if these pixel values are right for it, save the policy's "
        "processor in its folder (processor.save_pretrained)"
    )


def _settings(values: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a processor by name, as JSON, in which a list equals a tuple; those of its parts too."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if name == "image_processor" and isinstance(value, Mapping):
            found |= _settings(value)
        elif name not in NAMES and value is not None:
            found[name] = json.dumps(value, sort_keys=True, default=str)
    return found


class SeeingDecoder(CausalDecoder):
    """A decoder of prompts with images, whose keys and values are computed once, with those of the prompt."""

    reader: ReadImages | None

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Prefill the prompts, and move the positions of what follows them."""
        width = self._length
        if self.reader is not None and bool((self._prompts >= FIRST).any()):
            found = self.reader.positions(self._model, self._prompts, self._mask[:, :width])
            if found is not None:
                self._positions[:, width:] += found[1][:, None]
        return super().start()


@attrs.frozen
class SeeingLayout(CausalLayout):
    """Inputs of a model that sees, padded.

    Attributes:
        reader: the hook that turns the tokens of images into features.
    """

    reader: Any = None

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,  # noqa: ARG002  prompts do not join a running batch
    ) -> Decoder:
        """Return a `SeeingDecoder`."""
        decoder = SeeingDecoder(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, pad_id=self.pad_id, autocast=autocast,
            speed=self.speed,
        )  # fmt: skip
        decoder.reader = self.reader
        return decoder
