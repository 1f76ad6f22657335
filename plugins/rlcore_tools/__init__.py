"""Commands around a run.

`preview_command.py` is `rlcore preview`. `planned_data.py` reads the rows of a configuration as its run would, without
a model; `shown_rows.py` says of each row what is trained, sampled and dropped, and `screen.py` prints it.
`first_rows.py` logs the first rows of a run and adds them to its report.
"""
