"""Rewards for every law about them."""

NAMES = (
    "right", "right_later", "too_few", "text", "infinite", "silent", "random_one", "hashing", "ranked", "whitened",
    "first_letter", "averaging", "counting_columns", "spoiling_columns", "spoiling_tokens",
    "closing", "closed_for_good",
)  # fmt: skip
COMPONENTS = [
    *(("rewards", name, f"wrong_rewards:{name}", None) for name in NAMES),
    ("rewards", "counting", "wrong_rewards:counting", "wrong_rewards:Words"),
]
