"""What a rank holds while the weights of a sampler are renewed that samples elsewhere."""

from __future__ import annotations

from rlcore_tools.plan.serving import NOTHING, WHOLE
from rlcore_tools.plan.sizes import Placement
from rlcore_tools.plan.step_memory import Raw

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
    if serving.reads == WHOLE:
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
