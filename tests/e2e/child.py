"""Run one scenario: child.py SCENARIO ROOT RUN CHANGES_AS_JSON [SIGNAL@CALL], or child.py learn_from ROOT RUN FILE.

SCENARIO may be several names, joined by commas; each runs in the folder RUN-NAME.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from e2e_scenarios import learn_from, train

if __name__ == "__main__":
    torch.set_num_threads(1)
    name, root, run, changes, *stop = sys.argv[1:]
    if name == "learn_from":
        learn_from(Path(changes), Path(root), run)
    elif "," in name:
        for each in name.split(","):
            train(each, Path(root), f"{run}-{each}", json.loads(changes))
    else:
        train(name, Path(root), run, json.loads(changes), *stop)
