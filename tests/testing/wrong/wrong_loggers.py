"""Loggers, each of which breaks one law."""

import json
import math
import random
import sqlite3
import threading
from pathlib import Path

from rlcore.config import config, option


@config
class Where:
    """Options of a right one."""

    file: str = option("log.jsonl", "file in the run's folder")


class Right:
    """Append lines to a file that is open for as long as the logger is."""

    mode = "a"

    def __init__(self, config, run):
        self.run = run
        name = "log.jsonl" if config is None else config.file
        self.file = (run.dir / name).open(self.mode, encoding="utf-8", errors="backslashreplace")

    def metrics(self, step, metrics):
        self.write(step, metrics)

    def completions(self, step, rows):
        for row in rows:
            self.write(step, row)

    def write(self, step, values):
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def close(self, error):
        self.file.close()


class Curious(Right):
    def metrics(self, step, metrics):
        self.write(step, {"loss": float(self.run.trainer.loss)})


class Finite(Right):
    def metrics(self, step, metrics):
        if not all(math.isfinite(value) for value in metrics.values()):
            raise ValueError("a number that is none")
        self.write(step, metrics)


class Table(Right):
    columns = None

    def metrics(self, step, metrics):
        self.columns = self.columns or list(metrics)
        if list(metrics) != self.columns:
            raise KeyError(f"the columns are {self.columns}")
        self.write(step, metrics)


class Scored(Right):
    def completions(self, step, rows):
        for row in rows:
            self.write(step, {"reward": round(row.get("reward", 0.0), 2)})


class Counting(Right):
    def completions(self, step, rows):
        self.write(step, {"mean": sum(row["length"] for row in rows) / len(rows)})


class Popping(Right):
    def metrics(self, step, metrics):
        metrics.pop("kl/mean", None)
        self.write(step, metrics)


class Cutting(Right):
    def completions(self, step, rows):
        for row in rows:
            row["output"] = row["output"][:1]


class Astray(Right):
    def metrics(self, step, metrics):
        Path("log.txt").write_text(str(metrics))


class Clingy(Right):
    def close(self, error):
        super().close(error)
        if error is not None:
            raise RuntimeError("the run has failed") from error


class Untouched(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        self.last = {}

    def metrics(self, step, metrics):
        self.last.update(metrics)
        self.write(step, metrics)

    def close(self, error):
        super().close(error)
        self.run.last = self.last["kl/mean"]


class Open(Right):
    def close(self, error):
        pass


class OpenAfterCrash(Right):
    crashed = False

    def metrics(self, step, metrics):
        self.crashed = True
        self.write(step, metrics)
        self.crashed = False

    def close(self, error):
        if not self.crashed:
            self.file.close()


class Running(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        self.over = threading.Event()
        threading.Thread(target=self.over.wait, args=(60,), daemon=True, name="sender").start()


class Service(Right):
    """Be right: one thread serves all loggers of the process."""

    started = []  # noqa: RUF012  for the whole process

    def __init__(self, config, run):
        super().__init__(config, run)
        if not self.started:
            self.started.append(1)
            threading.Thread(target=threading.Event().wait, args=(60,), daemon=True, name="service").start()


class Declared(Right):
    """Be right, and write beside the run's folder, as it declares."""

    def __init__(self, config, run):
        self.run = run
        (path,) = self.writes_outside(config, run)
        path.parent.mkdir(exist_ok=True)
        self.file = path.open(self.mode, encoding="utf-8", errors="backslashreplace")

    @staticmethod
    def writes_outside(config, run):
        return [run.dir.parent / "logs" / f"{run.dir.name}.jsonl"]


class Beside(Declared):
    """Write there without a declaration."""

    def __init__(self, config, run):
        self.run = run
        self.file = (run.dir.parent / "log.jsonl").open("a", encoding="utf-8", errors="backslashreplace")

    writes_outside = None


class OpenBeside(Declared):
    def close(self, error):
        pass


class OverwritingBeside(Declared):
    mode = "w"


class Overwriting(Right):
    mode = "w"


class Refusing(Right):
    mode = "x"


class Silent(Right):
    """Open a file, and swallow the error of each write."""

    def write(self, step, values):
        pass


class DeletingRows:
    """Begin the table of a database anew when the run resumes."""

    def __init__(self, config, run):
        self.base = sqlite3.connect(run.dir / "log.db")
        self.base.execute("CREATE TABLE IF NOT EXISTS rows (step INTEGER, name TEXT, value TEXT)")
        self.base.execute("DELETE FROM rows")

    def metrics(self, step, metrics):
        self.base.executemany(
            "INSERT INTO rows VALUES (?, ?, ?)", [(step, name, str(value)) for name, value in metrics.items()]
        )
        self.base.commit()

    def completions(self, step, rows):
        pass

    def close(self, error):
        self.base.commit()
        self.base.close()


class Forgetting(Right):
    """Drop the rows of the first step when the run resumes."""

    def __init__(self, config, run):
        file = run.dir / "log.jsonl"
        rows = file.read_text("utf-8").splitlines(keepends=True) if file.exists() else []
        file.write_text("".join(row for row in rows if json.loads(row)["step"] != 1), "utf-8")
        super().__init__(config, run)


class ForgettingBeside(Declared):
    def __init__(self, config, run):
        (file,) = self.writes_outside(config, run)
        if file.exists():
            size = file.stat().st_size
            file.write_text("#" * size + "\n", "utf-8")
        super().__init__(config, run)


class OfSteps(Right):
    """Leave out evaluations."""

    def metrics(self, step, metrics):
        if not any(name.startswith("eval/") for name in metrics):
            super().metrics(step, metrics)


class Seeding(Right):
    def __init__(self, config, run):
        random.seed(4)
        super().__init__(config, run)


class AtHome(Right):
    def __init__(self, config, run):
        super().__init__(config, run)
        (Path.home() / ".acme").write_text("seen")
