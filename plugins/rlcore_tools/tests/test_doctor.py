"""The doctor answers whatever is broken, names nobody, and imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.cli import main
from rlcore_tools.doctor import doctor_command, machine
from rlcore_tools.doctor.doctor_command import write_problems, write_report, write_torch
from rlcore_tools.doctor.machine import requirements

Python = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "transformers", "datasets", "accelerate", "numpy", "pandas")


class Doctor:
    """The command in a process that sees the dists of a folder, programs of another, and a home that is nobody's."""

    def __init__(self, folder: Path, python: Python) -> None:
        self.site, self.programs, self.home = folder / "site", folder / "programs", folder / "jane-home"
        for made in (self.site, self.programs, self.home):
            made.mkdir()
        self.python = python

    def install(
        self, dist: str, source: str | None = None, version: str = "0.3", requires: tuple[str, ...] = ()
    ) -> None:
        module = dist.replace("-", "_") + "_plugin"
        info = self.site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {dist}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires), ""]))
        if source is not None:
            (self.site / f"{module}.py").write_text(source)
            (info / "entry_points.txt").write_text(f"[rlcore]\nmain = {module}\n")

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def __call__(self, *arguments: str, exits: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "PYTHONPATH": os.pathsep.join([str(self.site), str(ROOT)]),
            "PATH": str(self.programs) + os.pathsep + "/usr/bin:/bin",
            "HOME": str(self.home),
            "LOGNAME": "jane",
        }
        done = self.python("-m", "rlcore", "doctor", *arguments, **(settings | environment))
        assert done.returncode == exits, done.stderr
        return done

    def found(self, *arguments: str, exits: int = 0, **environment: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self("--json", *arguments, exits=exits, **environment).stdout)
        assert document["schema"] == 1
        return document


@pytest.fixture
def ask(tmp_path: Path, python: Python) -> Doctor:
    return Doctor(tmp_path, python)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"], ["doctor", "--devices"]], ids=" ".join)
