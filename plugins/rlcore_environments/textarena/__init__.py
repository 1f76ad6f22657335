"""Games of TextArena as an environment: alone, or against players that are functions."""
