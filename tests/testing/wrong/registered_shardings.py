"""Strategies that divide a model, one for each law that they break."""

COMPONENTS = [
    ("shardings", "unaveraged", "wrong_shardings:build_unaveraged", None),
    ("shardings", "silent", "wrong_shardings:build_silent", None),
]
