"""The data types of a run: trajectories, prompts, rows to train on and policy outputs."""

from rlcore.types.messages import is_conversation, without_none
from rlcore.types.policy_outputs import Output, PolicyOutputs
from rlcore.types.training_rows import (
    RESERVED_COLUMNS,
    UNLABELLED,
    LabelledSample,
    Pair,
    Prompt,
    Sample,
    SteppedSample,
    sequences_of,
    stack_groups,
    stack_samples,
)
from rlcore.types.trajectories import Trajectories, grouped, tensor_on, to_device

Metrics = dict[str, float]

__all__ = [
    "RESERVED_COLUMNS",
    "UNLABELLED",
    "LabelledSample",
    "Metrics",
    "Output",
    "Pair",
    "PolicyOutputs",
    "Prompt",
    "Sample",
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
