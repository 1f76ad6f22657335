"""Commands around a run.

`preview_command.py` is `rlcore preview`. `equal_rows.py` reads the rows of a configuration as its run would, without a
model; `shown_rows.py` shows which tokens of each row are trained, sampled and dropped.
"""
