"""Time one command of this interpreter's environment in a fresh process; prints one line of JSON.

    python time_command.py COMMAND [ARGUMENT ...]       COMMAND is `python`, or a program installed beside it

The command runs once before it is timed, so that its files are in the page cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Run, time, and print."""
    name, *rest = sys.argv[1:]
    program = sys.executable if name == "python" else str(Path(sys.executable).parent / name)
    environment = {**os.environ, "COLUMNS": "120"}
    for _ in range(2):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([program, *rest], env=environment, check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = after.ru_maxrss / 1024
    print(json.dumps({"wall_s": round(wall, 4), "cpu_s": round(cpu, 4), "peak_rss_mb": round(peak, 1)}))


if __name__ == "__main__":
    main()
