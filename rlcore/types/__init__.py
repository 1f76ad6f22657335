"""The data types of a run: trajectories, prompts, rows to train on and policy outputs."""

from rlcore.types.trajectories import (
    RESERVED_COLUMNS,
    Episodes,
    PolicyOutputs,
    Prompt,
    Sample,
    SampleReward,
    Trajectories,
    grouped,
    is_conversation,
    sequences_of,
    stack_groups,
    stack_samples,
    tensor_on,
    to_device,
    without_none,
)

Metrics = dict[str, float]

__all__ = [
    "RESERVED_COLUMNS", "Episodes", "Metrics", "PolicyOutputs", "Prompt", "Sample", "SampleReward", "Trajectories",
    "grouped", "is_conversation", "sequences_of", "stack_groups", "stack_samples", "tensor_on", "to_device",
    "without_none",
]  # fmt: skip
