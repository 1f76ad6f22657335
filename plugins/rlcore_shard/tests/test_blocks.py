"""Tests of the groups in which weights are gathered."""

from __future__ import annotations

from rlcore_shard.block_passes import norms_of
from rlcore_testing.small import make_gpt2, make_llama, make_t5


def test_norms_are_gathered_apart_and_blocks_with_other_layers_that_autocast_leaves_in_32_bits_are_not_rounded() -> (
    None
):
    assert [type(norm).__name__ for norm in norms_of(make_llama().model.layers[0]) or ()] == ["LlamaRMSNorm"] * 2
    assert [type(norm).__name__ for norm in norms_of(make_gpt2().transformer.h[0]) or ()] == ["LayerNorm"] * 2
    first, second = make_t5().encoder.block[:2]
    assert norms_of(first) is None  # its relative positions are an embedding
    assert len(norms_of(second) or ()) == 2
