"""Print what several ranks write at the same time, so that no line of one is cut by another's."""

from __future__ import annotations

import sys

from rlcore_ray.agent import ERR


class Lines:
    """Prints the whole lines of each rank as they arrive, and the rest when the rank ends."""

    def __init__(self) -> None:
        self._rest: dict[tuple[int, int], bytes] = {}

    def write(self, rank: int, number: int, text: bytes) -> None:
        """Print the lines that `text` ends; a carriage return, which a progress bar writes, ends one too.

        Args:
            rank: who has written it.
            number: of the standard stream.
            text: a part of what was written, in the order of time.
        """
        whole = self._rest.pop((rank, number), b"") + text
        end = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        if end < len(whole):
            self._rest[rank, number] = whole[end:]
        _print(number, whole[:end])

    def end(self, rank: int) -> None:
        """Print what a rank has written after its last line."""
        for key in [key for key in self._rest if key[0] == rank]:
            _print(key[1], self._rest.pop(key))


def _print(number: int, text: bytes) -> None:
    stream = sys.stderr if number == ERR else sys.stdout
    stream.buffer.write(text)
    stream.flush()
