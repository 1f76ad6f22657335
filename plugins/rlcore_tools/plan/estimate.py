"""The memory that a run takes of each device, estimated from its configuration alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch

from rlcore.config import structure
from rlcore.errors import ConfigError, ModelError, RLCoreError
from rlcore.optim.optimization import sections, with_rate
from rlcore.plugins.metadata import configured
from rlcore.ranks import Ranks
from rlcore.settings import TrainConfig
from rlcore_tools.plan.engines import engines_of
from rlcore_tools.plan.fake_tensors import FakeTensors, Heap, fake_tensors
from rlcore_tools.plan.phases import measure, measure_rehearsal
from rlcore_tools.plan.planned_run import PlannedRun, build_subject, is_drawn_alike, read_inputs
from rlcore_tools.plan.sizes import TENSOR, WHOLE, ZERO2, ZERO3, Placement, layout_of
from rlcore_tools.plan.step_memory import Measured, Raw
from rlcore_tools.plan.strategies import arrange
from rlcore_tools.plan.workload import Workload

KERNELS = 46_000_000
"""Bytes that a run on the CPU takes beyond its imports and its tensors: libraries and buffers of the first steps.
Measured with torch 2.13 as the peak of a run with a 0.1 MB model, less the process's memory after its imports."""

NO_ROOM = "malloc could not reserve some blocks: freed tensors take more memory than shown"


@attrs.frozen
class Estimate:
    """The memory that a run takes of one device.

    Attributes:
        raw: the memory of a process that holds the whole model.
        layout: the devices, and the strategy that divides the model among them.
        measured: the memory of the tensors of a rank, phase by phase.
        baseline: bytes of the process without a model; 0 on an accelerator, since they are in host memory.
        device: the kind of device that kernels were chosen for, `cpu` or `cuda`.
        subject: the planned run, reused by estimates with other options.
        mode: the dispatch mode of its fake tensors.
        rates: path of each learning rate in the configuration, with its value and whether it follows the model.
    """

    raw: Raw
    layout: Placement
    measured: Measured
    baseline: int
    device: str
    subject: PlannedRun
    mode: FakeTensors
    rates: tuple[tuple[str, float, bool], ...] = ()

    @property
    def world(self) -> int:
        """Return the number of processes."""
        return self.layout.world

    def under(self, layout: Placement) -> Measured:
        """Return the memory of a rank under another strategy on the same devices."""
        return arrange(self.raw, layout, is_cpu=self.device == "cpu")

    @property
    def workload(self) -> Workload:
        """Return the batch sizes and model heads that the trainer uses."""
        return self.subject.workload

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the assumptions of the estimate."""
        heap = self.mode.live.heap
        return (*self.subject.notes, *([NO_ROOM] if heap is not None and heap.has_failed else []))

    @property
    def peak(self) -> int:
        """Return the bytes of the worst phase, with the baseline and the bytes that malloc keeps of freed tensors."""
        return self.measured.worst.taken + self.baseline

    @property
    def holes(self) -> int:
        """Return the bytes that malloc keeps of freed tensors in the worst phase."""
        return self.measured.worst.holes


def estimate(
    values: Mapping[str, object],
    where: str,
    *,
    world: int = 1,
    nodes: int = 1,
    known: Estimate | None = None,
    heap: Heap | None = None,
    device: str | None = None,
    memory: int = 0,
) -> Estimate:
    """Estimate the memory of a run without reading or allocating weights.

    Args:
        values: a configuration as read from YAML; `model.path` may also be an object of `transformers`.
        where: name of the configuration, for errors.
        world: number of processes of the run, each with its own device.
        nodes: number of machines, which have equally many of the devices.
        known: the estimate of a configuration with the same prompts, samples and lengths; its unchanged parts are
            reused.
        heap: measures the bytes that malloc keeps of freed tensors, in a process that has freed little before; without
            it they are not counted.
        device: kind of the devices, such as `cuda`; if omitted, that of this machine. Kernels are this machine's.
        memory: bytes of a device, of which a server may take a share; 0 if unknown.

    Raises:
        RLCoreError: the configuration cannot be used, or does not bound the lengths of the data.
    """
    settings = structure(TrainConfig, values, where=where)
    if not isinstance(settings.trainer.get("name", ""), str):
        raise ConfigError(f"{where}: trainer.name = {settings.trainer['name']!r}: must be the name of a trainer")
    baseline = _resident_bytes()
    with configured(settings.plugins.disable, settings.plugins.only), torch.random.fork_rng(devices=[]):
        layout = layout_of(settings.run, nodes, world // nodes)
        raw, subject, mode = _measured(settings, where, world, known, heap, tensor=layout.strategy == TENSOR)
        rates = _learning_rates(subject) if known is None else known.rates
    if layout.strategy != WHOLE and raw.sizes.refusal:
        raise ModelError(f"run.shard = '{layout.strategy}': the model cannot be divided: {raw.sizes.refusal}")
    if layout.strategy in (ZERO2, ZERO3) and not raw.sizes.is_float32:
        raise ModelError(
            f"run.shard = '{layout.strategy}': weights of 16 bits train, which is not supported: set "
            "model.dtype=float32, with run.mixed_precision=bf16 to compute in 16 bits"
        )
    kind = device or subject.ranks.device.type
    engines = engines_of(subject, memory, per_node=layout.per_node, is_cpu=kind == "cpu")
    raw = attrs.evolve(raw, engines=engines)
    own = baseline + KERNELS if kind == "cpu" else 0
    return Estimate(raw, layout, arrange(raw, layout, is_cpu=kind == "cpu"), own, kind, subject, mode, rates)


def _learning_rates(subject: PlannedRun) -> tuple[tuple[str, float, bool], ...]:
    found = [(path, config, with_rate(config, subject.policy)) for path, config in sections(
        subject.chosen.trainer.options, "trainer"
    )]  # fmt: skip
    return tuple((f"{path}.lr", rated.lr or 0.0, config.lr is None) for path, config, rated in found)


def _resident_bytes() -> int:
    """Return the resident set size of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/status").read_bytes().split(b"VmRSS:", 1)[1].split(None, 1)[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0


