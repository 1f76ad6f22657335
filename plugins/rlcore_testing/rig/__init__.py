"""Tools of the laws: short runs, probes, child processes."""
