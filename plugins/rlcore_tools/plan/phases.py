"""The memory of one training step, phase by phase, measured on fake tensors.

Also in this file: one training step of a model that is no language model, from the parts that its trainer declares;
the passes of `run.shard=tp` on fake tensors: parts of each layer, and the rows of all processes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import attrs
import torch
from torch import Tensor, nn

from rlcore.training import Updater
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_tools.plan.fake_tensors import LiveBytes, held, parameters_of
from rlcore_tools.plan.model_sizes import find_blocks, low_weights, sizes_of
from rlcore_tools.plan.planned_run import Draw, Draws, PlannedRun, draw, learned, pieces, vocabulary_of
from rlcore_tools.plan.reward_models import scoring_pass
from rlcore_tools.plan.serving import num_copies
from rlcore_tools.plan.step_memory import Raw, TensorPasses, UpdateBytes, passes_without_gradients
from rlcore_tools.plan.workload import Rehearsal
from rlcore_transformers.models.freezing import OPTIONS
from rlcore_transformers.models.input_layout import declared
from rlcore_transformers.models.policy import ModelPolicy


def divided_layers(subject: PlannedRun) -> dict[str, str]:
    """Return the layers that the model's plan divides, by name, with how.

    Raises:
        ModelError: the model has no plan, or one that does not fit the number of processes.
    """
    from rlcore_shard.tensor_parallel import plan_of

    return dict(plan_of(subject.policy.module, subject.world).linear)


def weights_of(subject: PlannedRun, layers: dict[str, str]) -> frozenset[int]:
    """Return the weights of which a process keeps a part, by id: biases of layers that take some inputs are whole."""
    from rlcore_shard.tensor_parallel import COLUMNS

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
    from rlcore_shard.tensor_parallel import COLUMNS

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
    from rlcore_shard.tensor_parallel import COLUMNS

    counter = _Counter()

    def after(_: nn.Module, __: object, out: Tensor) -> None:
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
    module: nn.Module, world: int, vocabulary: int, given: tuple[Tensor, ...], options: dict[str, object]
) -> object:
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


MANY = 10**6
"""Number of updates of the learning-rate schedule; it does not affect memory."""
TOKEN_BYTES = 8 + 1 + 1 + 7 * 4
"""Bytes of a rollout per token: int64 id, two bool masks, and seven float32 columns such as log-probs and rewards."""


def measure(subject: PlannedRun, live: LiveBytes, draws: Draws | None = None, *, tensor: bool = False) -> Raw:
    """Run one training step on fake tensors; called inside `fake_tensors`.

    Args:
        subject: the planned run.
        live: counts the bytes of its tensors.
        draws: the memory of sampling if an earlier estimate measured it.
        tensor: whether processes compute parts of layers (`run.shard=tp`).
    """
    policy, settings = subject.policy, subject.settings
    weights = parameters_of(policy.module)
    reference = getattr(policy, "reference", None)
    beside = parameters_of(reference) if isinstance(reference, torch.nn.Module) else []
    longest = subject.lengths.prompt + settings.gen.max_new_tokens
    named = subject.optimizers.get(subject.optimizer)
    num_judged = subject.share(subject.workload.num_sampled)
    is_low = subject.ranks.mixed_precision == "bf16"
    with no_garbage():
        updater = Updater(policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
        draws = draws or draw(subject, live)
        judging = tuple(
            (f"reward {each.name}", *scoring_pass(each, live, num=num_judged, length=longest))
            for each in subject.rewards
        )
        passes, by_block = passes_without_gradients(subject, live)
        micro, largest = _micro_batches(subject)
        found = update(live, updater, _passes(subject, live, updater, largest, min(micro, 2)))
        low = _low_passes(subject, live, largest) if is_low and subject.world > 1 else None
        trunk = _trunk_cache(subject, live)
        layers = divided_layers(subject) if tensor else {}
        parts = weights_of(subject, layers)
        divided = _tensor_passes(subject, live, found, layers, largest, micro) if layers else None
    return Raw(
        sizes=sizes_of(policy, low=is_low, layers=parts), tensor=divided,
        reference=held(*weights, *beside) - held(*weights),
        rewards=held(*(p for each in subject.rewards for p in parameters_of(each.scorer.module))),
        rollouts=subject.share(subject.workload.num_held) * longest * TOKEN_BYTES,
        trunk=trunk, draws=draws, judging=judging, passes=passes, by_block=by_block, update=found, low=low,
        num_micro=micro, recomputes=bool(settings.model.get("gradient_checkpointing")), reads_rows=_reads_rows(subject),
        ahead=num_copies(subject.chosen, settings.run.asynchronous),
    )  # fmt: skip


def _reads_rows(subject: PlannedRun) -> bool:
    """Return whether processes that divide the model leave it in its files until each reads its rows."""
    options, is_policy = subject.settings.model, isinstance(subject.policy, ModelPolicy)
    path, dtype = options.get("path"), options.get("dtype", "float32")
    if not is_policy or not isinstance(path, str) or any(options.get(each) for each in OPTIONS):
        return False
    critic, is_adapted = options.get("critic"), options.get("peft") is not None
    if critic not in (None, "copy") or (is_adapted and (critic or options.get("value_layers"))):
        return False
    if dtype == "auto" or (dtype == "float32" and not is_adapted):
        return True
    config = declared(path, options.get("revision"))  # weights of other files are converted as they are loaded
    return config is not None and str(config.dtype) == f"torch.{dtype}"


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect garbage once and then disable the collector, so that only the code itself frees tensors."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def update(live: LiveBytes, updater: Updater, passes: Callable[[], int]) -> UpdateBytes:
    """Run one optimizer step.

    Args:
        live: counts the bytes of tensors.
        updater: the optimizer.
        passes: runs the forward and backward passes of at most two micro-batches; returns the bytes that one forward
            pass keeps.
    """
    before = live.restart()
    kept = passes()
    most = live.peak - before
    gradients = held(*(p.grad for p in updater.parameters))
    live.restart()
    updater.step()
    moments = live.now - before
    step = live.peak - before - moments
    if live.heap is not None and live.heap.is_open:  # a second step, in the heap that the first has fragmented
        live.restart()
        passes()
        updater.step()
    return UpdateBytes(kept, most, gradients, step, moments, live.holes)


def _micro_batches(subject: PlannedRun) -> tuple[int, Trajectories]:
    """Return the number of micro-batches of an optimizer step, and the largest."""
    micro = pieces(subject, learned(subject), subject.workload.micro_batch_size)
    return len(micro), max(micro, key=lambda piece: (int(piece.mask.sum()), piece.tokens.numel()))


def _passes(
    subject: PlannedRun, live: LiveBytes, updater: Updater, largest: Trajectories, count: int
) -> Callable[[], int]:
    """Return a function that runs the passes of the largest micro-batch `count` times."""

    def passes() -> int:
        kept = 0
        for batch in [largest] * count:
            began = live.now
            outputs = _outputs(subject, batch)
            kept = live.now - began
            updater.backward(_loss(outputs))
            del outputs
        return kept

    return passes


def _low_passes(subject: PlannedRun, live: LiveBytes, largest: Trajectories) -> UpdateBytes | None:
    """Run the passes of a micro-batch with the weights that `fsdp` gathers in 16 bits; None if there are none."""
    policy = subject.policy
    found = {id(each): each for block in find_blocks(policy) for each in low_weights(block)}
    places = [
        (part, name, weight)
        for part in policy.module.modules()
        for name, weight in part.named_parameters(recurse=False)
        if id(weight) in found
    ]
    if not places:
        return None
    try:
        for part, name, weight in places:
            setattr(part, name, torch.nn.Parameter(weight.detach().bfloat16(), requires_grad=weight.requires_grad))
        before = live.restart()
        outputs = _outputs(subject, largest)
        kept = live.now - before
        torch.autograd.backward(_loss(outputs))
        del outputs
        most = live.peak - before
        gradients = held(*(each.grad for each in policy.module.parameters()))
    finally:
        for part, name, weight in places:
            setattr(part, name, weight)
        policy.module.zero_grad(set_to_none=True)
    return UpdateBytes(kept, most, gradients)


def _tensor_passes(
    subject: PlannedRun, live: LiveBytes, found: UpdateBytes, layers: dict[str, str], largest: Trajectories, micro: int
) -> TensorPasses:
    """Run the passes of micro-batches with parts of layers and the rows of all processes."""

    def run() -> tuple[int, int]:
        began = live.now
        outputs = _outputs(subject, largest)
        kept = live.now - began
        torch.autograd.backward(_loss(outputs))
        del outputs
        return kept, live.peak

    return measure_tensor_passes(subject, live, found, layers, run, micro)


def _outputs(subject: PlannedRun, batch: Trajectories) -> PolicyOutputs | torch.Tensor:
    """Return what a policy or a scorer computes of a micro-batch for its loss."""
    options = {"entropy": True} if subject.workload.entropy else {}
    outputs: PolicyOutputs | torch.Tensor = subject.policy.score(batch, **options)
    return outputs


def _loss(outputs: PolicyOutputs | torch.Tensor) -> torch.Tensor:
    """Return the sum of all outputs that a loss may depend on."""
    if isinstance(outputs, torch.Tensor):
        return outputs.sum()
    heads = [each for each in outputs.heads.values() if each.requires_grad]
    arrays = (outputs.logprobs, outputs.values, outputs.entropy, *heads)
    terms = [array.sum() for array in arrays if array is not None]
    return torch.stack(terms).sum()


def _trunk_cache(subject: PlannedRun, live: LiveBytes) -> int:
    """Return the bytes of the frozen trunk's outputs for the sequences of a step, which are cached during the step."""
    room = getattr(subject.chosen.architecture.options, "trunk_cache_gb", 0.0)
    if not room or all(parameter.requires_grad for parameter in subject.policy.module.parameters()):
        return 0
    num = subject.share(subject.workload.num_held or subject.workload.batch_size)
    batch = pieces(subject, learned(subject), 1)[0]
    with subject.policy.training_step(), torch.no_grad():
        before = live.now
        subject.policy.score(batch)
        kept = (live.now - before) * num // len(batch)
    return min(kept, int(room * 1e9))


