"""The passes of `run.shard=tp` on fake tensors: parts of each layer, and the rows of all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlcore_tools.plan.heap import LiveBytes, held
from rlcore_tools.plan.planned_run import PlannedRun, vocabulary_of
from rlcore_tools.plan.step_memory import TensorPasses, UpdateBytes


def divided_layers(subject: PlannedRun) -> dict[str, str]:
    """Return the layers that the model's plan divides, by name, with how.

    Raises:
        ModelError: the model has no plan, or one that does not fit the number of processes.
    """
    from rlcore_shard.tensor_plan import plan_of

    return dict(plan_of(subject.policy.module, subject.world).linear)


def weights_of(subject: PlannedRun, layers: dict[str, str]) -> frozenset[int]:
    """Return the weights of which a process keeps a part, by id: biases of layers that take some inputs are whole."""
    from rlcore_shard.tensor_plan import COLUMNS

    return frozenset(
        id(weight)
        for name, style in layers.items()
        for weight in subject.policy.module.get_submodule(name).parameters(recurse=False)
        if style == COLUMNS or weight.dim() > 1
    )


def measure_tensor_passes(
    subject: PlannedRun,
    live: LiveBytes,
    found: UpdateBytes,
    layers: dict[str, str],
    run: Callable[[], tuple[int, int]],
    num_micro: int,
) -> TensorPasses:
    """Return the memory of an optimizer step of one process, and what it exchanges; the policy is changed meanwhile.

    Args:
        subject: the planned run.
        live: counts the bytes of tensors.
        found: the memory of a step of a process with the whole model.
        layers: the layers that are divided.
        run: runs the passes of one micro-batch; returns the bytes that the forward pass keeps and `live.peak`.
        num_micro: micro-batches of a step.
    """
    policy, mixed = subject.policy, subject.ranks.mixed_precision != "no"
    module, world, vocabulary = policy.module, subject.world, max(vocabulary_of(policy), 2)
    autocast = subject.ranks.accelerator.autocast if mixed else nullcontext
    kept = most = 0
    with _parts(module, layers, world), _counted(module, layers) as counter:
        policy.use_forward(
            lambda *given, **options: _on_all_rows(module, world, vocabulary, given, options), autocast=autocast
        )
        before = live.restart()
        for _ in range(min(num_micro, 2)):
            counter.summed = 0
            kept, peak = run()
            most = max(most, peak - before)
        trained = [each for each in module.parameters() if each.requires_grad]
        gradients = held(*(each.grad for each in trained))
        own = {id(weight) for weight in trained} - {
            id(weight) for name in layers for weight in module.get_submodule(name).parameters(recurse=False)
        }  # fmt: skip
        whole = sum(each.nbytes for each in trained if id(each) in own)
        module.zero_grad(set_to_none=True)
    policy.use_forward(module, autocast=autocast)
    step = gradients + max(found.step - found.gradients, 0) * gradients // max(found.gradients, 1)
    return TensorPasses(UpdateBytes(kept, most, gradients, step), counter.summed, whole)


@contextmanager
def _parts(module: nn.Module, layers: dict[str, str], world: int) -> Iterator[None]:
    """Replace the weights of layers by the parts that one process keeps."""
    from rlcore_shard.tensor_plan import COLUMNS

    replaced = []
    try:
        for name, style in layers.items():
            layer = module.get_submodule(name)
            for key, weight in list(layer.named_parameters(recurse=False)):
                if style != COLUMNS and weight.dim() < 2:
                    continue
                part = weight.detach().chunk(world, 0 if style == COLUMNS else 1)[0].clone()
                replaced.append((layer, key, weight))
                setattr(layer, key, nn.Parameter(part, requires_grad=weight.requires_grad))
        yield
    finally:
        for layer, key, weight in replaced:
            setattr(layer, key, weight)


@attrs.define
class _Counter:
    """The bytes of the hidden states that processes sum."""

    summed: int = 0


@contextmanager
def _counted(module: nn.Module, layers: dict[str, str]) -> Iterator[_Counter]:
    """Count the outputs of layers that take some inputs, and the gradients of the inputs of those with some outputs."""
    from rlcore_shard.tensor_plan import COLUMNS

    counter = _Counter()

    def after(_: nn.Module, __: Any, out: Tensor) -> None:
        counter.summed += out.nbytes

    def before(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given[0].requires_grad:
            given[0].register_hook(lambda gradient: _add(counter, gradient))

    handles = [
        module.get_submodule(name).register_forward_pre_hook(before)
        if style == COLUMNS
        else module.get_submodule(name).register_forward_hook(after)
        for name, style in layers.items()
    ]
    try:
        yield counter
    finally:
        for each in handles:
            each.remove()


def _add(counter: _Counter, gradient: Tensor) -> None:
    counter.summed += gradient.nbytes


def _on_all_rows(
    module: nn.Module, world: int, vocabulary: int, given: tuple[Tensor, ...], options: dict[str, Any]
) -> Any:
    """Run the rows of all processes, as many as of this one each, and return the outputs of its own."""
    # Other tokens in each copy, because equal rows are computed once; those that rows of a process share stay equal.
    draws = [torch.Generator().manual_seed(seed) for seed in range(world)]
    tokens = torch.cat([torch.randperm(vocabulary, generator=each)[given[0]] for each in draws])
    outputs = module(tokens, *(torch.cat([each] * world) for each in given[1:]), **options)
    if isinstance(outputs, Tensor):
        return outputs.chunk(world)[0].clone()
    arrays = {name: each for name, each in outputs._asdict().items() if isinstance(each, Tensor)}
    heads = {name: each.chunk(world, -1)[0].clone() for name, each in outputs.heads.items()}
    return outputs._replace(**{name: each.chunk(world)[0].clone() for name, each in arrays.items()}, heads=heads)
