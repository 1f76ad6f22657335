"""Train as one rank with a sampler elsewhere, and write what it held and sent: FOLDER CONFIG.json READS.

READS is as for `e2e_asked_weights.py`, which writes FOLDER/asked-RANK.json; beside it FOLDER/held-RANK.json has the
bytes between steps, and the peaks of the updates by step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests" / "e2e"))

import e2e_asked_weights as asked

if __name__ == "__main__":
    torch.set_num_threads(1)
    asked.main()
    found = {"between": asked.LIVE.between, "update": asked.LIVE.peaks["update"]}
    Path(sys.argv[1], f"held-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
