from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlcore.errors import PluginError, RewardError
from rlcore_rewards import code_tests as sandbox
from rlcore_rewards.code_tests import CodeTests
from rlcore_rewards.config import CodeTestsConfig

HAS_NAMESPACES = not sandbox.confine(sys.executable, isolate=True).problem
QUICK = {"isolation": "none", "timeout_s": 300.0}


def fenced(code: str) -> str:
    return f"Here it is:\n\n```python\n{code}\n```\nDone."


def score(output: str, tests: Any, **options: Any) -> float | None:
    (reward,) = CodeTests(CodeTestsConfig(**{**QUICK, **options}))(outputs=[output], tests=[tests])
    return reward


ADD = "def add(a, b):\n    return a + b"


@pytest.mark.slow
def test_the_reward_is_the_share_of_passed_statements() -> None:
    tests = ["assert add(1, 2) == 3", "assert add(1, 2) == 4", "assert add('a', 'b') == 'ab'", "add(1)"]
    assert score(fenced(ADD), tests) == 0.5
    assert score(fenced(ADD), tests, credit="all") == 0.0
    assert score(fenced(ADD), tests[:1], credit="all") == 1.0
    assert score(fenced(ADD), json.dumps(tests)) == 0.5
    assert score(fenced(ADD), "assert add(1, 2) == 3\nassert add(2, 2) == 4") == 1.0


@pytest.mark.slow
def test_programs_are_tested_by_what_they_print() -> None:
    code = "a, b = map(int, input().split())\nprint(a + b, ' ')\nprint()"
    tests = [{"input": "1 2\n", "output": "3"}, {"input": "1 2\n", "output": "4\n"}, {"input": "2 2", "output": 4}]
    assert score(fenced(code), tests) == pytest.approx(2 / 3)
    assert score(fenced(code), {"inputs": ["1 2", "5 5"], "outputs": ["3", "10"]}) == 1.0
    assert score(fenced("print(3)\nraise SystemExit(1)"), [{"input": "", "output": "3"}]) == 0.0
    assert score(fenced("print(3)\nraise SystemExit(0)"), [{"input": "", "output": "3"}]) == 1.0


def test_the_code_is_the_last_block_or_the_whole_output() -> None:
    tests = ["assert x == 2"]
    assert score("```\nx = 1\n```\n```python\nx = 2\n```", tests) == 1.0
    assert score("x = 2", tests) == 1.0
    assert score("```\nx = 2\n```", tests, find="whole") == 0.0
    assert score("", tests) == 0.0
    assert score("def (", tests) == 0.0


def test_a_prompt_without_tests_gets_no_reward() -> None:
    reward = CodeTests(CodeTestsConfig(**QUICK))
    tests = [None, [], " \n", ["assert x"]]
    assert reward(outputs=["x = 1"] * 4, tests=tests) == [None, None, None, 1.0]
    assert reward._untested.counts == {"outputs have no tests in the column 'tests', and get no reward": 3}


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "import os, sys\nos.write(int(sys.argv[1]), b'passed')\nos._exit(0)",
        "class Same:\n    __eq__ = None\nf = Same()",
    ],
)
def test_leaving_early_passes_no_statement(code: str) -> None:
    assert score(code, ["assert f() == 1"]) == 0.0


