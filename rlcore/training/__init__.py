"""One run, from what the user passed to the last yield: build, loop, evaluate, resume."""
