"""Ray for rlcore: rollouts from actors on the machines of a cluster, and a launcher of a run's processes on them."""
