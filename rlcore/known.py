"""Components that are published for rlcore, so that an unknown name can be answered with the package to install."""

from __future__ import annotations

KNOWN = {
    "trainers": {
        "ppo": "rlcore-ppo",
        "sft": "rlcore-sft",
        "ilql": "rlcore-ilql",
        "reinforce": "rlcore-reinforce",
        "rft": "rlcore-rft",
    },
    "loggers": {"tensorboard": "rlcore-tensorboard", "wandb": "rlcore-wandb"},
    "rollout_stores": {"disk": "rlcore-disk-store"},
}
"""By kind: short name → the dist that brings it."""
