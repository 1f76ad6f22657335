"""Sampling outside the process that trains: vLLM and other servers, clusters of Ray, rounds that are sampled ahead."""
