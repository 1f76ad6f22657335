"""The command `rlcore rollouts`: list runs, and print their rollouts and completions."""
