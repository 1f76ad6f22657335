"""The command `rlcore doctor`: a report on versions, the machine and plugins; no module here imports torch."""
