"""The random walks of docs/examples: the task, and the settings of PPO."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.places import EXAMPLES

if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))

from walks import END_ID, PAD_ID, RandomWalks, letter, model_config, tokenizer

__all__ = ["END_ID", "PAD_ID", "RandomWalks", "letter", "model_config", "ppo_options", "tokenizer"]


def ppo_options() -> dict[str, Any]:
    """Return the trainer's options in randomwalks.py."""
    from randomwalks import PPO  # it imports rlcore, which this module need not

    options: dict[str, Any] = PPO
    return options
