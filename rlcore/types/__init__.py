"""The data types of a run: trajectories, prompts, rows to train on and policy outputs."""

from rlcore.types.policy_outputs import Output, PolicyOutputs
from rlcore.types.training_rows import LabelledSample, Pair, Prompt, Sample, SteppedSample, sequences_of
from rlcore.types.trajectories import Trajectories, grouped, tensor_on, to_device

Metrics = dict[str, float]

__all__ = [
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
    "sequences_of",
    "tensor_on",
    "to_device",
]
