"""Run one rank: `python -P -m rlcore_engines.ray.rank WORDS...` is `rlcore WORDS...`, and ends after its actor.

Ray's processes block SIGINT, and what they start inherits that.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Return the exit code of the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    from rlcore_shard.local_processes import follow_launcher

    follow_launcher()
    from rlcore.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
