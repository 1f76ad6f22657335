"""Two versions of a repository against each other: `rlcore bench --against GITREF`, and duels of two programs."""
