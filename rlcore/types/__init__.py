"""The data types of a run: trajectories, prompts, rows to train on and policy outputs."""

from rlcore.types.episodes import Episodes
from rlcore.types.training_rows import (
    RESERVED_COLUMNS,
    UNLABELLED,
    LabelledSample,
    Pair,
    Prompt,
    Sample,
    SampleReward,
    SteppedSample,
    is_conversation,
    sequences_of,
    stack_groups,
    stack_samples,
    without_none,
)
from rlcore.types.trajectories import PolicyOutputs, Trajectories, grouped, tensor_on, to_device

Metrics = dict[str, float]

__all__ = [
    "RESERVED_COLUMNS",
    "UNLABELLED",
    "Episodes",
    "LabelledSample",
    "Metrics",
    "Pair",
    "PolicyOutputs",
    "Prompt",
    "Sample",
    "SampleReward",
    "SteppedSample",
    "Trajectories",
    "grouped",
    "is_conversation",
    "sequences_of",
    "stack_groups",
    "stack_samples",
    "tensor_on",
    "to_device",
    "without_none",
]
