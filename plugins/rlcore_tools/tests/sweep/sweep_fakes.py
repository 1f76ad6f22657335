"""Sweeps whose trials are small programs that write metrics.jsonl, without torch.

python sweep_fakes.py CONFIG.yaml       a trial: what it does is in `trainer.do` of its configuration
python sweep_fakes.py --sweep FOLDER [DO]   a sweep of such trials, in this process, to be killed or interrupted
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUICK = "RLCORE_FAKES_ARE_QUICK"
"""Variable of processes in which trials that are slow are quick."""
METRIC = "eval/reward/mean"


def command(configuration: Path) -> list[str]:
    return [sys.executable, __file__, str(configuration)]


def make_sweep(folder: Path, *words: str, base: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a sweep; every trial makes `run.steps` steps, and its metric is `trainer.x` times the step."""
    from rlcore.config import dump_yaml
    from rlcore_tools.sweep.sweep_options import read_sweep

    file = folder / "fake.yaml"
    file.write_text(dump_yaml({"run": {"steps": 3}, "trainer": {"do": "finish"}, **(base or {})}), encoding="utf-8")
    return read_sweep(file, words, options, folder=folder / "sweep")


def run_sweep(sweep: Any, *, overwrite: bool = False) -> int:
    from rlcore_tools.sweep.sweep_command import run

    return run(sweep, overwrite=overwrite, command=command)


def records(sweep: Any) -> list[Any]:
    from rlcore_tools.sweep.sweep_command import open_study
    from rlcore_tools.sweep.sweep_folder import SweepFolder

    return open_study(sweep, SweepFolder(sweep.folder)).records()


class Trial:
    """One trial: it has a checkpoint after every step, and continues from the newest one."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.run, self.trainer = Path(values["run"]["root"], values["run"]["name"]), values["trainer"]
        self.steps, self.seed = values["run"]["steps"], values["run"].get("seed", 0)
        resume = values["run"]["resume"]
        self.first = 0 if resume == "auto" else int(Path(resume).name)
        self.stopped = False
        self.run.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> None:
        with (self.run / name).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def metrics(self, step: int, **metrics: float | None) -> None:
        named = {name.replace("__", "/"): value for name, value in metrics.items()}
        self.write("metrics.jsonl", json.dumps({"step": step, **named}))

    def stop(self, *_: object) -> None:
        if not self.stopped:
            os.write(2, b"SIGTERM: finishing step 1, then saving; press again to stop at once\n")
        self.stopped = True

    def train(self) -> int:
        is_stubborn = self.trainer["do"] == "stubborn" and self.run.name == "00001"
        signal.signal(signal.SIGTERM, signal.SIG_IGN if is_stubborn else self.stop)
        begin = max((int(folder.name) for folder in self.run.glob("checkpoints/*")), default=self.first)
        self.write("starts", f"{os.getpid()} {begin} {os.environ.get('OMP_NUM_THREADS')}")
        is_population = self.trainer["do"].startswith("population")
        if is_population and self.run.name == "00001":
            wait_for((self.run.parent / "00000/checkpoints/00000002").is_dir)
        is_over = self.trainer["do"].endswith("successor ends") and self.first > 0
        for step in range(begin + 1, begin + 1 if is_over else self.steps + 1):
            self.metrics(step, loss__total=1 / step)
            self.metrics(step, eval__reward__mean=self.value(step), eval__time_s=0.1)
            (self.run / f"checkpoints/{step:08d}").mkdir(parents=True)
            (self.run / f"checkpoints/{step:08d}/manifest.json").touch()
            self.after(step)
            if self.stopped:
                return 0
        return 0

    def value(self, step: int) -> float | None:
        if self.trainer["do"] == "crowd":  # by number, so that the first two of four are the worst
            return step * float(self.run.name)
        if self.trainer["do"].startswith("population"):  # trial 1 is the worst, and what takes its place is the best
            return step * {"00000": 10.0, "00001": 1.0}.get(self.run.name, 20.0)
        return None if self.trainer["do"] == "nan" and step == self.steps else self.trainer["x"] * step

    def after(self, step: int) -> None:
        do = self.trainer["do"]
        if do == "fail" or (do == "fail below 2" and self.trainer["x"] < 2):
            sys.exit("some traceback\nRewardError: reward_fn raised ValueError: no\x1b[31m reward <b>\n")
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        if do == "meet":  # needs another trial that runs at the same time
            other = self.run.parent / f"{1 - int(self.run.name):05d}" / "starts"
            wait_for(other.exists)
        self.meet_others(step)
        if do == "stubborn" and self.run.name == "00001":
            time.sleep(600)
        if QUICK not in os.environ and (do == "slow" or (do == "slow from 1" and self.run.name != "00000")):
            for _ in range(100):
                time.sleep(0.0 if self.stopped else 0.02)

    def meet_others(self, step: int) -> None:
        """Wait, as a trial of a population, until what is tested has happened."""
        do = self.trainer["do"]
        if do == "crowd" and step == 2 and self.run.name < "00004":  # until a successor has begun
            wait_for(lambda: self.stopped or (self.run.parent / "00004/starts").exists())
        if do.startswith("population") and self.run.name == "00000" and step == 2:
            wait_for((self.run.parent / "00002/starts").exists)
        if do.startswith("population") and self.run.name == "00001" and step == 2:
            wait_for(lambda: self.stopped)


def wait_for(condition: Any, *, most_s: float = 600.0) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < most_s, "waited in vain"
        time.sleep(0.02)


def main(words: Sequence[str]) -> int:
    if words[0] == "--sweep":
        from rlcore.cli import INTERRUPTED

        folder = Path(words[1])
        try:
            base = {**SLOW, "trainer": {"do": words[2]}} if words[2:] else SLOW
            return run_sweep(make_sweep(folder, "trainer.x=[1, 2, 3]", base=base, sampler="grid", trials=3))
        except KeyboardInterrupt:
            return INTERRUPTED
    import yaml

    from rlcore_tools.sweep.trial_process import follow_sweep

    follow_sweep()
    return Trial(yaml.load(Path(words[0]).read_text(encoding="utf-8"), yaml.CSafeLoader)).train()


SLOW = {"trainer": {"do": "slow from 1"}, "run": {"steps": 3}}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
