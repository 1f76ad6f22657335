"""Estimate the memory a run takes of each device, before it is started; see `docs/memory.md`.

`command.py` is `rlcore plan`. `subject.py` builds what a run would build, on the fake tensors of `fake_tensors.py`;
`phases.py` goes through one step of it and notes the most memory that each phase takes, `draws.py` for sampling;
`advice.py` changes one option at a time and estimates again; `report.py` writes what was found.
"""
