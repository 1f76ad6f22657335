"""Players of the tests."""

from __future__ import annotations

import random
import re


def raises_the_bid(observation: str, rng: random.Random) -> str:
    """Play Liar's Dice: bid one more of any face; call above five."""
    bids = re.findall(r"\[Bid: (\d+), (\d+)\]", observation)
    quantity = int(bids[-1][0]) + 1 if bids else 1
    return "[Call]" if quantity > 5 else f"[Bid: {quantity}, {rng.randint(1, 6)}]"


def takes_a_free_cell(observation: str, rng: random.Random) -> str:
    """Play tic-tac-toe: any of the moves that the game lists."""
    return rng.choice(re.findall(r"'(\[\d\])'", observation.rpartition("Available")[2]))


def does_nothing(observation: str, rng: random.Random) -> None:
    """Return no text."""
