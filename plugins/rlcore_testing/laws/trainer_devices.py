"""The law of trainers about devices: no tensor of the host is mixed with one of the device."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import attrs
from torch.utils import backend_registration

from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.pretended_device import LAUNCH, REGISTER, PretendedDevice
from rlcore_testing.rig.runs import Tiny, run

EACH_STEP = {"eval": {"every": 1}, "checkpoint": {"every": 1}}


def _can_pretend(_: Subject) -> bool:
    """Return whether torch (2.12 or later) can have a device that is written in Python."""
    return REGISTER in vars(backend_registration)


@law("trainers", when=_can_pretend)
def host_and_device_do_not_mix(subject: Subject) -> None:
    """Two steps, evaluations, checkpoints and a resumed third step mix no tensor of the host with one of the device.

    The device is pretended: its tensors are in the host's memory, and it refuses an operation as CUDA refuses it.
    """
    with TemporaryDirectory() as root:
        tiny = Tiny.of(subject, root, steps=2, sections=EACH_STEP).evaluated()
        found = call_in_new_process(
            "rlcore_testing.laws.trainer_devices:run_on_a_pretended_device", {"description": attrs.asdict(tiny)},
            what="a run on a pretended device",
        )  # fmt: skip
    if found["refused"]:
        raise LawBroken(
            f"expected every operation to have its tensors on one device; {found['refused']}. Create tensors on the "
            "device of those they are combined with, or move them with rlcore.types.trajectories.to_device"
        )
    if found["step"] != 3 or not found["launches"]:
        raise LawBroken(
            f"expected the run to resume and end at step 3, with operations on the device of accelerate; it ended at "
            f"step {found['step']}, with {found['launches']} operations there. Build the policy with run.build"
        )


def run_on_a_pretended_device(description: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a run that another process describes, and resume it for one more step, on a pretended device.

    Returns:
        `refused`, the first operation that mixed devices, or None; else also `step`, at which the resumed run ended,
        and `launches`, the number of operations on the device.
    """
    tiny = Tiny(**description)
    resumed = attrs.evolve(tiny, steps=tiny.steps + 1, sections={**tiny.sections, "run": {"resume": "auto"}})
    with PretendedDevice() as device:
        try:
            run(tiny)
            step = run(resumed).result.run.step
        except Exception:
            if device.refused:
                return {"refused": device.refused[0]}
            raise
    return {"refused": next(iter(device.refused), None), "step": step, "launches": device.total(LAUNCH)}
