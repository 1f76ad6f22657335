"""Train as one rank and note what it held before the first step: e2e_start_bytes.py FOLDER CONFIG.json START.

START is `usual`, where every rank loads the whole model as without `run.shard`, or `rows`. Each rank writes
FOLDER/start-RANK.json: `peak`, the largest number of bytes of tensors at a time until the first step, without those
that are as they are in a file, and `held`, those at the first step.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from e2e_live_bytes import BytesOfRank
from torch.distributed.tensor import DTensor

from rlcore import hookimpl
from rlcore.plugins.registry import registries
from rlcore.profiling import running
from rlcore.training.api import train_from_config
from rlcore_transformers.models import freezing


def is_in_file(tensor: torch.Tensor) -> bool:
    """Return whether the memory of a tensor is a file of weights that the system reads as it is used."""
    storage = tensor.untyped_storage()
    if storage.nbytes() < 10_000:
        return False
    address = storage.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(".safetensors"):
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if first <= address < last:
                return True
    return False


class Held(BytesOfRank):
    top = 0

    def _count(self, tensor: torch.Tensor) -> None:
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        is_plain = type(own) in (torch.Tensor, torch.nn.Parameter) and own.device.type != "meta"
        if is_plain and not self.between and own.untyped_storage()._cdata not in self._known and is_in_file(own):
            return
        super()._count(own)
        self.top = max(self.top, self.now)


class Note:
    def __init__(self, live: Held) -> None:
        self.live, self.found = live, dict[str, int]()

    @hookimpl
    def on_run_start(self, run: Any) -> None:
        gc.collect()
        self.live.between.append(self.live.now)
        self.found = {"peak": self.live.top, "held": self.live.now}


def main() -> None:
    folder, file, how = sys.argv[1:]
    values = json.loads(Path(file).read_text())
    if values["data"].get("reward_fn"):
        values["data"]["reward_fn"] = lambda outputs, **_: [float(len(output) % 7) for output in outputs]
    if how == "usual":
        freezing.expect = lambda _: None
    with Held() as live, running(live):
        note = Note(live)
        registries().discovery.hooks.register(note, name="note")
        train_from_config(values, "test")
    Path(folder, f"start-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(note.found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
