"""What training samples: kept in rollouts.jsonl of a run's folder, and shown by `rlcore rollouts`."""
