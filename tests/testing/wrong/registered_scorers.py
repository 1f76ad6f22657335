"""Scorers, one for each law that they break."""

NAMES = (
    "Constant", "EndOfRow", "PadsWithEos", "HeadUnused", "OwnModule", "HeadLost", "LoadsUnnoticed", "HeadAnew", "Stays",
)  # fmt: skip
COMPONENTS = [
    (
        "architectures",
        f"scores-{name}",
        f"wrong_scorers:{name}.build",
        "rlcore_reward.config:SequenceScorerConfig",
    )
    for name in NAMES
]
