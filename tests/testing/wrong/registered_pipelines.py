"""Pipelines for every law about them."""

NAMES = (
    "triples", "reads_none", "dropping", "textless", "empty", "numpy_tokens", "listed", "beyond", "sorting", "padding",
    "shuffling", "forgetful", "short_mask", "numbers", "all_chosen", "none_chosen", "spoiling", "endless", "asserting",
    "taking_nothing", "indexing", "vague", "stripping", "ranked", "ranked_in_lists", "half_chosen",
)  # fmt: skip
COMPONENTS = [
    *(("pipelines", name, f"wrong_pipelines:{name}", None) for name in NAMES),
    ("pipelines", "right", "wrong_pipelines:right", "wrong_pipelines:Prefix"),
]
