"""Rollout stores, one for each law that they break."""

NAMES = (
    "Reversed", "Narrow", "Returning", "KeyErroring", "Remembering", "CountingBatches", "Widening", "Cleaning",
    "Bounded", "Reusing", "Spoiling", "Shared", "Shuffling", "Drawing", "DrawingFromNumpy", "Draining", "Growing",
    "Adding", "Elsewhere",
)  # fmt: skip
COMPONENTS = [("rollout_stores", name, f"wrong_stores:{name}", None) for name in NAMES]
