"""The bytes and the multiplications of a model's weights, in the groups in which processes gather them.

Also in this file: the floating-point operations of a round, from the sizes of the model's matrices and the lengths of
its sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlcore.errors import ModelError, RLCoreError
from rlcore.protocols import Divisible
from rlcore_tools.plan.planned_run import PlannedRun
from rlcore_tools.plan.sizes import TENSOR

FLOAT32 = 4
CAST, CAST_BY_NAME = (nn.Linear, nn.Conv1d, nn.Conv2d), "Conv1D"
"""Layers whose weights `fsdp` gathers in 16 bits with run.mixed_precision=bf16; the last is GPT-2's of transformers."""


@attrs.frozen
class Weight:
    """One parameter.

    Attributes:
        rows: size of its first dimension, by which `fsdp` divides it.
        numel: number of elements.
        itemsize: bytes of an element.
        trains: whether it has a gradient.
        gathered: bytes of an element where `fsdp` gathers it.
        in_layer: whether it belongs to a layer that `tp` divides.
    """

    rows: int
    numel: int
    itemsize: int
    trains: bool
    gathered: int
    in_layer: bool = False

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.numel * self.itemsize

    def share(self, devices: int) -> int:
        """Return the bytes of the largest part of `devices`: rows rounded up."""
        return -(-self.rows // devices) * (self.size // self.rows) if self.rows else 0


@attrs.frozen
class Group:
    """Parameters that are gathered together.

    Attributes:
        whole: bytes when gathered.
        gradients: bytes of the whole gradients.
        reduced: bytes of the whole gradients where they are reduced, in 32 bits.
        full: bytes of the whole weights in their own precision.
        in_layers: of these, the bytes of layers that `tp` divides.
    """

    whole: int
    gradients: int
    reduced: int
    full: int = 0
    in_layers: int = 0

    @classmethod
    def of(cls, weights: Iterable[Weight]) -> Group:
        """Return the group of these weights."""
        every = list(weights)
        trained = [each for each in every if each.trains]
        return cls(
            sum(each.numel * each.gathered for each in every),
            sum(each.numel * each.gathered for each in trained),
            sum(each.numel * FLOAT32 for each in trained),
            sum(each.size for each in every),
            sum(each.size for each in every if each.in_layer),
        )


@attrs.frozen
class ModelSizes:
    """The weights of a run's model.

    Attributes:
        weights: the parameters of the policy's module.
        reference: the parameters beside it, such as those of a reference.
        buffers: bytes of what is no parameter.
        blocks: the groups that are gathered one after another, in the order in which they run.
        rest: the parameters outside the blocks, such as embeddings and heads.
        early: bytes of the gradients of `rest` that exist before those of the blocks.
        refusal: why the model cannot be divided; empty if it can.
    """

    weights: tuple[Weight, ...]
    reference: tuple[Weight, ...]
    buffers: int
    blocks: tuple[Group, ...]
    rest: Group
    early: int
    refusal: str

    @property
    def whole(self) -> int:
        """Return the bytes of the weights."""
        return sum(each.size for each in self.weights)

    def completed(self, strategy: str) -> int:
        """Return the bytes of the weights that a strategy completes: with `tp` those of the layers alone."""
        return sum(each.size for each in self.weights if each.in_layer or strategy != TENSOR)

    def by_block(self, strategy: str) -> int:
        """Return the bytes that are completed in a pass without gradients that completes one block at a time."""
        outside = 0 if strategy == TENSOR else self.rest.full
        return outside + self.largest_block(strategy)

    def largest_block(self, strategy: str) -> int:
        """Return the bytes of the block of which a strategy completes most."""
        return max((each.in_layers if strategy == TENSOR else each.full for each in self.blocks), default=0)

    def reference_by_block(self, *, beside_block: bool) -> int:
        """Return those of the reference, which shares with the policy what does not train.

        Args:
            beside_block: whether a block of the policy is counted already; no two are complete at a time.
        """
        own = self.rest.reduced + (0 if beside_block else max((each.reduced for each in self.blocks), default=0))
        return min(own, sum(each.size for each in self.reference))

    @property
    def trained(self) -> int:
        """Return the bytes of the weights that train."""
        return sum(each.size for each in self.weights if each.trains)

    @property
    def is_float32(self) -> bool:
        """Return whether all weights that train are in 32 bits."""
        return all(each.itemsize == FLOAT32 for each in self.weights if each.trains)

    @property
    def largest(self) -> int:
        """Return the bytes of the largest tensor."""
        return max((each.size for each in (*self.weights, *self.reference)), default=0)


def sizes_of(policy: Any, *, low: bool, layers: frozenset[int] = frozenset()) -> ModelSizes:
    """Return the sizes of a policy's weights.

    Args:
        policy: the policy, whose weights may be fake tensors.
        low: whether passes with gradients compute in bfloat16.
        layers: the weights of layers that `tp` divides, by id.
    """
    module, refusal = policy.module, ""
    blocks: Sequence[nn.Module] = ()
    try:
        blocks = _blocks(policy)
    except RLCoreError as error:
        refusal = str(error)
    linear = {id(each) for block in blocks for each in low_weights(block)} if low else set()
    inside: set[int] = set()
    groups = []
    for block in blocks:
        own = [each for each in block.parameters() if id(each) not in inside]
        inside |= {id(each) for each in own}
        if own:
            groups.append(Group.of(_weight(each, linear, layers) for each in own))
    outside = [each for each in module.parameters() if id(each) not in inside]
    late = {id(each) for part in module.modules() if isinstance(part, nn.Embedding) for each in part.parameters()}
    heads = [_weight(each, linear, layers) for each in outside if id(each) not in late]
    frozen = policy.frozen_parameters().values() if isinstance(policy, Divisible) else ()
    return ModelSizes(
        tuple(_weight(each, linear, layers) for each in module.parameters()),
        tuple(_weight(each, set()) for each in frozen),
        sum(each.numel() * each.itemsize for each in module.buffers()),
        tuple(groups), Group.of(_weight(each, linear, layers) for each in outside), Group.of(heads).gradients, refusal,
    )  # fmt: skip


def low_weights(block: nn.Module) -> list[Tensor]:
    """List the weights of a block that are gathered in 16 bits: of linear layers, if everything else is a norm."""
    owners = [part for part in block.modules() if next(part.parameters(recurse=False), None) is not None]
    linear = [part for part in owners if isinstance(part, CAST) or type(part).__name__ == CAST_BY_NAME]
    others = [part for part in owners if part not in linear]
    if not all("norm" in type(part).__name__.lower() for part in others):
        return []
    return [each for part in linear for each in part.parameters(recurse=False) if each.is_floating_point()]


def find_blocks(policy: object) -> Sequence[nn.Module]:
    """Return the blocks of a policy, or nothing if it cannot be divided."""
    try:
        return _blocks(policy)
    except RLCoreError:
        return ()


def _blocks(policy: Any) -> Sequence[nn.Module]:
    """Return the blocks of a policy that can be divided.

    Raises:
        ModelError: it cannot.
    """
    module: nn.Module = policy.module
    if not isinstance(policy, Divisible):
        raise ModelError(f"{type(policy).__name__} does not implement rlcore.protocols.Divisible")
    policy.check_divisible("fsdp")
    blocks: Sequence[nn.Module] = policy.blocks(module)
    return blocks


def _weight(parameter: Tensor, low: set[int], layers: frozenset[int] = frozenset()) -> Weight:
    rows = parameter.shape[0] if parameter.dim() else 1
    gathered = torch.bfloat16.itemsize if id(parameter) in low else parameter.itemsize
    return Weight(
        rows, parameter.numel(), parameter.itemsize, parameter.requires_grad, gathered, id(parameter) in layers
    )  # fmt: skip


@attrs.frozen
class Matrices:
    """The elements of the matrices that a token meets.

    Attributes:
        all: every matrix, of experts those that a token is routed to.
        reached: those to whose inputs a gradient goes back.
        trained: those that train.
        blocks: those of the blocks.
        layers: layers with attention.
        width: heads times the width of a head.
        rows_read: bytes of the weights that are read for a token when sampling.
    """

    all: float
    reached: float
    trained: float
    blocks: float
    layers: int
    width: int
    rows_read: float

    def forward(self, lengths: Sequence[int]) -> float:
        """Return the operations of a forward pass over sequences of these lengths."""
        return 2 * self.all * sum(lengths) + self.attention(lengths)

    def attention(self, lengths: Sequence[int]) -> float:
        """Return those of attention in it."""
        return 2.0 * self.layers * self.width * sum(length * length for length in lengths)

    def update(self, lengths: Sequence[int], *, recomputes: bool) -> float:
        """Return the operations of a forward and a backward pass.

        Args:
            lengths: lengths of the sequences.
            recomputes: whether the blocks run forwards again in the backward pass.
        """
        tokens, part = sum(lengths), self.reached / self.all if self.all else 0.0
        backward = 2 * (self.reached + self.trained) * tokens + 2 * self.attention(lengths) * part
        again = (2 * self.blocks * tokens + self.attention(lengths)) if recomputes else 0.0
        return self.forward(lengths) + backward + again


def matrices_of(subject: PlannedRun) -> Matrices:
    """Return the matrices of the planned run's policy."""
    policy = subject.policy
    module, model = policy.module, getattr(policy, "model", policy.module)
    config = getattr(model, "config", None)
    text = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    chosen, every = (getattr(text, name, None) for name in ("num_experts_per_tok", "num_local_experts"))
    every = every or getattr(text, "num_experts", None)
    routed = chosen / every if isinstance(chosen, int) and isinstance(every, int) and every else 1.0
    heads = {id(each) for part in module.modules() if isinstance(part, nn.Linear) for each in part.parameters()}
    tables = {
        id(each) for part in module.modules() if isinstance(part, nn.Embedding) for each in part.parameters()
    } - heads  # a tied table is the head too
    blocks = find_blocks(policy)
    inside = {id(each) for block in blocks for each in block.parameters()}
    total = trained = reached = within = read = 0.0
    is_reached = any(each.requires_grad for each in module.parameters() if id(each) in tables)
    for name, weight in module.named_parameters():
        is_reached = is_reached or weight.requires_grad
        if weight.dim() < 2 or id(weight) in tables:
            continue
        size = weight.numel() * (routed if "expert" in name else 1.0)
        total, read = total + size, read + size * weight.itemsize
        trained += size * weight.requires_grad
        reached += size * is_reached
        within += size * (id(weight) in inside)
    layers = int(_read(text, "num_hidden_layers", len(blocks)))
    hidden = int(_read(text, "hidden_size", 0))
    width = int(_read(text, "num_attention_heads", 0)) * int(_read(text, "head_dim", 0)) or hidden
    return Matrices(total, reached, trained, within, layers, width, read)


def _read(config: object, name: str, default: int) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else default