def test_doctor_imports_nothing_heavy(arguments: list[str], python: Python) -> None:
    code = (
        "import sys\nfrom rlcore.cli import main\n"
        f"main({arguments!r})\n"
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_report_has_every_part_and_ends_with_the_problems(ask: Doctor) -> None:
    lines = ask(OMP_NUM_THREADS="1").stdout.splitlines()
    assert lines[0].split() == ["rlcore", rlcore.__version__]
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads == ["packages", "optional packages", "plugins", "environment", "problems"]
    rows = [line.split() for line in lines]
    assert any(row[:1] == ["torch"] and row[2:] == [">=2.6"] for row in rows)
    assert ["rlcore-shard", "0.1.0", "rlcore[deepspeed]"] in rows
    assert ["rlcore-sft", "0.1.0", "ok", "trainers:", "sft"] in rows
    assert ["OMP_NUM_THREADS=1"] in rows


def test_doctor_reports_no_problem_for_a_working_installation(ask: Doctor) -> None:
    found = ask.found(OMP_NUM_THREADS="1", RLCORE_PLUGINS="rlcore-ppo,rlcore-sft,rlcore-tools")
    assert [line for line in found["problems"] if "GiB free" not in line] == []
    assert write_problems([]) == "problems\n  none found"


BROKEN = {
    "raises": ("raise RuntimeError('no')\n", "broken: RuntimeError: no"),
    "exits": ("raise SystemExit(3)\n", "broken: SystemExit: 3"),
    "syntax": ("def f(:\n", "broken: SyntaxError: invalid syntax (syntax_plugin.py, line 1)"),
}


@pytest.mark.slow
def test_doctor_works_while_every_plugin_is_broken(ask: Doctor) -> None:
    for dist, (source, _) in BROKEN.items():
        ask.install(dist, source)
    ask.install("other-core", "", requires=("rlcore>=7",))
    for strict in ("", "1"):
        problems = ask.found(RLCORE_STRICT_PLUGINS=strict)["problems"]
        for dist, (_, said) in BROKEN.items():
            assert f"{dist} 0.3 is {said}" in problems
        assert f"other-core 0.3 is incompatible: needs rlcore>=7, this is rlcore {rlcore.__version__}" in problems
    assert "  raises 0.3 is broken: RuntimeError: no" in ask().stdout.splitlines()


@pytest.mark.slow
def test_doctor_lists_a_disabled_plugin_and_reports_no_problem(ask: Doctor) -> None:
    ask.install("raises", "raise RuntimeError('no')\n", requires=("absent-package>=2",))
    found = ask.found(RLCORE_DISABLE_PLUGINS="raises")
    assert [plugin["state"] for plugin in found["plugins"] if plugin["dist"] == "raises"] == ["disabled"]
    assert not any("raises" in line for line in found["problems"])


@pytest.mark.slow
def test_packages_out_of_range_or_missing_are_problems(ask: Doctor) -> None:
    ask.install("transformers", version="4.2.0")
    ask.install("peft", version="0.1")
    ask.install("acme", "", requires=("absent-package>=2,<3", "attrs>=99", "unused>=1; extra == 'x'", "pluggy"))
    problems = ask.found()["problems"]
    version = rlcore.__version__
    wanted = "transformers>=5.23,<6"
    needs = f"rlcore-transformers {version} needs"
    assert f"{needs} {wanted}, and transformers 4.2.0 is installed: pip install '{wanted}'" in problems
    required = metadata.requires("rlcore-transformers")
    adapters = next(line for line in required if line.startswith("peft")).partition(";")[0].strip()
    assert f"{needs} {adapters}, and peft 0.1 is installed: pip install '{adapters}'" in problems
    absent = "absent-package>=2,<3"
    assert f"acme 0.3 needs {absent}, and it is not installed: pip install '{absent}'" in problems
    assert any(line.startswith("acme 0.3 needs attrs>=99, and attrs ") for line in problems)
    assert not any("unused" in line or "pluggy" in line for line in problems)


@pytest.mark.slow
def test_the_report_of_doctor_contains_no_user_name_and_no_home_folder(ask: Doctor) -> None:
    ask.install("lost", f"raise OSError('{ask.home}/x and /data/jane/y and /data/janet/z')\n")
    proxy = "http://jane:s3cret@proxy:80/x"
    environment = {"HF_HOME": str(ask.home / "hub"), "HF_HUB_CACHE": "/srv/jane/hub", "WANDB_MODE": proxy}
    for said in (ask(**environment).stdout, json.dumps(ask.found(**environment))):
        assert "OSError: ~/x and /data/<user>/y and /data/janet/z" in said
        assert "~/hub" in said
        assert "jane-home" not in said
        assert "/jane/" not in said
        assert "/srv/<user>" in said
        assert "http://<hidden>@proxy:80/x" in said


@pytest.mark.slow
def test_only_listed_variables_that_are_set_are_shown_with_their_values(ask: Doctor) -> None:
    shown = {"WORLD_SIZE": "2", "RLCORE_LOG_LEVEL": "info", "ACCELERATE_USE_FSDP": "true"}
    found = ask.found(
        **shown, HF_TOKEN="s3cret", RLCORE_HARMLESS="s3cret", ACCELERATE_X="s3cret", WANDB_API_KEY="s3cret"
    )
    assert shown.items() <= found["environment"].items()
    assert {found["environment"][name] for name in ("RLCORE_HARMLESS", "ACCELERATE_X")} == {"(set; not shown)"}
    assert "s3cret" not in json.dumps(found)
    assert not {"HF_TOKEN", "HOME", "CUDA_VISIBLE_DEVICES"} & found["environment"].keys()


@pytest.mark.slow
def test_doctor_finds_accelerators_through_their_driver(ask: Doctor) -> None:
    assert ask.found()["accelerators"]["seen"] == []
    ask.program("nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 570.86'")
    ask.install("torch", version="2.13.0+cpu")
    found = ask.found()
    assert found["accelerators"] == {"seen": ["NVIDIA H200, 143771 MiB, 570.86"], "source": "nvidia-smi"}
    expected = "NVIDIA H200, 143771 MiB, 570.86 is present, but torch 2.13.0+cpu is built for the CPU only"
    assert expected in found["problems"]
    ask.program("nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    found = ask.found()
    assert found["accelerators"]["seen"] == []
    assert "nvidia-smi exited with 9: NVIDIA-SMI has failed" in found["problems"]


def test_a_command_that_does_not_finish_is_killed() -> None:
    assert machine._run([sys.executable, "-c", "import time; time.sleep(60)"], 0.3) == {
        "failed": "did not finish within 0.3 s"
    }
    assert "could not be started" in machine._run(["/no/such/program"], 1.0)["failed"]  # type: ignore[index]


@pytest.mark.slow
def test_doctor_imports_torch_only_in_another_process_and_on_request(ask: Doctor) -> None:
    assert ask.found()["torch"] is None
    asked = ask.found("--devices", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")["torch"]
    assert (asked["threads"], asked["devices"]) == (1, [])
    assert asked["version"].startswith("2.")
    assert "torch: 2." in ask("--devices").stdout


@pytest.mark.slow
def test_a_torch_that_is_broken_or_missing_is_a_problem(ask: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    (ask.site / "torch.py").write_text("raise ImportError('libcudart.so: cannot open')\n")
    found = ask.found("--devices")
    assert "torch exited with 1: ImportError: libcudart.so: cannot open" in found["problems"]
    assert write_torch(found["torch"]) == "torch: exited with 1: ImportError: libcudart.so: cannot open"
    monkeypatch.setattr(doctor_command, "installed_version", lambda name: None)
    assert doctor_command.with_torch(doctor_command.examine())["torch"] == {"failed": "is not installed"}


@pytest.mark.slow
def test_doctor_does_not_import_a_torch_in_the_working_folder(ask: Doctor, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    assert "failed" not in ask.found("--devices")["torch"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_doctor_checks_a_configuration_file(ask: Doctor, tmp_path: Path) -> None:
    (tmp_path / "full").write_text("a file where a folder should be")
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("trainer: {name: poo}\nloggers: [console, {name: consol}]\nrun: {root: full}\n")
    bad.write_text("run: {stepz: 3, seed: -1}\n")
    found = ask.found("--config", "good.yaml", exits=1)
    assert found["config"]["file"] == "good.yaml"
    assert [line for line in found["problems"] if "is called" in line] == [
        "no trainer is called 'poo'. Did you mean 'ppo' (rlcore-ppo 0.1.0)?",
        f"no logger is called 'consol'. Did you mean 'console' (rlcore {rlcore.__version__})?",
    ]
    assert "runs folder full is not writable: Not a directory" in found["problems"]
    (tmp_path / "small.yaml").write_text("trainer: {name: sft}\nplugins: {disable: [rlcore-ppo, absent]}\n")
    found = ask.found("--config", "small.yaml")
    states = {plugin["dist"]: plugin["state"] for plugin in found["plugins"]}
    assert (states["rlcore-ppo"], states["rlcore-sft"]) == ("disabled", "ok")
    assert any("names 'absent', which is not installed" in line for line in found["problems"])
    problems = ask.found("--config", "bad.yaml", exits=1)["problems"]
    assert sum("bad.yaml: run." in line for line in problems) == 2
    absent = ask.found("--config", "absent.yaml", exits=1)["problems"]
    assert any("absent.yaml: cannot be read" in line for line in absent)


CONFIGURATIONS = [
    ("trainer: {name: sft, batch_size: 3}\nmodel: {path: gpt2, dtype: bfloat16}\nrun: {steps: 2}\n", []),
    ("trainer: {name: sft, batchsize: 3}\n", ["trainer.batchsize: no such option; did you mean 'batch_size'?"]),
    ("trainer: {name: sft, optimizer: {lr: fast}}\n", ["trainer.optimizer.lr = 'fast': must be a number"]),
    ("model: {path: gpt2, dtyp: auto}\n", ["model.dtyp: no such option; did you mean 'dtype'?"]),
    ("model: {path: x, architecture: seq2seq_lm, compile: inductor}\n", ["model.compile: no such option"]),
    ("sampler: {name: default, min_p: 7}\n", ["sampler.min_p = 7: must lie in [0, 1]"]),
    ("store: {name: memory, size: 7}\n", ["store.size: 'memory' has no options"]),
    ("loggers: [console, {name: console, evry: 2}]\n", ["loggers[1].evry: no such option; did you mean 'every'?"]),
    ("data: {reward_fn: {fn: 'a:b', weight: nan}}\n", ["reward_fn: the weight of 'a:b' is 'nan'; it must be a finite"]),
    ("data: {reward_fn: [{fn: lenght}]}\n", ["no reward is called 'lenght'. Did you mean 'length'"]),
    ("data: {reward_fn: {name: length, cap: few}}\n", ["data.reward_fn.cap = 'few': must be a"]),
    ("data: {reward_fn: ['absent_module:score', {name: length, cap: 5}]}\n", []),
    (
        "trainer: {name: sft, optimizer: {scheduler: linear, scheduler_options: {num_cycles: 2}}}\n",
        ["trainer.optimizer.scheduler_options.num_cycles: 'linear' has no options"],
    ),
    ("trainer: {name: sft, optimizer: {scheduler: cosine_with_min_lr, scheduler_options: {min_lr_rate: .1}}}\n", []),
    ("run: {seed: -1}\ntrainer: {name: poo}\n", ["run.seed = -1: must lie in [0, 4294967295]"]),
    ("trainer: {name: poo}\n", ["no trainer is called 'poo'"]),
    ("a: b: c\n", ["is not valid YAML"]),
]


@pytest.mark.parametrize(("text", "errors"), CONFIGURATIONS, ids=lambda value: str(value)[:40])
def test_a_configuration_with_errors_ends_in_an_exit_status_of_one(
    tmp_path: Path, text: str, errors: list[str], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    monkeypatch.setattr(machine, "accelerators", lambda: {"seen": [], "source": "not looked for"})
    for words in ([], ["--json"]):
        assert main(["doctor", "--config", str(tmp_path / "run.yaml"), *words]) == int(bool(errors))
        said = capsys.readouterr().out
        assert [line for line in errors if json.dumps(line)[1:-1] not in said and line not in said] == []


def test_a_configuration_of_a_gguf_file_needs_its_library(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text("model: {path: tiny.gguf}\n")
    real = doctor_command.installed_version
    monkeypatch.setattr(doctor_command, "installed_version", lambda name: None if name == "gguf" else real(name))
    monkeypatch.setattr(machine, "accelerators", lambda: {"seen": [], "source": "not looked for"})
    assert main(["doctor", "--config", str(tmp_path / "run.yaml")]) == 1
    assert "pip install 'rlcore-transformers[gguf]'" in capsys.readouterr().out


def test_instructions_for_bfloat16_are_read_and_come_with_the_option_that_uses_them(tmp_path: Path) -> None:
    place = tmp_path / "cpuinfo"
    place.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16x\n\nprocessor\t: 1\nflags\t\t: amx_bf16\n")
    assert machine.bfloat16(place) == ["avx512_bf16"]
    place.write_text("Features\t: bf16\n")
    assert machine.bfloat16(place) == machine.bfloat16(tmp_path / "absent") == []
    told = "  bfloat16      avx512_bf16: run.mixed_precision=bf16 speeds up larger models\n"
    found = doctor_command.examine()
    assert told in write_report(found | {"bfloat16": ["avx512_bf16"]})
    assert "run.mixed_precision" not in write_report(found | {"bfloat16": []})


@pytest.mark.slow
def test_a_share_of_the_cores_is_read_and_threads_that_exceed_it_are_a_problem(tmp_path: Path) -> None:
    share = tmp_path / "cpu.max"
    share.write_text("150000 100000\n")
    assert machine.cores(share)["quota"] == 1.5
    share.write_text("max 100000\n")
    assert machine.cores(share)["quota"] is None
    assert machine.cores(tmp_path / "absent")["quota"] is None
    found = doctor_command.examine() | {"cores": {"present": 64, "allowed": 64, "quota": 2.0}, "environment": {}}
    told = "torch would start 64 threads, but only 2 cores may be used: set OMP_NUM_THREADS=2"
    assert told in doctor_command.problems(found)
    assert told not in doctor_command.problems(found | {"environment": {"OMP_NUM_THREADS": "2"}})
    assert "  cores         64 of 64, limited to 2\n" in write_report(found)


def test_a_full_disk_and_stale_metadata_are_problems() -> None:
    found = doctor_command.examine()
    low = [{"what": "runs folder", "path": "runs", "writable": True, "free": 2**29, "error": ""}]
    assert "runs folder runs has only 0.50 GiB free" in doctor_command.problems(found | {"disks": low})
    assert any("reinstall it" in line for line in doctor_command.problems(found | {"rlcore": "9.9"}))
    assert any("has no metadata" in line for line in doctor_command.problems(found | {"packages": []}))


class Needing:
    """A dist that needs one package."""

    def __init__(self, line: str) -> None:
        self.requires = [line]
        self.metadata = self

    def get_all(self, name: str) -> list[str]:
        return []


@pytest.mark.parametrize(("version", "fits"), [("0.2.0rc1", True), ("0.1.9", False), ("0.1.0rc1", False)])
def test_a_pre_release_fits_a_requirement_by_its_place_among_the_versions(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore_tools.doctor.machine.installed_version", lambda name: version)
    needing: Any = Needing("acme>=0.2.0.dev0")
    assert [package.fits for package in requirements(needing)] == [fits]
