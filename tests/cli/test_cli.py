"""The command line: light, plain in a pipe, one clear message for an error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import rlcore
from rlcore.cli import main

Python = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "datasets", "accelerate", "numpy", "pandas")
LIGHT_COMMANDS = [
    ["--help"],
    ["--version"],
    ["list-plugins"],
    ["list-plugins", "--json"],
    ["rollouts"],
    ["show", "gen"],
    ["show", "ppo"],
    ["show", "sft", "--json"],
    ["show", "console"],
    ["show", "causal_lm"],
    ["show", "poo"],
]


@pytest.fixture
def run(python: Python) -> Python:
    """Give a command to rlcore: run("show", "gen")."""
    return partial(python, "-m", "rlcore")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LIGHT_COMMANDS, ids=" ".join)
def test_light_commands_import_nothing_heavy(arguments: list[str], python: Python) -> None:
    code = (
        "import sys\nfrom rlcore.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_version_and_help_print_and_exit_with_0(run: Python) -> None:
    assert run("--version").stdout == f"rlcore {rlcore.__version__}\n"
    shown = run("--help")
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in ("train", "list-plugins", "show"))


@pytest.mark.parametrize("arguments", [[], ["shwo"], ["show"], ["show", "gen", "--jsn"], ["train"]], ids=" ".join)
def test_wrong_usage_exits_with_2(arguments: list[str], run: Python) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: rlcore")


def test_plugins_are_listed_one_a_line_and_plain_in_a_pipe(run: Python) -> None:
    done = run("list-plugins", RLCORE_DISABLE_PLUGINS="rlcore-sft")
    lines = [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()]
    assert lines[0] == ["plugin", "version", "state", "components"]
    assert ["rlcore-ppo", "0.1.0", "ok", "trainers: ppo"] in lines
    at = lines.index(["rlcore-sft", "0.1.0", "disabled"])
    assert lines[at + 1] == ["RLCORE_DISABLE_PLUGINS names it"]
    assert "\x1b" not in done.stdout
    assert ["trainers: reward, process_reward"] not in lines  # the first kind is on the plugin's own line
    assert ["architectures: sequence_scorer, step_scorer"] in lines
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 130


def test_plugins_in_json_carry_a_schema_number(run: Python) -> None:
    document = json.loads(run("list-plugins", "--json").stdout)
    assert (document["schema"], document["rlcore"]) == (1, rlcore.__version__)
    ppo = next(plugin for plugin in document["plugins"] if plugin["dist"] == "rlcore-ppo")
    assert ppo == {
        "dist": "rlcore-ppo",
        "version": "0.1.0",
        "entry_point": "ppo",
        "module": "rlcore_ppo.plugin",
        "state": "ok",
        "reason": "",
        "components": {"trainers": ["ppo"]},
        "remarks": [],
    }


@pytest.mark.slow
def test_check_succeeds_if_plugins_were_disabled_by_the_user(run: Python) -> None:
    strict = {"RLCORE_STRICT_PLUGINS": "1", "RLCORE_DISABLE_PLUGINS": "rlcore-sft", "RLCORE_PLUGINS": "rlcore-sft"}
    assert run("list-plugins", "--check", **strict).returncode == 0
    assert run("list-plugins", "--check", RLCORE_DISABLE_PLUGINS="rlcore-stf", RLCORE_PLUGINS="").returncode == 1


@pytest.mark.slow
def test_a_component_is_shown_by_its_short_and_its_full_name(run: Python) -> None:
    short, full = run("show", "ppo"), run("show", "rlcore-ppo:ppo")
    assert short.returncode == 0, short.stderr
    assert short.stdout == full.stdout
    assert short.stdout.startswith("trainer 'ppo' (rlcore-ppo 0.1.0)")
    assert re.search(r"^clip\w* +float +0\.2 ", short.stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_section_is_shown_with_range_unit_meaning_and_source(run: Python) -> None:
    lines = run("show", "gen").stdout.splitlines()
    row = next(line for line in lines if line.startswith("top_p "))
    assert re.split(r" {2,}", row.strip()) == [
        "top_p",
        "float",
        "1.0",
        "(0, 1]",
        "sample from the most likely tokens whose probabilities add up to at least this; 1: from all",
        "arXiv:1904.09751",
    ]
    shown = json.loads(run("show", "gen", "--json").stdout)
    assert shown["schema"] == 1
    first = shown["shown"][0]["options"][0]
    assert (first["path"], first["default"], first["range"], first["unit"]) == ("max_new_tokens", 40, ">= 1", "tokens")


def test_a_name_that_shows_nothing_gets_the_near_match_and_the_choices(run: Python) -> None:
    done = run("show", "poo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("UnknownComponent: no section or component is called 'poo'. Did you mean 'ppo'?\n")
    assert re.search(r"^  sections: +data, gen, eval, checkpoint, run, plugins, tokenizer$", done.stderr, re.MULTILINE)


@pytest.mark.slow
def test_one_option_is_shown_by_its_path(run: Python) -> None:
    def paths(name: str) -> list[str]:
        return [row["path"] for row in json.loads(run("show", name, "--json").stdout)["shown"][0]["options"]]

    assert paths("gen.temperature") == ["temperature"]
    assert paths("ppo.clip") == ["clip"]
    assert "optimizer.lr" in paths("sft.optimizer")
    assert all(path.startswith("optimizer.") for path in paths("sft.optimizer"))
    shown = run("show", "gen.temperature").stdout.splitlines()
    assert (shown[0], len(shown)) == ("section 'gen': sampling", 3)
    wrong = run("show", "gen.temprature")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    said = "'gen' has no option 'temprature'. Did you mean 'gen.temperature'? `rlcore show gen` prints all options"
    assert wrong.stderr == f"UnknownComponent: {said}\n"


def test_an_error_is_one_message_and_the_traceback_is_printed_on_request(run: Python, tmp_path: Path) -> None:
    done = run("train", "absent.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ConfigError: absent.yaml: cannot be read: No such file or directory\n"
    assert "Traceback" in run("train", "absent.yaml", RLCORE_DEBUG="1").stderr
    (tmp_path / "run.yaml").write_text("a: 1\na: 2\n")
    done = run("train", "run.yaml")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("ConfigError: run.yaml:2:1: ")


def test_train_passes_the_file_and_the_overrides_to_the_python_function(python: Python, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("trainer: {name: ppo, clip: 0.3}\nrun: {steps: 2}\n")
    code = (
        "import sys, types\n"
        "door = types.ModuleType('rlcore.training.api')\n"
        "door.train_from_config = lambda config, where: print(config, '|', where)\n"
        "sys.modules['rlcore.training.api'] = door\n"
        "from rlcore.cli import main\n"
        "main(['train', 'run.yaml', 'trainer.clip=0.1', 'run.seed=3'])\n"
        "main(['train', 'run.yaml'])\n"
    )
    done = python("-c", code)
    assert done.stdout.splitlines() == [
        "{'trainer': {'name': 'ppo', 'clip': 0.1}, 'run': {'steps': 2, 'seed': 3}} | run.yaml + command line",
        "{'trainer': {'name': 'ppo', 'clip': 0.3}, 'run': {'steps': 2}} | run.yaml",
    ], done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run.profile=false"], "not allowed with run.profile=false"),
        (["torch"], "takes no value; for 'torch', write run.profile=torch instead"),
    ],
    ids=["false", "a value"],
)
def test_profile_with_a_contradicting_option_is_wrong_usage(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("trainer: {name: ppo}\n")
    with pytest.raises(SystemExit) as left:
        main(["train", str(tmp_path / "run.yaml"), "--profile", *words])
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"rlcore train: error: argument --profile: {complaint}"


def test_a_run_that_calls_sys_exit_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("trainer: {name: ppo}\n")

    def leave(*_: object) -> None:
        raise SystemExit(0)  # sys.exit may be another package's by now

    monkeypatch.setattr("rlcore.training.api.train_from_config", leave)
    assert main(["train", str(tmp_path / "run.yaml")]) == 1
    found = capsys.readouterr().err
    assert re.search(r"PluginError: .*test_cli\.py:\d+ raised SystemExit: 0, which ends no run", found)


@pytest.mark.parametrize(
    ("file", "words", "run"),
    [
        ("run: {profile: false, seed: 5}", ["run={steps: 2}"], {"profile": True, "seed": 5, "steps": 2}),
        ("run: {profile: torch}", [], {"profile": "torch"}),
        ("run: {seed: 5}", ["run.profile=torch"], {"profile": "torch", "seed": 5}),
        ("trainer: ppo", [], {"profile": True}),
        ("trainer: ppo", ["run=null"], {"profile": True}),
    ],
)
def test_the_argument_profile_enables_profiling_and_keeps_its_options(
    file: str, words: list[str], run: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("rlcore.training.api.train_from_config", lambda values, _: asked.append(values["run"]))
    (tmp_path / "run.yaml").write_text(file)
    assert main(["train", str(tmp_path / "run.yaml"), *words, "--profile"]) == 0
    assert asked == [run]


def test_an_interrupt_exits_with_130_and_one_line(tmp_path: Path) -> None:
    code = (
        "import sys, time, types\n"
        "def wait(config, where):\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "api = types.ModuleType('rlcore.training.api')\napi.train_from_config = wait\n"
        "sys.modules['rlcore.training.api'] = api\n"
        "from rlcore.cli import main\nsys.exit(main(['train', 'run.yaml']))\n"
    )
    (tmp_path / "run.yaml").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=600)
    assert (process.returncode, told) == (130, b"rlcore: interrupted\n")


def test_output_to_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "rlcore", "show", "gen"],
        env=environment,
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("words", "code"), [("show gen >&-", 0), ("show gen >&- 2>&-", 0), ("show clipp >&- 2>&-", 1)])
def test_a_process_without_standard_streams_runs(tmp_path: Path, words: str, code: int) -> None:
    line = f"{sys.executable} -m rlcore {words} <&-"
    done = subprocess.run(
        ["sh", "-c", line], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, b"")


def test_main_returns_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "run"]) == 0
    assert "stop after this many steps" in capsys.readouterr().out
    assert main(["show", "nothing-of-the-kind"]) == 1


def test_showing_a_section_that_names_a_component_states_where_its_options_are(run: Python) -> None:
    done = run("show", "trainer")
    assert done.returncode == 1
    advice = r"the options of 'trainer' are those of the component it names: (rlcore show \w+, )*rlcore show ppo, "
    assert re.search(advice, done.stderr)


@pytest.mark.slow
def test_errors_and_wrong_usage_print_no_control_characters_and_no_secrets(run: Python, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text('"\\e[2Jtoken": s3cret\nrun: {api_kay: s3cret}\n')
    calls = [
        (["train", "run.yaml", "run.x\x1b[2J=[s3cret"], {}, 1),
        (["train", "run.yaml", "--api_key\x1b[2J=s3cret"], {}, 2),
        (["train", "run.yaml", "--api_key\x1b[2J", "s3cret"], {}, 2),
        (["train", "run\x1b[2J.yaml"], {"RLCORE_DEBUG": "1"}, 1),
        (["doctor", "--config", "run.yaml"], {}, 1),
    ]
    for words, environment, code in calls:
        done = run(*words, **environment)
        assert done.returncode == code, done.stderr
        assert r"\x1b[2J" in done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.slow
def test_modules_of_the_working_folder_shadow_no_package_of_the_command_line(run: Python, tmp_path: Path) -> None:
    for name in ("attrs", "attr", "pluggy", "yaml", "rich", "cattrs", "json", "difflib", "rlcore_ppo", "packaging"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')\n")
    (tmp_path / "run.yaml").write_text("trainer: {clip: 1}\n")
    for words in (["show", "ppo"], ["doctor", "--config", "run.yaml"], ["list-plugins"]):
        done = run(*words)
        assert (done.returncode, "working folder" in done.stdout + done.stderr) == (0, False), done.stderr


def test_a_package_that_is_not_installed_is_named(python: Python, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("trainer: {name: sft}\n")
    hide = (
        "import sys\nclass Hide:\n    def find_spec(self, name, *_):\n"
        "        if name == 'torch': raise ModuleNotFoundError(\"No module named 'torch'\", name=name)\n"
        "sys.meta_path.insert(0, Hide())\nfrom rlcore.cli import main\nsys.exit(main(['train', 'run.yaml']))"
    )
    done = python("-c", hide)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "ModuleNotFoundError: No module named 'torch'; pip install torch "
        "(rlcore doctor lists the packages that are missing)"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rlcore", "show", "gen"], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip() == "OSError: [Errno 28] No space left on device: free some space"
