"""The reward `vision_reward_model`: the score that a reward model that sees gives a prompt with its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlcore.errors import ConfigError, DataError
from rlcore_reward.reward_model import RewardModel, place
from rlcore_transformers.data.image_parts import is_image
from rlcore_vision.image_rows import MARK, TOKEN
from rlcore_vision.image_store import STORES
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.reward.config import VisionRewardConfig
from rlcore_vision.scorer import SeeingScorer, load_vision_scorer


class VisionRewardModel(RewardModel):
    """A reward function that scores texts and images with a trained `vision_scorer`, which reads both by itself.

    The images are those of the prompts: the reward model's own processor reads them from the sources of the rows.

    Args:
        config: the options.

    Raises:
        ConfigError: no model is named, or there is no such device.
        ModelError: the model cannot be loaded, or has no score head.
    """

    def __init__(self, config: VisionRewardConfig) -> None:
        if config.path == "":
            raise ConfigError("vision_reward_model.path is empty: name the folder of a reward model that sees")
        self.config, self._options = config, config
        self._seeing: SeeingScorer | None = _load(config)

    @property
    def scorer(self) -> Any:
        """Return the reward model, which is loaded if it is closed."""
        if self._seeing is None:
            self._seeing = _load(self._options)
        return self._seeing

    def encode(
        self, text: str, messages: Sequence[Mapping[str, Any]] | None, is_ended: bool, *, tools: Any = None
    ) -> list[int]:
        """Return the reward model's tokens of a text or a conversation, with its own ones of the images they show."""
        text = MARK.sub(lambda found: self._images.mark(self._own(int(found[1], 16))), text)
        return super().encode(text, None if messages is None else [*map(self._seen, messages)], is_ended, tools=tools)

    def close(self) -> None:
        """Free the model's memory; it is loaded again at the next call."""
        self._seeing = None

    @property
    def _images(self) -> Any:
        return self.scorer.tokenizer.images

    def _own(self, token: int) -> int:
        """Return the reward model's token of an image that the policy's rows show: of the pixels that the policy saw.

        Raises:
            DataError: no rows of this process show it, or its file has changed since they were read.
        """
        stores = [each for each in STORES if token in each]
        others = [each for each in stores if each is not self._images]
        if not stores:
            raise DataError(f"vision_reward_model: a prompt shows the image {token:08x}, which no row of the run has")
        failed: DataError | None = None
        for store in others:  # of several runs, whose images have the same tokens
            try:
                return int(self._images.adopt(store, token, "vision_reward_model"))
            except DataError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return token

    def _seen(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if not isinstance(content, list | tuple):
            return message
        return {**message, "content": [
            {**part, TOKEN: self._own(part[TOKEN])} if is_image(part) and TOKEN in part else part for part in content
        ]}  # fmt: skip


def _load(config: VisionRewardConfig) -> SeeingScorer:
    options = VisionLanguageConfig(
        dtype=config.dtype, trust_remote_code=config.trust_remote_code, revision=config.revision,
        allow_urls=config.allow_urls, image_cache_gb=config.image_cache_gb,
    )  # fmt: skip
    scorer = load_vision_scorer(config.path, options, tokenizer=config.tokenizer)
    place(cast("Any", scorer), config)
    return scorer
