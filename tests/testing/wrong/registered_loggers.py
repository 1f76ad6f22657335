"""Loggers for every law about them."""

NAMES = (
    "Right", "Curious", "Finite", "Table", "Scored", "Counting", "Popping", "Cutting", "Astray", "Clingy", "Untouched",
    "Open", "OpenAfterCrash", "Running", "Service", "Overwriting", "Refusing", "Declared", "Beside",
    "OpenBeside", "OverwritingBeside", "Forgetting", "ForgettingBeside",
)  # fmt: skip
COMPONENTS = [
    *(("loggers", name.lower(), f"wrong_loggers:{name}", None) for name in NAMES),
    ("loggers", "elsewhere", "wrong_loggers:Right", "wrong_loggers:Where"),
]