def _measured(
    settings: TrainConfig, where: str, world: int, known: Estimate | None, heap: Heap | None, *, tensor: bool
) -> tuple[Raw, PlannedRun, FakeTensors]:
    try:
        with fake_tensors(known.mode if known else _fake_tensors_with(heap)) as mode, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # kernels warn about the layout of fake tensors
            subject = build_subject(settings, read_inputs(settings), where, world, known.subject if known else None)
            if subject.rehearsal is not None:
                return measure_rehearsal(subject, subject.rehearsal, mode.live), subject, mode
            draws = known.raw.draws if known and is_drawn_alike(subject, known.subject) else None
            return measure(subject, mode.live, draws, tensor=tensor), subject, mode
    except RLCoreError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        path = settings.model.get("path")
        name = str(path) if isinstance(path, (str, os.PathLike)) else type(path).__name__
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"model = {name}: cannot be run on fake tensors ({type(error).__name__}: {reason:.200}); "
            "measure its memory instead: run.steps=1 and the metric perf/peak_memory_gb"
        ) from error


def _fake_tensors_with(heap: Heap | None) -> FakeTensors:
    """Return a mode that uses `heap` on a CPU only: malloc does not manage an accelerator's memory."""
    return FakeTensors(heap if Ranks().device.type == "cpu" else None)


def device_memory(kind: str) -> tuple[int, str]:
    """Return the bytes of the device that a run would use, and where they were read.

    Raises:
        ConfigError: the device's memory cannot be read.
    """
    if kind == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory), f"on {torch.cuda.get_device_name(0)}"
    try:
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no such function, other systems may lack the names
        host = 0
    if kind != "cpu" or host <= 0:
        raise ConfigError(
            f"the memory of this machine's device ({kind}) cannot be read: pass --device-memory, such as 24GB"
        )
    return host, "in this machine"
