"""Estimate the memory that a run takes on each device before it is started; see `docs/memory.md`.

`command.py` is `rlcore plan`. `planned_run.py` builds the run's policy and components on the fake tensors of
`fake_tensors.py`; `phases.py` runs one training step and measures the peak memory of each phase;
`strategies.py` arranges it as `run.shard` divides it; `advice.py` changes one option at a time and estimates
again. `serving.py` reads where a sampler samples, and `engines.py` is what that takes there. `wire.py` is the
arithmetic of a plan for several machines, which `cluster.py` puts together.
"""
