"""Commands for every law about them."""

NAMES = ("right", "bare", "silent", "reading", "leaving", "unexplained", "percent", "swallowing", "scolding")
COMPONENTS = [("commands", name, f"wrong_commands:{name}", None) for name in NAMES]
