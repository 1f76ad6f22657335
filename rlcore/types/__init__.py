"""The data types of a run: trajectories, prompts, rows to train on and policy outputs."""

from collections.abc import Mapping
from typing import Any

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
"""Numbers by name, such as `loss/policy`."""
Row = Mapping[str, Any]
"""A row of data or of a log: its values by column."""
Message = Mapping[str, Any]
"""A message of a conversation: `role`, `content`, and what else its format has, such as `tool_calls`."""
Options = Mapping[str, Any]
"""Options by name, in nested mappings, as a configuration file holds them."""
State = dict[str, Any]
"""What a checkpoint holds of one part: nested dicts, lists, numbers, strings and tensors."""

__all__ = [
    "RESERVED_COLUMNS",
    "Episodes",
    "Message",
    "Metrics",
    "Options",
    "PolicyOutputs",
    "Prompt",
    "Row",
    "Sample",
    "SampleReward",
    "State",
    "Trajectories",
    "grouped",
    "is_conversation",
    "sequences_of",
    "stack_groups",
    "stack_samples",
    "tensor_on",
    "to_device",
    "without_none",
]  # fmt: skip
