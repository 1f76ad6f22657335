"""What the user brought: model, data and functions, not yet turned into anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from rlcore.errors import InputsError
from rlcore.log import get_logger
from rlcore.recording import refuse_descriptions

log = get_logger("inputs")

DATA_INPUTS = (
    "prompts", "samples", "rewards", "eval_prompts", "eval_samples", "reward_fn", "metric_fn", "logit_mask",
)  # fmt: skip


@attrs.define(kw_only=True)
class Inputs:
    """Hold the user's arguments as they were given; None stands for what was not."""

    model: Any = None
    tokenizer: Any = None
    reward_fn: Any = None
    prompts: Any = None
    samples: Any = None
    rewards: Any = None
    eval_prompts: Any = None
    eval_samples: Any = None
    metric_fn: Callable[..., Any] | str | None = None
    logit_mask: Any = None

    @property
    def given(self) -> list[str]:
        """Name the inputs that were given, the model and its tokenizer aside."""
        names = [field.name for field in attrs.fields(type(self)) if field.name not in ("model", "tokenizer")]
        return [name for name in names if getattr(self, name) is not None]

    def fitting_trainer(self) -> str:
        """Choose the trainer from what was given: a reward function, rewarded samples, or samples alone.

        Raises:
            InputsError: nothing that a trainer could learn from.
        """
        if self.reward_fn is not None:
            return "ppo"
        if self.samples is not None:
            return "sft" if self.rewards is None else "ilql"
        raise InputsError(
            f"nothing to learn from: given were {', '.join(self.given) or 'no inputs'}; pass reward_fn and prompts "
            "(ppo), samples and rewards (ilql), or samples (sft)"
        )

    def require(self, trainer: str, needs: tuple[str, ...]) -> None:
        """Check that a trainer has all it needs, and nothing that only stands for what it needs.

        Raises:
            InputsError: it names what is missing.
        """
        if self.model is None or isinstance(self.model, (bool, int, float, list, tuple)):
            raise InputsError(
                f"model = {self.model!r}: must be a hub id, folder, PretrainedConfig or module (in a file model.path)"
            )
        refuse_descriptions(self.model, "model.path")
        refuse_descriptions(self.tokenizer, "model.tokenizer")
        for name in DATA_INPUTS:
            refuse_descriptions(getattr(self, name), f"data.{name}")
        if self.rewards is not None and "rewards" not in needs:
            log.warning("rewards are of no use to this trainer", trainer=trainer, needs=", ".join(needs))
        missing = [name for name in needs if getattr(self, name) is None]
        if missing:
            other = None if self.samples is None else "sft" if self.rewards is None else "ilql"
            hint = f", or name trainer '{other}', which learns from what is given" if other else ""
            raise InputsError(
                f"trainer '{trainer}' needs {' and '.join(needs)}; missing: {', '.join(missing)} "
                f"(given: {', '.join(self.given) or 'nothing'}). Pass them to rlcore.train or set them under data: "
                f"in the configuration file{hint}"
            )
