"""Offer a decoder for large batches on a CPU; light, because every command imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import RegisterServices, Services

if TYPE_CHECKING:
    from rlcore.protocols import Decoder, DecoderRequest


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Register a decoder for large batches on a CPU."""
    register(Services(decoder=make_decoder), order="last")


def make_decoder(request: DecoderRequest) -> Decoder | None:
    """Return a `PackedDecoder` where it is switched on, possible and faster."""
    if request.device.type != "cpu" or not request.packs:
        return None
    from rlcore_transformers.cpu.packed_decoder import PackedDecoder, pays

    return PackedDecoder(request) if pays(request) else None
