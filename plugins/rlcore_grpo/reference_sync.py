"""A reference that follows the policy from time to time (TR-DPO, Gorbatovski et al. 2024, arXiv:2404.09656)."""

from __future__ import annotations

from typing import Any

from rlcore.errors import ConfigError, ModelError
from rlcore.protocols import MovingReference, Policy
from rlcore_grpo.config import GRPOConfig


class ReferenceSync:
    """Moves the reference every `sync_ref_every` optimizer steps; if that is 0, it stays where it is.

    reference <- alpha policy + (1 - alpha) reference.

    Args:
        config: the options.
        policy: the policy, with its reference.

    Raises:
        ConfigError: the reference cannot move.
    """

    def __init__(self, config: GRPOConfig, policy: Policy) -> None:
        self.every, self.alpha, self._is_used = config.sync_ref_every, config.sync_ref_alpha, config.kl_coef > 0
        self._built = policy
        self._policy = _with_copy(policy, self.every) if self.every else None

    def after(self, num_updates: int, *, before: int) -> None:
        """Move the reference, if a multiple of `every` lies above `before` and at most at `num_updates`."""
        if self._policy is not None and self.every and num_updates // self.every > before // self.every:
            self._policy.move_reference(self.alpha)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the reference, unless it has never moved and never does."""
        return {} if self._policy is None else self._policy.reference_state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; a reference that has stayed until now is the one that is built.

        Raises:
            ConfigError: the reference has moved, and the present one cannot.
        """
        if state and self._is_used:
            self._policy = self._policy or _with_copy(self._built, self.every)
            self._policy.load_reference_state_dict(state)


def _with_copy(policy: Policy, every: int) -> MovingReference:
    reason = "policies of this architecture have a reference that stays"
    if isinstance(policy, MovingReference):
        try:
            policy.reference_state_dict()
        except ModelError as error:
            reason = str(error)
        else:
            return policy
    raise ConfigError(f"trainer.sync_ref_every = {every}: {reason}; leave it out")
