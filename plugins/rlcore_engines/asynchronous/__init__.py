"""Sample later rounds while the policy learns (`run.asynchronous`).

The protocols are `AsynchronousSampler`, a sampler that begins a round and returns at once, and `ForeseeingTrainer`, a
trainer that knows its next prompts.
"""

from rlcore_engines.asynchronous.protocols import AsynchronousSampler, ForeseeingTrainer

__all__ = ["AsynchronousSampler", "ForeseeingTrainer"]
