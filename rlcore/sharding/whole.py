"""Every process keeps the whole model: one process, or several with DistributedDataParallel through `accelerate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from rlcore.errors import ConfigError, RanksError
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig


class WholeModel:
    """The strategy `none` (`rlcore.protocols.Sharding`).

    Attributes:
        wrapped: the module as it is called: itself, or DistributedDataParallel.
    """

    divides_rows = False

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.was_skipped = ranks, False

    def cut(self, policy: Learner) -> list[nn.Parameter]:
        """Wrap the module; its parameters stay what they are."""
        accelerator = self.ranks.accelerator
        self.wrapped: nn.Module = accelerator.prepare(policy.module)
        self.parameters = [p for p in policy.module.parameters() if p.requires_grad]
        is_mixed = accelerator.mixed_precision != "no"
        policy.use_forward(self.wrapped, autocast=accelerator.autocast if is_mixed else nullcontext)
        return self.parameters

    def drive(self, optimizer: Optimizer) -> Any:
        """Return the optimizer, wrapped if gradients are scaled."""
        # The wrapper looks for a package on the disk at every step; nothing but the scaler of fp16 needs it.
        scaled = self.ranks.accelerator.prepare(optimizer)
        self.optimizer: Any = optimizer if self.ranks.accelerator.scaler is None else scaled
        return self.optimizer

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """Exchange gradients in the backward pass of the last micro-batch only.

        Raises:
            RanksError: a parameter received no gradient in the step before, so that the ranks could not exchange it.
        """
        try:
            with nullcontext() if last else self.ranks.accelerator.no_sync(self.wrapped):
                yield
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                raise
            raise RanksError(
                "a trainable parameter received no gradient in a step, such as an expert to which no token was routed; "
                "several processes can only train models that use every parameter in every step: run one process"
            ) from error

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch's loss."""
        # Wrapped modules average over ranks; the loss is a share of one global sum.
        self.ranks.accelerator.backward(loss * self.ranks.world if self.ranks.world > 1 else loss)

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; a gradient whose norm is not finite makes no step."""
        scaler, norm = self.ranks.accelerator.scaler, None
        if max_norm:
            norm = self.ranks.accelerator.clip_grad_norm_(self.parameters, max_norm)
        elif scaler is None:
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        self.was_skipped = norm is not None and not bool(norm.isfinite())
        if not self.was_skipped:
            self.optimizer.step()
            self.was_skipped = scaler is not None and self.optimizer.step_was_skipped
        elif scaler is not None:
            scaler.update()  # the optimizer's wrapper would do it in its step
        self.optimizer.zero_grad()
        return norm if max_norm else None

    def discard(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer."""
        load_optimizer(self.optimizer, state)


def build_none(config: RunConfig, ranks: Ranks) -> WholeModel:
    """Return the strategy `none`.

    Raises:
        ConfigError: `run.offload` is set, which needs parts to keep elsewhere.
    """
    if config.offload:
        raise ConfigError("run.offload: needs run.shard=fsdp, zero2 or zero3, whose parts it keeps in the CPU's memory")
    return WholeModel(ranks)


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore the exact state of an optimizer.

    Torch casts loaded tensors to the type of their parameters. Tensors that an optimizer keeps in another type, such as
    moments in 32 bits, are put back in that type.
    """
    optimizer.load_state_dict(saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, kept in saved["state"].items():
        for name, value in kept.items() if isinstance(kept, dict) and isinstance(index, int) else ():
            loaded = optimizer.state[parameters[index]].get(name)
            if isinstance(loaded, Tensor) and isinstance(value, Tensor) and loaded.dtype != value.dtype:
                optimizer.state[parameters[index]][name] = value.to(loaded.device)