LIMITS = {
    "time": ("while True:\n    pass", {"timeout_s": 0.5}),
    "sleep": ("import time\ntime.sleep(60)", {"timeout_s": 0.5}),
    "memory": ("x = bytearray(300 * 2**20)", {"memory_mb": 256}),
    "files": ("f = [open('/dev/null') for _ in range(40)]", {"open_files": 32}),
    "file size": ("open('big', 'wb').write(bytes(3 * 2**20))", {"file_mb": 2}),
    "output": ("print('x' * 3 * 2**20)", {"file_mb": 2}),
    "recursion": ("def f():\n    f()\nf()", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_a_test_beyond_a_limit_fails_and_the_next_one_runs(name: str) -> None:
    code, options = LIMITS[name]
    reward = CodeTests(CodeTestsConfig(**{**QUICK, **options}))
    assert reward(outputs=[code, "x = 1"], tests=[["assert 1"], ["assert x"]]) == [0.0, 1.0]
    late = {f"tests were ended at code_tests.timeout_s = {options.get('timeout_s', 0):g}, and count as failed": 1}
    assert reward._tally.counts == (late if name in ("time", "sleep") else {})


@pytest.mark.slow
def test_within_the_limits_the_same_code_passes() -> None:
    assert score("x = bytearray(300 * 2**20)", ["assert 1"]) == 1.0
    assert score("open('big', 'wb').write(bytes(3 * 2**20))", ["assert 1"]) == 1.0
    assert score("f = [open('/dev/null') for _ in range(40)]", ["assert 1"]) == 1.0


def test_tests_share_no_files_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "token")
    code = (
        "import os\nfound = os.listdir(), os.environ.get('SECRET'), os.environ['HOME'] == os.getcwd()\nopen('a', 'w')"
    )
    assert score(code, ["assert found == ([], None, True)"] * 2) == 1.0


def is_running(mark: str) -> bool:
    return mark in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_what_a_test_starts_ends_with_it() -> None:
    mark = f"time.sleep({time.time()})"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; {mark}'])"
    assert score(code, ["assert 1"]) == 1.0
    until = time.monotonic() + 300
    while is_running(mark):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.skipif(not HAS_NAMESPACES, reason="this system allows no namespaces")
def test_code_that_leaves_its_group_and_clears_its_death_signal_ends_at_its_time_limit() -> None:
    mark = f"time.sleep({time.time()})"
    code = (
        f"import ctypes, os, time\nos.setsid()\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nif not os.fork():\n    {mark}\n"
    )
    late = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; {mark}'])\n"
    reward = CodeTests(CodeTestsConfig(isolation="require", timeout_s=5.0))
    assert reward(outputs=[code + late + "time.sleep(900)"], tests=[["assert 1"]]) == [0.0]
    until = time.monotonic() + 300
    while is_running(mark):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_call_that_is_interrupted_ends_its_tests() -> None:
    mark = f"time.sleep({time.time()})"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; {mark}'])"
    reward = CodeTests(CodeTestsConfig(isolation="none", timeout_s=900.0, workers=1))

    def interrupt() -> None:
        until = time.monotonic() + 300
        while not is_running(mark) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        reward(outputs=[code], tests=[[f"assert {i} >= 0" for i in range(10)]])  # 9,000 s, if it waited for them
    assert not is_running(mark)
    assert reward(outputs=["x = 1"], tests=[["assert x"]]) == [1.0]


LISTENING = """
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), 5)
    reached = True
except OSError:
    reached = False
"""


@pytest.mark.skipif(not HAS_NAMESPACES, reason="this system allows no namespaces")
def test_with_namespaces_tests_reach_no_network_and_see_no_other_processes(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        code = LISTENING.format(port=server.getsockname()[1])
        assert score(code, ["assert reached"]) == 1.0  # isolation: none
        assert score(code, ["assert not reached"], isolation="require") == 1.0
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "engine.sock"))
        server.listen()
        code = LISTENING.replace(
            'create_connection(("127.0.0.1", {port}), 5)', f"socket(socket.AF_UNIX).connect({server.getsockname()!r})"
        )
        assert score(code, ["assert not reached"], isolation="require") == 1.0
        assert score(code, ["assert not reached"], isolation="try") == 1.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log.sock"))
        code = LISTENING.replace(
            'create_connection(("127.0.0.1", {port}), 5)',
            f"socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', {server.getsockname()!r})",
        )
        assert score(code, ["assert not reached"], isolation="require") == 1.0
        assert score("import socket\nx = socket.socketpair()", ["assert x"], isolation="require") == 1.0
    wakes = "import asyncio\nasyncio.run(asyncio.sleep(0))\nx = 1"
    assert score(wakes, ["assert x"], isolation="require") == 1.0
    seen = "import os\nnumbers = [name for name in os.listdir('/proc') if name.isdigit()]"
    assert score(seen, ["assert numbers == ['1']"], isolation="require") == 1.0


def test_without_namespaces_a_warning_says_so_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(sandbox.log, "warning", lambda text, **fields: logged.append(f"{text}: {fields}"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert score("x = 1", ["assert x"], isolation="try") == 1.0
    assert "processes that they leave may go on" in logged[0]
    assert "unshare of util-linux is not installed" in logged[0]
    with pytest.raises(
        PluginError, match=r"isolation = 'require': this system has no namespaces \(the program unshare"
    ):
        CodeTests(CodeTestsConfig(isolation="require"))


@pytest.mark.skipif(not HAS_NAMESPACES, reason="this system allows no namespaces")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="there is no Python that every user can start")
def test_the_number_of_processes_is_limited_unless_the_user_is_root() -> None:
    found = sandbox.confine("/usr/bin/python3", isolate=True)
    assert found.limits_processes
    assert found.user == (sandbox.NOBODY if os.geteuid() == 0 else None)
    code = (
        "import os, time\nstarted = 0\ntry:\n    for _ in range(30):\n        if not os.fork():\n"
        "            time.sleep(900)\n        started += 1\nexcept OSError:\n    pass"
    )
    reward = CodeTests(CodeTestsConfig(python="/usr/bin/python3", isolation="require", processes=6, timeout_s=300))
    assert reward(outputs=[code], tests=[["assert 0 < started < 6", "assert started == 30"]]) == [0.5]


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        (3, "sample 0, column 'tests': has the type int; tests are a list of statements"),
        ("assert (", "sample 0, column 'tests', test 0: 'assert (' is no Python: '(' was never closed"),
        (["assert 1", 3], "sample 0, column 'tests', test 1: 3 is no test; tests are a list"),
        ([{"input": "1"}], "test 0: {'input': '1'} is no test"),
        ({"inputs": ["1"], "outputs": []}, "has 1 inputs and 0 outputs; give each input its output"),
        ({"inputs": "12", "outputs": "12"}, "'inputs' and 'outputs' are no lists; tests are a list of statements"),
        ({"fn_name": "f", "inputs": [[1]], "outputs": [1]}, "calls of 'f' (fn_name) are no tests here"),
        (
            [{"input": ["1", "2"], "output": "3"}],
            "test 0: {'input': ['1', '2'], 'output': '3'}: input and output must be",
        ),
        ([{"input": None, "output": "3"}], "input and output must be texts or numbers"),
        (["assert 1"] * 3, "has 3 tests, more than code_tests.most_tests = 2"),
    ],
)
def test_tests_of_another_form_are_named(tests: Any, message: str) -> None:
    with pytest.raises(RewardError) as raised:
        score("x = 1", tests, most_tests=2)
    assert message in str(raised.value)


def test_an_interpreter_that_does_not_start_is_named() -> None:
    with pytest.raises(PluginError, match=r"code_tests\.python = '/nowhere/python': the interpreter does not start"):
        score("x = 1", ["assert x"], python="/nowhere/python")
