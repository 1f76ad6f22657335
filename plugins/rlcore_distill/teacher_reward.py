"""The reward `teacher`: the log-prob that a teacher gives each sampled token, for trainers that learn from rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from rlcore.errors import ConfigError, DataError
from rlcore.training import eval_mode
from rlcore.types import Trajectories
from rlcore_distill.config import TeacherRewardConfig
from rlcore_distill.teachers import check_same_tokens
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.input_layout import declared
from rlcore_transformers.models.loading import device_named
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

Message = Mapping[str, Any]
SEES = "take the trainer distill or distill_prompts, whose teacher sees the images"


class TeacherReward:
    """A reward of each token: log p(token), p the teacher, minus log pi(token) of the policy in a run.

    The sum over an output sampled from pi is then an unbiased estimate of -KL(pi || p). Log-probs are those of logits /
    temperature, the run's sampling temperature. Outputs are scored as the tokens that were sampled. An output with a
    token that the teacher does not have gets None. Outside a run there is no policy, and nothing is subtracted.

    The model is loaded at once, and again at the first call after `close`.

    Args:
        config: the options.

    Raises:
        ConfigError: no teacher is named, or there is no such device.
        ModelError: the teacher cannot be loaded.
    """

    def __init__(self, config: TeacherRewardConfig) -> None:
        if not config.path:
            raise ConfigError("teacher.path is empty: name the folder or hub id of the teacher")
        self.config, self._checked = config, False
        self._run: Any = None
        self._teacher: ModelPolicy | None = _load(config)
        self._prompts: dict[str, tuple[int, ...]] | None = None

    def open(self, run: Any) -> None:
        """Take the policy to subtract, the tokens of prompts and the temperature from a run.

        Raises:
            ConfigError: the run's rewards are computed while the policy samples or learns, or its policy is divided.
        """
        self._run, self._prompts, options = run, None, run.config.run
        if run.config.data.environment is not None or run.data.inputs.environment is not None:
            raise ConfigError(
                "reward 'teacher': scores an output after its prompt, and episodes have several turns; leave "
                "data.environment out"
            )
        blocking = {
            "run.overlap_rewards = true": options.overlap_rewards, f"run.shard = '{options.shard}'":
            options.shard != "none", f"run.asynchronous = {options.asynchronous}": options.asynchronous,
        }  # fmt: skip
        for option, is_set in blocking.items():
            if is_set and self.config.subtract_policy:
                raise ConfigError(
                    f"{option}: reward 'teacher' computes log-probs of the policy that has sampled, which this "
                    "option does not allow; leave it out, or set subtract_policy to false"
                )

    def __call__(
        self,
        prompts: Sequence[str],
        outputs: Sequence[str],
        messages: Sequence[Sequence[Message] | None],
        output_tokens: Sequence[Sequence[int]] | None = None,
        tokenizer: object = None,
    ) -> list[list[float] | None]:
        """Return the rewards of the tokens of each output, or None for one with a token that the teacher lacks."""
        teacher = self.teacher
        if tokenizer is not None and not self._checked:
            check_same_tokens(tokenizer, teacher.tokenizer, option="teacher.path", name=self.config.path)
            self._checked = True
        if output_tokens is None:
            output_tokens = [teacher.tokenizer(each, add_special_tokens=False).input_ids for each in outputs]
        size = teacher.vocabulary_size
        rows: dict[int, tuple[list[int], list[bool]]] = {}
        for i, (prompt, output) in enumerate(zip(prompts, output_tokens, strict=True)):
            before = self._tokens_of(prompt, messages[i])
            if len(before) and max(before) >= size:
                raise DataError(
                    f"reward 'teacher': the prompt {prompt[:80]!r} shows an image, and this teacher reads texts alone: "
                    f"{SEES}"
                )
            if len(output) and max(output) < size:
                rows[i] = [*before, *output], [False] * len(before) + [True] * len(output)
        found = self._scored(rows)
        return [found.get(i, [] if not len(output) else None) for i, output in enumerate(output_tokens)]

    @property
    def teacher(self) -> ModelPolicy:
        """Return the teacher, which is loaded if it is closed."""
        self._teacher = self._teacher or _load(self.config)
        return self._teacher

    def close(self) -> None:
        """Free the teacher's memory."""
        self._teacher = None

    @torch.no_grad()
    def _scored(self, rows: Mapping[int, tuple[list[int], list[bool]]]) -> dict[int, list[float]]:
        """Return the rewards of rows of tokens and action masks; rows of similar length are scored together."""
        found: dict[int, list[float]] = {}
        order = sorted(rows, key=lambda i: len(rows[i][0]))
        for start in range(0, len(order), self.config.batch_size):
            index = order[start : start + self.config.batch_size]
            batch = Trajectories.stack([rows[i][0] for i in index], [rows[i][1] for i in index])
            rewards = self._rewards(batch)
            for i, row, chosen in zip(index, rewards, batch.action_mask, strict=True):
                found[i] = row[chosen].tolist()
        return found

    def _rewards(self, batch: Trajectories) -> torch.Tensor:
        """Return the reward of each chosen token: float[B, T], on the CPU."""
        temperature = 1.0 if self._run is None else self._run.temperature
        teacher = self.teacher
        with eval_mode(teacher.module):
            rewards = teacher.score(batch.to(teacher.device), temperature=temperature).logprobs.float().cpu()
        if self._run is not None and self.config.subtract_policy:
            policy = self._run.models.policy
            with eval_mode(policy.module):
                own = policy.score(batch.to(policy.device), temperature=temperature).logprobs
            rewards = rewards - own.float().cpu()
        return rewards

    def _tokens_of(self, prompt: str, messages: Sequence[Message] | None) -> Sequence[int]:
        """Return the tokens of a prompt: those of the run, from which the policy sampled, or else of its text."""
        if self._run is None:
            encoded: list[int] = self.teacher.tokenizer(prompt, add_special_tokens=messages is None).input_ids
            return encoded
        if self._prompts is None:
            data = self._run.data
            known = [*(data.prompts if data.inputs.prompts is not None else ()), *data.eval_prompts]
            self._prompts = {each.text: each.tokens for each in known}
        if prompt not in self._prompts:
            raise DataError(
                f"reward 'teacher': the prompt {prompt[:80]!r} is none of the run's prompts, so that its tokens are "
                "not known"
            )
        return self._prompts[prompt]


def _load(config: TeacherRewardConfig) -> ModelPolicy:
    about = declared(config.path)
    if hasattr(about, "vision_config") and type(about) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(
            f"teacher.path = {config.path!r}: is a model of texts and images ({type(about).__name__}), and the reward "
            f"'teacher' scores texts alone: {SEES}, or name a model of texts"
        )
    policy = build_causal_lm(config.path, CausalLMConfig(dtype=config.dtype))
    policy.to(device_named(config.device, "teacher.device"))
    policy.module.eval()
    policy.module.requires_grad_(False)
    return policy
