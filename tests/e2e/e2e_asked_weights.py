"""Train as one rank with a sampler that reads no weights, a stream of them, or whole ones: FOLDER CONFIG.json READS.

READS is `nothing`, `stream` or `whole`; `vllm` is the sampler of the configuration, which writes them. Each rank writes
FOLDER/asked-RANK.json, lists by step: `held`, the bytes of the policy's whole weights while the sampler was called;
`streamed`, those of the weights that it read; `sampling` and `scoring`, the bytes by which memory rose; and `passes`,
how often the first block ran without gradients.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
from e2e_live_bytes import BytesOfRank, Marks

from rlcore import hookimpl
from rlcore.plugins.registry import registries
from rlcore.profiling import running
from rlcore.training.api import train_from_config
from rlcore_engines.vllm import weights
from rlcore_engines.vllm.vllm_rows import stack_rows

NAMES = ("held", "streamed", "sampling", "scoring", "passes")
FOUND: dict[str, list[int]] = {name: [0] for name in NAMES}


class Live(BytesOfRank):
    """Count the bytes that tensors hold, and their peak whatever phase begins."""

    top = 0

    def _count(self, tensor: torch.Tensor) -> None:
        super()._count(tensor)
        self.top = max(self.top, self.now)


LIVE = Live()


def note_rise(name: str) -> None:
    """Note by how much memory has risen at most, since the last call, above what is held between steps."""
    FOUND[name][-1] = LIVE.top - (LIVE.between[-1] if LIVE.between else LIVE.start)
    LIVE.top = LIVE.now


def draw(
    policy: Any, prompts: Any, sampling: Any, *, row_seeds: Any, generator: Any = None, on_batch: Any = None
) -> Any:
    """Return tokens that follow from the seeds of rows, so that they are the same on any number of ranks."""
    FOUND["held"][-1] = sum(each.nbytes for each in policy.module.parameters())
    rows = []
    for seed in row_seeds:
        own = random.Random(int(seed))
        rows.append([own.randrange(20) for _ in range(1 + own.randrange(sampling.max_new_tokens))])
    note_rise("sampling")
    return stack_rows(policy, prompts, rows, [True] * len(rows))


class Nothing:
    __call__ = staticmethod(draw)

    def renew_weights(self, policy: Any, prompts: Any) -> None: ...


class Stream(Nothing):
    def renew_weights(self, policy: Any, prompts: Any) -> None:
        LIVE.top = LIVE.now
        FOUND["streamed"][-1] = sum(each.nbytes for _, each in policy.weights())


class Served:
    """The sampler `vllm`, with smaller files."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.close = sampler, sampler.close
        weights.PIECE = 2**21

    def renew_weights(self, policy: Any, prompts: Any) -> None:
        LIVE.top = LIVE.now
        self.sampler.renew_weights(policy, prompts)
        note_rise("sampling")

    def __call__(
        self, policy: Any, prompts: Any, sampling: Any, *, row_seeds: Any, generator: Any = None, on_batch: Any = None
    ) -> Any:
        FOUND["held"][-1] = sum(each.nbytes for each in policy.module.parameters())
        return self.sampler(policy, prompts, sampling, row_seeds=row_seeds)


SAMPLERS = {"nothing": Nothing, "stream": Stream, "whole": lambda: draw}


class Replace(Marks):
    """Observer that replaces the run's sampler, and notes what a step took."""

    def __init__(self, reads: str) -> None:
        super().__init__(LIVE)
        self.reads = reads

    @hookimpl
    def on_run_start(self, run: Any) -> None:
        super().on_run_start(run)
        run.sampling.sampler = SAMPLERS[self.reads]() if self.reads in SAMPLERS else Served(run.sampling.sampler)
        first = next(part for part in run.models.policy.module.modules() if "DecoderLayer" in type(part).__name__)
        first.register_forward_pre_hook(self.note)

    @hookimpl
    def on_rollout(self, run: Any, batch: Any) -> None:
        note_rise("scoring")

    @hookimpl
    def on_step(self, run: Any, metrics: Any) -> None:
        super().on_step(run, metrics)
        LIVE.top = LIVE.now
        for steps in FOUND.values():
            steps.append(0)

    def note(self, *_: Any) -> None:
        FOUND["passes"][-1] += not torch.is_grad_enabled()


def main() -> None:
    folder, file, reads = sys.argv[1:]
    values = json.loads(Path(file).read_text())
    values["data"]["reward_fn"] = lambda outputs, **_: [float(len(output) % 7) for output in outputs]
    with LIVE, running(LIVE):
        registries().discovery.hooks.register(Replace(reads), name="replace")
        train_from_config(values, "test")
    Path(folder, f"asked-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(FOUND | {"sent": LIVE.last}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
