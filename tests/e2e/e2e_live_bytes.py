"""Train as one rank and write the bytes that its tensors hold: e2e_live_bytes.py FOLDER CONFIG.json.

Each rank writes FOLDER/bytes-RANK.json: `start`, the bytes before the first step; `between`, those after each step;
`generate`, `update` and `checkpoint`, the peaks of these phases by step; and `sent`, the bytes of the operands of
collective operations of the last step, by operation.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from rlcore import hookimpl
from rlcore.plugins.registry import registries
from rlcore.profiling import running
from rlcore.training.api import train_from_config
from rlcore_tools.plan.fake_tensors import LiveBytes

COLLECTIVE, LOCAL = ("c10d", "_c10d_functional"), ("wait_tensor", "wrap_tensor_autograd")
PHASES = ("generate", "update", "checkpoint")


class BytesOfRank(LiveBytes):
    """Count what a rank holds: of divided tensors its parts, and storages as they are resized."""

    def __init__(self) -> None:
        super().__init__()
        self.peaks: dict[str, list[list[int]]] = {name: [[]] for name in PHASES}
        self.start, self.between, self.sent, self.last = 0, [], Counter[str](), dict[str, int]()
        self._grown: dict[int, int] = {}
        self._owners: dict[int, Any] = {}
        self._resize = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            return self.resized(storage, size)

        torch.UntypedStorage.resize_ = resize

    def _count(self, tensor: torch.Tensor) -> None:
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if own.device.type != "meta":
            super()._count(own)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVE and not func._schema.name.endswith(LOCAL):
            operands = [leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.sent[func._schema.name.partition("::")[2]] += max(operands, default=0)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def resized(self, storage: Any, size: int) -> Any:
        before, key = storage.nbytes(), storage._cdata
        out = self._resize(storage, size)
        if key in self._known and (change := storage.nbytes() - before):
            self.now += change
            self.peak = max(self.peak, self.now)
            self._grown[key] = self._grown.get(key, 0) + change
            self._owners.setdefault(key, weakref.ref(storage, lambda _: self._forget(key)))
        return out

    def _forget(self, key: int) -> None:
        self.now -= self._grown.pop(key, 0)
        del self._owners[key]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer, self.peak = self.peak, self.now
        yield
        if name in PHASES:
            self.peaks[name][-1].append(self.peak)
        self.peak = max(outer, self.peak)

    background = awaited = phase

    def count_tokens(self, tokens: int) -> None: ...

    def begin_step(self, done: int) -> None: ...

    def end_steps(self, done: int) -> None: ...


class Marks:
    """Observer that notes the bytes between steps, without what only reference cycles keep."""

    def __init__(self, live: BytesOfRank) -> None:
        self.live = live

    @hookimpl
    def on_run_start(self, run: Any) -> None:
        gc.collect()
        self.live.start = self.live.now

    @hookimpl
    def on_step(self, run: Any, metrics: Any) -> None:
        gc.collect()
        self.live.between.append(self.live.now)
        for steps in self.live.peaks.values():
            steps.append([])
        self.live.last = dict(self.live.sent)
        self.live.sent.clear()


def main() -> None:
    folder, file = sys.argv[1:]
    values = json.loads(Path(file).read_text())
    if values["data"].get("reward_fn"):
        values["data"]["reward_fn"] = lambda outputs, **_: [float(len(output) % 7) for output in outputs]
    with BytesOfRank() as live, running(live):
        registries().discovery.hooks.register(Marks(live), name="marks")
        train_from_config(values, "test")
    found = {"start": live.start, "between": live.between, "sent": live.last, **live.peaks}
    Path(folder, f"bytes-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
