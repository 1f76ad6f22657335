"""The rates of the hardware; light."""

from __future__ import annotations

import attrs


@attrs.frozen
class Rates:
    """What the hardware does in a second; the defaults are those of an H100 with NVLink and 400 Gbit/s for each device.

    Attributes:
        peak_flops: operations of a device, dense in bfloat16.
        utilisation: share of them that matrix products reach while nothing is exchanged.
        memory_bandwidth: bytes of a device's memory.
        intra_bandwidth: bytes that a device sends to others of its machine.
        inter_bandwidth: bytes that a device sends to other machines.
        overlap: share of an exchange that computation hides, where it goes on meanwhile.
    """

    peak_flops: float = 989e12
    utilisation: float = 0.4
    memory_bandwidth: float = 3.35e12
    intra_bandwidth: float = 350e9
    inter_bandwidth: float = 45e9
    overlap: float = 0.5

    def computing(self, operations: float) -> float:
        """Return the seconds of so many operations."""
        return operations / (self.peak_flops * self.utilisation)

    def sending(self, inside: float, between: float) -> float:
        """Return the seconds in which a device sends so many bytes within its machine and to others."""
        return inside / self.intra_bandwidth + between / self.inter_bandwidth
