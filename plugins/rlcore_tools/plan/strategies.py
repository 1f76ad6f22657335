"""What a rank holds under each strategy of sharding, from the memory of one process with the whole model.

The formulas follow the order in which torch's `fully_shard` and DeepSpeed allocate and free. Tests compare them with
the bytes of runs on one to four processes: `tests/e2e/test_planned_ranks.py` of the repository, and of this package
`test_served_ranks.py` and `test_tensor_ranks.py`.

Rajbhandari et al. 2019, arXiv:1910.02054, section 5 and figure 1; Zhao et al. 2023, arXiv:2304.11277.

Also in this file: what a rank holds while the weights of a sampler are renewed that samples elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlcore_tools.plan.model_sizes import FLOAT32, Group, Weight
from rlcore_tools.plan.serving import NOTHING
from rlcore_tools.plan.serving import WHOLE as READS_WHOLE
from rlcore_tools.plan.sizes import FSDP, TENSOR, WHOLE, ZERO2, ZERO3, Placement
from rlcore_tools.plan.step_memory import ACTIVATIONS, OTHERS, TRUNK, Measured, Phase, Raw

ASSEMBLING = 4
"""Copies of a tensor at once while it is gathered, put together and written, as counted with 2 and 3 ranks."""
GATHERED = "whole weights gathered"
ONE_TENSOR, CHUNK = "one tensor at a time, which is gathered", "weights that process 0 collects"
BLOCKS_CHECKED = "whole weights of blocks, to check log-probs"
CHECKED = "one pass to check log-probs"
AHEAD, ENGINE = "copies of the weights that sample ahead", "a server on this device"
SENT = "a copy of the weights, which process 0 sends"


def renewing(raw: Raw, layout: Placement, *, is_cpu: bool) -> dict[str, int]:
    """Return the bytes of a rank beyond what it holds, by purpose, while the weights of a sampler are renewed.

    Process 0 collects whole tensors of divided weights in the CPU's memory for a file, which counts where that is the
    memory of its device, or on its device to send them. The check completes a block while the one before is freed.

    Args:
        raw: the memory of a process.
        layout: the strategy and the devices.
        is_cpu: whether the device's memory is that of the CPU.
    """
    assert raw.engines is not None  # noqa: S101  for the type checker
    serving, sizes = raw.engines.serving, raw.sizes
    if serving.reads == NOTHING:
        return {}
    if serving.reads == READS_WHOLE:
        return {GATHERED: sizes.completed(layout.strategy)} if layout.divides_weights else {}
    divides = layout.divides_weights
    compared = (raw.by_block if divides else raw.passes).checking
    checking = {CHECKED: compared} if compared else {}
    is_collected = (is_cpu and divides) or (serving.keeps and not serving.sleeps)
    streaming = {ONE_TENSOR: ASSEMBLING * sizes.largest} if divides else {}
    if is_collected and serving.chunk:
        streaming[CHUNK] = min(raw.engines.sent, serving.chunk)
    if checking and divides:
        checking[BLOCKS_CHECKED] = sizes.by_block(layout.strategy) + sizes.largest_block(layout.strategy)
    return max((streaming, checking), key=lambda parts: sum(parts.values()))


REDUCE_BUCKET = 500_000_000 * FLOAT32
"""Bytes of DeepSpeed's buffer of gradients at the most: `reduce_bucket_size` of `rlcore_shard.zero`."""
LIVE_BYTES, PREFETCH_BYTES = 1_000_000_000 * FLOAT32, 50_000_000 * FLOAT32
"""Bytes of whole weights that stage 3 keeps and gathers ahead at the most: DeepSpeed's `stage3_max_live_parameters` and
`stage3_prefetch_bucket_size`."""
BUCKETS, MEANWHILE = "gradients in the buffers of their exchange", "sampling, while the policy learns"
KEPT = "buffers kept by sampling"
BLOCKS = "whole weights and gradients of blocks and heads"
START, CHECKPOINT = "start", "checkpoint"


