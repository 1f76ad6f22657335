"""A logger that writes the highest value of every metric."""

import json
import math
from pathlib import Path
from types import SimpleNamespace


class BestLogger:
    def __init__(self, config, run):
        self.file, self.best = run.dir / "best.json", {}

    def metrics(self, step, metrics):
        for name, value in metrics.items():
            if math.isfinite(value) and value > self.best.get(name, (-math.inf, 0))[0]:
                self.best[name] = (value, step)

    def completions(self, step, rows):
        pass

    def close(self, error):
        self.file.write_text(json.dumps(self.best))


logger = BestLogger(None, SimpleNamespace(dir=Path()))
logger.metrics(1, {"reward/mean": 0.5, "kl/mean": math.nan})
logger.metrics(2, {"reward/mean": 0.25, "a-new-one": 3.0})
logger.close(error=None)
assert json.loads(Path("best.json").read_text()) == {"reward/mean": [0.5, 1], "a-new-one": [3.0, 2]}
