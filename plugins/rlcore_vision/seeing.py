"""How a model reads sequences with the tokens of images: their features take the place of embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import DataError, ModelError
from rlcore_vision.image_store import FIRST, ImageStore

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

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadImages:
        """Return the hook itself: it keeps no state of a model."""
        return self

    def __call__(self, model: PreTrainedModel, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
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