def model_states(
    stage: int, parameters: float, devices: int, *, weight: float = 4, gradient: float = 4, optimizer: float = 8
) -> float:
    """Return the bytes of weights, gradients and optimizer state of a rank.

    Args:
        stage: what is divided: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too.
        parameters: number of parameters that train.
        devices: number of ranks among which they are divided.
        weight: bytes of a weight.
        gradient: bytes of a gradient.
        optimizer: bytes of the optimizer's state of a parameter, further copies of the weight included.
    """
    of = [devices if stage >= first else 1 for first in (3, 2, 1)]
    return parameters * (weight / of[0] + gradient / of[1] + optimizer / of[2])


def arrange(raw: Raw, layout: Placement, *, is_cpu: bool) -> Measured:
    """Return the memory of a rank under a strategy, phase by phase.

    Args:
        raw: the memory of one process with the whole model, at the share of the rows that a rank has.
        layout: the strategy and the devices.
        is_cpu: whether the device's memory is that of the CPU, so that `run.offload` moves nothing.
    """
    held, host = _held(raw, layout, is_cpu=is_cpu)
    beside = sum(size for name, size in held.items() if name != KEPT)
    total = beside + held[KEPT]
    # Weights that sampled stay whole until the update; otherwise passes complete one block at a time.
    is_whole = bool(raw.draws.phases) and (raw.engines is None or raw.engines.serving.reads == READS_WHOLE)
    policy = 0
    if layout.divides_weights:
        policy = (raw.sizes.completed if is_whole else raw.sizes.by_block)(layout.strategy)
    phases = _sampling(raw, layout, policy, beside, is_cpu=is_cpu)
    passes = [(each, 0) for each in raw.judging] + _scoring(raw, layout, is_whole=is_whole)
    for (name, size, holes), more in passes:
        parts = {GATHERED: policy + more} if policy else {}
        phases.append(Phase(name, {**parts, "one pass": size}, total + policy + more + size, holes))
    parts = update_parts(raw, layout)
    if raw.ahead and raw.engines is None:
        parts[MEANWHILE] = max((each.peak for each in raw.draws.phases), default=0)
    phases.append(Phase("update", parts, total + sum(parts.values()), raw.update.holes))
    if layout.world > 1 or layout.strategy != WHOLE:
        phases.insert(0, _start(raw, layout, held))
        phases.append(_checkpoint(raw, layout, total, is_cpu=is_cpu))
    return Measured(held, tuple(phases), raw.draws, host)


def _sampling(raw: Raw, layout: Placement, policy: int, beside: int, *, is_cpu: bool) -> list[Phase]:
    """Return the phases of sampling: in this process, or the renewal of the weights of what samples elsewhere."""
    copy = {AHEAD: raw.sizes.trained} if raw.ahead else {}  # of the round that is due
    if raw.engines is None:
        whole = ({GATHERED: policy} if policy else {}) | copy
        more = sum(whole.values())
        return [
            Phase(each.name, whole | each.parts, beside + more + each.peak, each.holes) for each in raw.draws.phases
        ]
    parts = renewing(raw, layout, is_cpu=is_cpu) | copy
    if raw.engines.is_shared and raw.engines.serving.sleeps:
        parts[ENGINE] = raw.engines.taken
    return [Phase(each.name, parts, beside + sum(parts.values()), 0) for each in raw.draws.phases]


def _scoring(raw: Raw, layout: Placement, *, is_whole: bool) -> list[tuple[tuple[str, int, int], int]]:
    """Return the passes that score, each with the bytes of a reference's weights that are complete at its peak.

    Those outside its blocks are complete throughout, and one block in its own passes. Where the policy completes one
    block at a time too, that one is counted there.
    """
    if not layout.divides_weights:
        return [(each, 0) for each in raw.passes.scoring]
    found = raw.passes if is_whole else raw.by_block
    passes = [(each, raw.sizes.reference_by_block(beside_block=True)) for each in found.scoring]
    for (name, _, holes), _ in passes[:1] if is_whole else ():
        passes.append(((name, found.reference, holes), raw.sizes.reference_by_block(beside_block=False)))
    return sorted(passes, key=lambda each: each[0][1] + each[1])[-1:]


