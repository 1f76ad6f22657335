"""Speed and memory of rlcore beside other programs that do the same work: `python -m benchmarks`."""
