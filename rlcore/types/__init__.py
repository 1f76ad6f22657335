"""The data types of a run: trajectories, prompts, rows to train on and policy outputs."""

from rlcore.types.episodes import Episodes
from rlcore.types.training_rows import (
    RESERVED_COLUMNS,
    Prompt,
    Sample,
    SampleReward,
    is_conversation,
    sequences_of,
    stack_groups,
    stack_samples,
    without_none,
)
from rlcore.types.trajectories import PolicyOutputs, Trajectories, grouped, tensor_on, to_device

Metrics = dict[str, float]

__all__ = [
    "RESERVED_COLUMNS", "Episodes", "Metrics", "PolicyOutputs", "Prompt", "Sample", "SampleReward", "Trajectories",
    "grouped", "is_conversation", "sequences_of", "stack_groups", "stack_samples", "tensor_on", "to_device",
    "without_none",
]  # fmt: skip
