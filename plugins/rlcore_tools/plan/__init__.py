"""Estimate the memory that a run takes on each device before it is started; see `docs/memory.md`.

`command.py` is `rlcore plan`. `planned_run.py` builds the run's policy and components on the fake tensors of
`fake_tensors.py`; `phases.py` runs one training step and measures the peak memory of each phase, `draws.py` that of
sampling; `strategies.py` arranges it as `run.shard` divides it; `advice.py` changes one option at a time and estimates
again; `report.py` formats the estimate. `serving.py` reads where a sampler samples, `engines.py` and `elsewhere.py` are
what that takes there and on a rank; `tensor_passes.py` measures the passes of `run.shard=tp`. `wire.py`,
`operations.py` and `round_time.py` are the arithmetic of a plan for several machines, which `cluster.py` puts together
and `cluster_report.py` formats.
"""