def _held(raw: Raw, layout: Placement, *, is_cpu: bool) -> tuple[dict[str, int], int]:
    """Return the bytes held throughout by purpose, and the bytes of the CPU's memory that `run.offload` takes."""
    sizes, number = raw.sizes, layout.group
    trained = [each for each in sizes.weights if each.trains]
    frozen = [each for each in sizes.weights if not each.trains]
    cut = number if layout.divides_weights else 1
    parts = {
        "parameters that train": _kept(trained, cut, layout.strategy),
        "parameters that are frozen": _kept(frozen, cut, layout.strategy) + sizes.buffers + raw.beside,
        "reference": (
            _kept(sizes.reference, cut, _beside(layout.strategy)) if layout.divides_weights else raw.reference
        ),
        "reward models": raw.rewards,
        "optimizer": _moments(raw, layout),
        "second copies of weights that a rank steps": (
            _kept(trained, number, layout.strategy) if layout.strategy in (ZERO2, ZERO3) else 0
        ),
        BUCKETS: _buckets(raw, layout),
        "rollouts": raw.rollouts,
        TRUNK: raw.trunk,
        AHEAD: raw.ahead * sizes.trained,
        ENGINE: raw.engines.taken if raw.engines and raw.engines.is_shared and not raw.engines.serving.sleeps else 0,
        SENT: raw.engines.sent if raw.engines and raw.engines.serving.keeps and is_cpu else 0,
        KEPT: 0 if raw.engines else raw.draws.kept,
    }  # fmt: skip
    host = 0
    if layout.offload and not is_cpu:
        moved = ["optimizer", "second copies of weights that a rank steps"]
        moved += ["parameters that train", "parameters that are frozen", "reference"] if layout.divides_weights else []
        host = sum(parts[name] for name in moved)
        parts |= dict.fromkeys(moved, 0)
    return parts, host


