"""What the laws are checked with: small runs, probes, child processes."""
