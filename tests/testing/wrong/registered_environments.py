"""Environments for every law about them."""

NAMES = {
    "right": "Right", "not-a-number": "NotANumber", "raising": "Raising", "own-random": "OwnRandom",
    "hashing": "Hashing", "shared": "Shared", "global-seed": "GlobalSeed", "unclosable": "Unclosable",
    "endless": "Endless", "waiting": "Waiting",
}  # fmt: skip
COMPONENTS = [("environments", name, f"wrong_environments:{target}", None) for name, target in NAMES.items()]
