"""What runs in Ray's actors: sampling with a copy of the policy, whose weights follow those of the run.

Also in this file: the keeper of the newest weights, an actor without torch, from which those that sample fetch them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import ray
import torch
from torch import Tensor

from rlcore.protocols import SamplerTraits
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_engines.ray import skeleton
from rlcore_engines.ray.cluster import NAMESPACE
from rlcore_engines.ray.config import build_engine


@attrs.frozen
class Weights:
    """One version of a policy, as references to objects in Ray's store.

    Attributes:
        version: its name.
        policy: the policy without weights, as `skeleton.dump` returns it, with the precision of the run.
        groups: arrays by name; those that change often are one group, so that the others are not sent again.
    """

    version: str
    policy: Any
    groups: tuple[Any, ...]


class Keeper:
    """Holds the newest weights, so that an actor that was replaced gets them without the process that trains."""

    def __init__(self) -> None:
        self._weights: Weights | None = None
        self._changed = asyncio.Condition()

    async def publish(self, weights: Weights) -> None:
        """Replace the weights."""
        async with self._changed:
            self._weights = weights
            self._changed.notify_all()

    async def fetch(self, version: str) -> Weights:
        """Return the weights of a version, once they are there."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._weights is not None and self._weights.version == version)
        assert self._weights is not None  # noqa: S101  for the type checker
        return self._weights


Packed = dict[str, np.ndarray[Any, Any]]


class SamplingActor:
    """An actor that samples.

    Args:
        keeper: the name of the keeper.
        threads: threads that it computes with.
        patience_s: longest time to wait for weights.
        engine: the sampler that it has in place of rlcore's own (`rlcore_engines.ray.config`). It has the GPUs of the
            actor; the copy of the policy is on the CPU then, and the engine's weights and their check come from it.
    """

    def __init__(self, keeper: str, threads: int, patience_s: float, engine: Mapping[str, Any] | None = None) -> None:
        torch.set_num_threads(threads)
        self._keeper: Any = ray.get_actor(keeper, NAMESPACE)
        self._patience_s = patience_s
        self._version, self._policy_id, self._loaded = "", "", set[str]()
        self._policy: Any = None
        self._tensors: dict[str, Tensor] = {}
        self._engine = build_engine(engine) if engine else None
        self._device = torch.device("cuda" if ray.get_gpu_ids() and not engine else "cpu")

    def ready(self) -> int:
        """Return the id of this process, once it can sample."""
        return os.getpid()

    def close(self) -> None:
        """End what the engine has started."""
        SamplerTraits(self._engine).close()

    def sample(
        self,
        version: str,
        tokens: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        seeds: Sequence[int] | None,
        logit_mask: Tensor | None,
        options: Any = None,
    ) -> Packed:
        """Continue prompts with the weights of a version, as `rlcore.sampling.sample` does in one process.

        Args:
            version: of the weights.
            tokens: B prompts.
            sampling: the options, `eos_token_ids` included.
            seeds: a seed for each prompt; None where none is needed.
            logit_mask: bool[V, V], or None.
            options: those of the sampler `default`.
        """
        if version != self._version:
            self._renew(version)
        prompts = [Prompt(text="", tokens=tuple(each)) for each in tokens]
        if self._engine is not None:
            masked = {} if logit_mask is None else {"logit_mask": logit_mask}
            return pack(self._engine(self._policy, prompts, sampling, row_seeds=seeds, **masked))
        batch = sample(self._policy, prompts, sampling, row_seeds=seeds, logit_mask=logit_mask, options=options)
        return pack(batch)

    def _get(self, reference: Any) -> Any:
        return ray.get(reference, timeout=self._patience_s)

    def _renew(self, version: str) -> None:
        weights: Weights = self._get(self._keeper.fetch.remote(version))
        self._version = ""  # until all of the new ones are there
        if weights.policy.hex() != self._policy_id:
            data, precision = self._get(weights.policy)
            precision = precision if self._engine is None else "no"  # the engine is checked in full precision
            self._policy, self._tensors = skeleton.load(data, mixed_precision=precision)
            self._policy_id, self._loaded = weights.policy.hex(), set()
            self._policy.to(self._device)
            named = [*self._policy.module.named_parameters(), *self._policy.module.named_buffers()]
            self._tensors = {name: each.detach() for name, each in named}
        for group in weights.groups:
            if group.hex() not in self._loaded:
                skeleton.fill(self._tensors, self._get(group))
        self._loaded = {group.hex() for group in weights.groups}
        self._policy.version += 1
        self._version = version


def pack(batch: Trajectories) -> Packed:
    """Return the arrays of trajectories on the CPU."""
    own = {"tokens": batch.tokens, "mask": batch.mask, "action_mask": batch.action_mask, "ended": batch.ended}
    columns = {f"columns.{name}": column for name, column in batch.columns.items()}
    return {name: array.cpu().numpy() for name, array in (own | columns).items()}


def unpack(packed: Packed, device: torch.device) -> Trajectories:
    """Return trajectories on a device."""
    arrays = {name: torch.tensor(array).to(device) for name, array in packed.items()}
    columns = {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith("columns.")}
    own = {name: array for name, array in arrays.items() if not name.startswith("columns.")}
    return Trajectories(**own, columns=columns)
