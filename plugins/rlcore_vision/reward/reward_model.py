"""The reward `vision_reward_model`: the score that a reward model that sees gives a prompt with its answer.

Also in this file: the architecture `vision_scorer`: a model that sees, with one number for a whole sequence, as a
reward model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.profiling import note_scored
from rlcore.types import Trajectories
from rlcore_reward.reward_model import RewardModel, place
from rlcore_transformers.data.messages import is_image
from rlcore_transformers.models import loading
from rlcore_transformers.models.forward import ActorCritic
from rlcore_transformers.models.learner import ModelLearner
from rlcore_transformers.models.save_load import HEADS_FILE
from rlcore_vision.image_rows import MARK, TOKEN
from rlcore_vision.image_store import STORES
from rlcore_vision.model import build_vision_language, example_model, read_tokenizer
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.reward.config import VisionRewardConfig

HEAD = "sequence_score"
"""Name of the head, and of its weights in `heads.safetensors`."""


class SequenceScore(nn.Module):
    """Map the hidden state at the last token to a score, in float32 whatever the model's precision.

    Args:
        width: H.
        gain: factor of the hidden states.
    """

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.gain, self.score = gain, nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, chosen: Tensor) -> dict[str, Tensor]:  # noqa: ARG002  as of every head
        """Return float32[N] for float[N, H]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return {HEAD: self.score(hidden.float() * self.gain)[..., 0]}


class SeeingScorer(ModelLearner[ActorCritic]):
    """A model that sees, with a score of whole sequences (`rlcore.protocols.SequenceScorer`).

    Args:
        module: the model with the head `sequence_score`.
        tokenizer: its tokenizer, which reads images.
        max_length: the largest number of tokens of a sequence; 0 if unlimited.
    """

    export_class = "AutoModelForImageTextToText"

    def score(self, batch: Trajectories) -> Tensor:
        """Return the score of each sequence, float[B], with gradients if they are enabled.

        The head reads the hidden state at the last token, which is the one that predicts a token after it.
        """
        note_scored(batch.mask)
        rows = [[*row[mask].tolist(), 0] for row, mask in zip(batch.tokens, batch.mask, strict=True)]
        after = Trajectories.stack(rows, [[False] * (len(row) - 1) + [True] for row in rows]).to(self.device)
        with self._autocast():
            outputs = self._forward(after.tokens, after.mask, after.action_mask)
        scores: Tensor = outputs.heads[HEAD]
        return scores


def build_vision_scorer(
    spec: loading.ModelSpec, config: VisionLanguageConfig, *, tokenizer: object = None, start: Path | None = None
) -> SeeingScorer:
    """Build a scorer from a model specification; the head of one that was trained before is loaded.

    Args:
        spec: hub id, folder, `PretrainedConfig` (random weights) or a model in memory.
        config: options of the architecture.
        tokenizer: the processor, as an object, folder or hub id; the model's own if omitted.
        start: folder with the model before training, of a run that is resumed (`rlcore.protocols.Restorable`).

    Raises:
        ModelError: the model, processor or options do not fit.
    """

    def head(trunk: Any) -> nn.Module:
        return SequenceScore(trunk.width, trunk.gain)

    policy = build_vision_language(spec, config, tokenizer=tokenizer, heads={HEAD: head}, start=start)
    if policy.model.get_output_embeddings().weight is not policy.model.get_input_embeddings().weight:
        policy.model.get_output_embeddings().requires_grad_(False)  # it takes no part in a score
    return SeeingScorer(policy.module, policy.tokenizer, max_length=policy.max_length)


def load_vision_scorer(spec: Any, config: VisionLanguageConfig, *, tokenizer: object = None) -> SeeingScorer:
    """Load a trained scorer to score with it.

    Raises:
        ModelError: the folder has no score head, or the model cannot be loaded.
    """
    if not _has_head(spec):
        raise ModelError(
            f"{spec!r}: has no file {HEADS_FILE} with the head '{HEAD}', so it is no reward model that sees: train one "
            "with trainer 'reward' and model.architecture=vision_scorer, and name its folder `model`"
        )
    with torch.random.fork_rng(devices=[]):  # a run that loads it again, after a pause, draws the same numbers as ever
        scorer = build_vision_scorer(spec, config, tokenizer=tokenizer)
    scorer.module.requires_grad_(False)
    scorer.module.eval()
    return scorer


def _has_head(spec: Any) -> bool:
    file = Path(spec, HEADS_FILE) if isinstance(spec, str | os.PathLike) else None
    if file is None or not file.exists():
        return False
    with safe_open(file, framework="pt") as found:
        return any(name.startswith(f"{HEAD}.") for name in found.keys())  # noqa: SIM118  no dict


@torch.no_grad()
def reference_score(folder: Path, tokens: list[int]) -> float:
    """Return the score of a text by plain `transformers` and the weights of the head in a folder, for the kit."""
    model = AutoModelForImageTextToText.from_pretrained(folder)
    hidden = model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, -1]
    return float(hidden @ load_file(folder / HEADS_FILE)[f"{HEAD}.score.weight"][0])


_of_protocol: Any = build_vision_scorer
_of_protocol.scores_sequences, _of_protocol.example_model = True, example_model
_of_protocol.reference_score, _of_protocol.read_tokenizer = reference_score, read_tokenizer


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
