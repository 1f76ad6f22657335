"""Tests of preloaded Python processes: they behave like newly started ones, except for imported libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from depths import by_day
from warm_python import WarmPython

TELL = """
import json, os, signal, sys
from pathlib import Path
print(json.dumps([sys.argv, sys.path, str(Path.cwd()), dict(os.environ), __name__, __file__, sys.stdin.read()]))
print(sorted(name for name in sys.modules if name.startswith(("rlcore", "warm", "pytest"))))
print("a word apart", file=sys.stderr)
"""
ENDINGS = {
    "at the end": "",
    "exit": "sys.exit(3)",
    "message": "sys.exit('a reason')",
    "error": "raise ValueError('wrong')",
    # What torch imports when Python ends, which the server has imported, may change the exit code of an interrupt.
    "interrupt": "os.environ['DS_ACCELERATOR'] = 'cpu'\n"
    "import deepspeed, torch._dynamo\nos.kill(os.getpid(), signal.SIGINT)",
    "killed": "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", by_day(ENDINGS, ["message", "interrupt", "killed"]))
@pytest.mark.parametrize("arguments", [["tell.py", "a b", "-c"], ["-m", "tell", "a b", "-c"]], ids=["file", "module"])
def test_a_forked_process_equals_one_that_python_started(
    ending: str, arguments: list[str], tmp_path: Path, warm_python: WarmPython
) -> None:
    (tmp_path / "tell.py").write_text(TELL + ENDINGS[ending])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "more"), "PLACE": "here"}
    warm = warm_python.run(arguments, cwd=tmp_path, environment=environment)
    new = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert warm.returncode == new.returncode
    assert what_is_told(warm.stdout) == what_is_told(new.stdout)
    assert warm.stderr.splitlines()[0] == new.stderr.splitlines()[0] == "a word apart"
    assert warm.stderr.splitlines()[-1] == new.stderr.splitlines()[-1]


def what_is_told(text: str) -> list[object]:
    told, modules = text.splitlines()
    argv, path, cwd, environment, name, file, read = json.loads(told)
    environment.pop("LC_CTYPE", None)  # set by an interpreter that starts without a locale
    return [argv, path, cwd, environment, name, Path(cwd, file), read, modules]


@pytest.mark.slow
def test_concurrent_processes_get_their_own_output(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "who.py").write_text("import os, sys\nprint(os.environ['WHO'])\nsys.exit(int(os.environ['WHO']))\n")
    done = warm_python.run_together(["who.py"], cwd=tmp_path, environments=[{"WHO": "4"}, {"WHO": "5"}], timeout_s=600)
    assert [(each.returncode, each.stdout) for each in done] == [(4, "4\n"), (5, "5\n")]


@pytest.mark.slow
def test_forked_processes_have_different_string_hashes(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "order.py").write_text("print(hash('a word'))\n")
    done = warm_python.run_together(["order.py"], cwd=tmp_path, environments=[os.environ] * 2, timeout_s=600)
    assert done[0].stdout != done[1].stdout


def test_a_process_that_takes_too_long_is_killed_with_its_children(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "stay.py").write_text(
        "import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        warm_python.run(["stay.py"], cwd=tmp_path, environment=os.environ, timeout_s=0.5)
    left = Path("/proc", caught.value.stdout.strip(), "status")
    assert not left.exists() or "(zombie)" in left.read_text()
    assert warm_python.run(["-m", "this"], cwd=tmp_path, environment=os.environ).returncode == 0


@pytest.mark.slow
def test_no_two_forked_processes_draw_the_same_random_numbers(tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "draw.py").write_text(
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    )
    done = warm_python.run_together(["draw.py"], cwd=tmp_path, environments=[os.environ] * 2, timeout_s=600)
    first, second = (each.stdout.split() for each in done)
    assert len(first) == len(second) == 3
    assert not set(first) & set(second)


@pytest.mark.slow
def test_an_interrupted_test_leaves_no_process_running(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "stay.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    here = os.getpid()

    def interrupt() -> None:
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.01)
        os.kill(here, signal.SIGINT)

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    warm = WarmPython(tmp_path)  # a separate one, because an interrupted caller does not read the answer
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            warm.run(["stay.py"], cwd=tmp_path, environment=os.environ)
    finally:
        signal.signal(signal.SIGINT, usual)
        warm.close()
    process = Path("/proc", begun.read_text())
    ended_by = time.monotonic() + 300.0
    while process.exists() and time.monotonic() < ended_by:  # it was killed, and is gone when its parent notices
        time.sleep(0.01)
    assert not process.exists()
