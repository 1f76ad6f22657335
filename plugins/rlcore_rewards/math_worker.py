"""A program that compares answers as mathematics, one line of JSON in and one out; `math_processes` starts it.

Parsing is stopped by a signal, which needs the main thread of a process. Numbers such as 10^(10^10) fill the memory,
which is limited, or keep the processor in code that no signal stops: then the parent ends this process.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from typing import Any


class _TooLong(BaseException):
    """The time limit of a comparison; not an Exception, which libraries would catch."""


def _stop(_signal: int, _frame: object) -> None:
    raise _TooLong


def main(options: dict[str, Any]) -> None:
    """Answer each line of the standard input."""
    limit = options["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no reply
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    signal.signal(signal.SIGALRM, _stop)

    def parsed(text: str) -> list[Any]:
        """Return what a text contains as mathematics; nothing if only its characters could be read."""
        found = parse(text, parsing_timeout=None, raise_on_error=False)
        return list(found) if any(not isinstance(each, str) for each in found) else []

    def compare(gold: str, answer: str) -> dict[str, Any]:
        right = parsed(gold) or parsed(f"${gold}$")
        given = parsed(answer)
        is_equal = bool(right and given) and verify(
            right, given, float_rounding=options["decimals"], strict=options["strict"], timeout_seconds=None,
            raise_on_error=False,
        )  # fmt: skip
        return {"gold": bool(right), "answer": bool(given), "equal": bool(is_equal)}

    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, options["timeout_s"])
        try:
            reply = compare(**json.loads(line))
        except (_TooLong, MemoryError, RecursionError):
            reply = {"gold": True, "answer": False, "equal": False, "slow": True}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