def _kept(weights: Sequence[Weight], devices: int, strategy: str) -> int:
    """Return the bytes of a rank's parts: rows with `fsdp`, of layers alone with `tp`, elements with DeepSpeed."""
    if strategy == TENSOR:
        return sum(each.size // devices if each.in_layer else each.size for each in weights)
    if strategy == FSDP:
        return sum(each.share(devices) for each in weights)
    return -(-sum(each.size for each in weights) // devices)


def _beside(strategy: str) -> str:
    """Return the strategy by which the weights beside the model are divided, such as those of a reference."""
    return FSDP if strategy == TENSOR else strategy


def _moments(raw: Raw, layout: Placement) -> int:
    if layout.group == 1 or not raw.sizes.trained:
        return raw.moments
    trained = [each for each in raw.sizes.weights if each.trains]
    return raw.moments * _kept(trained, layout.group, layout.strategy) // raw.sizes.trained


def _buckets(raw: Raw, layout: Placement) -> int:
    """Return the bytes of gradients and their buffers that stay allocated between steps."""
    trained = raw.sizes.trained
    if layout.strategy == WHOLE:
        return trained if layout.world > 1 else 0
    if layout.strategy == ZERO3:
        return -(-trained // layout.group) + min(trained, REDUCE_BUCKET)
    return 0


def _whole(raw: Raw) -> int:
    return raw.sizes.whole + sum(each.size for each in raw.sizes.reference)


def _start(raw: Raw, layout: Placement, held: dict[str, int]) -> Phase:
    """Return the memory before the first step: the whole model, of which parts have been copied, or its rows alone."""
    later = sum(held[name] for name in ("optimizer", "rollouts", TRUNK, AHEAD, ENGINE, SENT, KEPT))
    is_whole = layout.divides_weights and not raw.reads_rows
    whole = {GATHERED: _whole(raw)} if is_whole else {}
    return Phase(START, whole, sum(held.values()) - later + sum(whole.values()), 0)


def _checkpoint(raw: Raw, layout: Placement, total: int, *, is_cpu: bool) -> Phase:
    """Return the memory of rank 0 while it writes a checkpoint."""
    parts = {}
    if layout.divides_weights:
        parts["the largest tensor, which is assembled"] = ASSEMBLING * raw.sizes.largest
    if layout.strategy in (ZERO2, ZERO3) and is_cpu:
        parts["whole moments on rank 0"] = raw.moments
    return Phase(CHECKPOINT, parts, total + sum(parts.values()), 0)


def update_parts(raw: Raw, layout: Placement) -> dict[str, int]:
    """Return the bytes at the worst moment of the passes with gradients and the optimizer's step, by purpose."""
    if layout.strategy == FSDP:
        return _fsdp_parts(raw, layout)
    if layout.strategy == TENSOR and raw.tensor is not None:
        return raw.tensor.update.parts()
    found, trained = raw.update, raw.sizes.trained
    if layout.world == 1 and layout.strategy == WHOLE:
        return found.parts()
    prior = trained if raw.num_micro > 1 else 0
    if layout.strategy == WHOLE:
        # DDP keeps gradients in its buffers; those of earlier micro-batches, not exchanged yet, are beside them.
        return _parts(prior, found.kept, max(found.top, found.step - found.gradients))
    part = -(-trained // layout.group)
    if layout.strategy == ZERO3:
        live = min(raw.sizes.whole, LIVE_BYTES) + min(raw.sizes.whole, PREFETCH_BYTES)
        return _most([{GATHERED: live} | _parts(0, found.kept, found.top), {"gradients": part}])
    bucket = min(trained, REDUCE_BUCKET)
    early, share = prior and part, bucket / max(trained, 1)
    return _most([
        _parts(early, found.kept, found.top),
        {"gradients": early, BUCKETS: 2 * bucket, ACTIVATIONS: round(found.kept * (1 - share))},
        {"gradients": early + round(part * (1 - share)), BUCKETS: 2 * bucket},
        {"gradients": 2 * part},
    ])  # fmt: skip


def _fsdp_parts(raw: Raw, layout: Placement) -> dict[str, int]:
    """Return the worst moment of a pass with `fully_shard`, which goes through the blocks forwards and backwards.

    In the backward pass of block i the weights of block i are whole, those of block i - 1 are being gathered, the
    gradients of block i are whole, and those of block i + 1 are in the buffer from which they are reduced.
    """
    found, sizes, number = raw.low or raw.update, raw.sizes, layout.group
    part = sum(each.share(number) for each in sizes.weights if each.trains)
    prior = part if raw.num_micro > 1 else 0
    nothing, rest = Group(0, 0, 0), sizes.rest
    blocks = [nothing, *sizes.blocks, nothing]
    reduced = max(sum(each.reduced for each in sizes.blocks) + rest.reduced, 1)
    again = found.top - found.kept if raw.recomputes else 0
    moments = [{BLOCKS: rest.whole + blocks[-2].whole} | _parts(prior, found.kept, found.top)]
    done = 0
    for index in range(len(sizes.blocks), 0, -1):
        own, before, after = blocks[index], blocks[index - 1], blocks[index + 1]
        kept = found.kept * index // len(sizes.blocks)
        whole = rest.whole + sizes.early + own.whole + before.whole + own.gradients + after.reduced
        moments.append({BLOCKS: whole} | _parts(max(prior, part * done // reduced), kept, kept + again))
        done += after.reduced
    ending = rest.whole + rest.gradients + rest.reduced + blocks[1].reduced
    step = max(found.step - found.gradients, 0) // number
    return _most([*moments, {BLOCKS: ending, "gradients": part}, {"gradients": part, OTHERS: step}])


def _parts(gradients: int, kept: int, top: int) -> dict[str, int]:
    return {"gradients": gradients, ACTIVATIONS: kept, OTHERS: top - kept}


def _most(moments: Sequence[dict[str, int]]) -> dict[str, int]:
    return max(moments, key=lambda parts: sum(parts.values()))