def measure_rehearsal(subject: PlannedRun, rehearsal: Rehearsal, live: LiveBytes) -> Raw:
    """Run the parts of one training step on fake tensors; called inside `fake_tensors`.

    Args:
        subject: the planned run.
        rehearsal: the parts.
        live: counts the bytes of its tensors.
    """
    module = subject.policy.module
    weights = [each for part in (module, *rehearsal.frozen) for each in parameters_of(part)]
    named = subject.optimizers.get(subject.optimizer)
    with no_garbage():
        updater = Updater(subject.policy, subject.optimizer, subject.ranks, total_updates=MANY, optimization=named)
        draws = tuple(
            _rehearsed(name, run, rehearsal.sampled_at_once, live) for name, run in rehearsal.sampling.items()
        )
        found = update(live, updater, _rehearse(rehearsal, live, updater))
    return Raw(
        sizes=sizes_of(subject.policy, low=subject.ranks.mixed_precision == "bf16"),
        reference=0,
        rewards=0, rollouts=rehearsal.num_held_bytes, trunk=0, draws=Draws(draws, 0), judging=(),
        update=found, low=None, num_micro=rehearsal.num_passes,
        recomputes=bool(subject.settings.model.get("gradient_checkpointing")),
        beside=held(*weights) - held(*parameters_of(module)),
    )  # fmt: skip


def _rehearsed(name: str, run: Callable[[], None], size: int, live: LiveBytes) -> Draw:
    before = live.restart()
    run()
    peak = live.peak - before
    return Draw(name, size, {"outputs and activations": peak}, peak, live.holes)


def _rehearse(rehearsal: Rehearsal, live: LiveBytes, updater: Updater) -> Callable[[], int]:
    """Return a function that runs the passes of the largest micro-batch, twice if a step has more than one."""

    def passes() -> int:
        kept = 0
        for _ in range(min(rehearsal.num_passes, 2)):
            began = live.now
            loss = rehearsal.loss()
            kept = live.now - began
            updater.backward(loss)
            del loss
        return kept

    return passes
