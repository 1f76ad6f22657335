"""Text of models as a page shows it: as it looks, with only those characters escaped that could deceive a reader.

A terminal obeys control characters, so `rlcore.safe_text.visible` escapes all that is not plainly printable. A page
does not: tabs and wide spaces are harmless there, and joiners and marks of direction are part of words in many scripts.
"""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"
_MARKS = "\u200e\u200f\u061c"


def readable(text: object) -> str:
    r"""Return text for a page.

    Kept are line breaks, tabs, spaces of every width, joiners between characters of scripts that join or between
    pictures, and marks of direction beside text from right to left. Escaped are other control and format characters,
    such as overrides of the direction, zero-width spaces, joiners within Latin words, and lone surrogates.
    """
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    return "".join(
        c if c.isprintable() or _is_harmless(whole, i) else c.encode("unicode_escape").decode()
        for i, c in enumerate(whole)
    )


def _is_harmless(text: str, i: int) -> bool:
    character = text[i]
    if character in "\n\t" or unicodedata.category(character) == "Zs":
        return True
    before, after = text[i - 1 : i], text[i + 1 : i + 2]
    if character in _JOINERS:
        return _joins(before) and (_joins(after) or character == "\u200d")
    return character in _MARKS and (_is_from_the_right(before) or _is_from_the_right(after))


def _joins(character: str) -> bool:
    """Return whether a character is a picture, or of a script whose letters change beside a joiner."""
    if not character or character.isascii():
        return False
    category = unicodedata.category(character)
    if category in ("So", "Sk", "Mn", "Mc"):
        return True
    return category in ("Lo", "Lm") and unicodedata.bidirectional(character) in ("AL", "L", "NSM")


def _is_from_the_right(character: str) -> bool:
    return character != "" and unicodedata.bidirectional(character) in ("R", "AL", "AN")
