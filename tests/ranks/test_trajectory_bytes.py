"""Tests of trajectories as bytes: they are read back as they were, and take as many bytes as documented."""

from __future__ import annotations

import pytest
import torch

from rlcore.ranks.trajectory_bytes import header, num_bytes, pack, unpack
from rlcore.types import Trajectories

WIDTH, LENGTHS = 6, (4, 1, 6)


def make_batch() -> Trajectories:
    """Return three sequences, the first padded on the left, with a column of every kind."""
    at, lengths = torch.arange(WIDTH), torch.tensor(LENGTHS)[:, None]
    mask = at < lengths
    mask[0] = at >= 2
    random = torch.Generator().manual_seed(0)
    columns = {
        "values": torch.randn(3, WIDTH, generator=random),
        "half": torch.randn(3, WIDTH, generator=random).bfloat16(),
        "scores": torch.randn(3, generator=random, dtype=torch.float64),
        "has_score": torch.tensor([True, False, True]),
        "latents": torch.randn(3, 2, 5, generator=random),
    }
    tokens = torch.randint(2**31 - 1, (3, WIDTH), generator=random)
    return Trajectories(tokens, mask, mask & (mask.cumsum(1) > 1), torch.tensor([True, True, False]), columns)


@pytest.mark.parametrize("rows", [[0, 1, 2], [2], []], ids=str)
def test_an_unpacked_batch_equals_the_packed_one(rows: list[int]) -> None:
    own = make_batch()
    sent = own.each(lambda array: array[rows])
    packed = pack(sent)
    assert len(packed) == num_bytes(own, header(sent))
    longer = torch.cat([packed, packed.new_full((9,), 255)])
    read = unpack(longer, own, header(sent))
    for name in ("mask", "action_mask", "ended"):
        assert torch.equal(getattr(read, name), getattr(sent, name))
    assert torch.equal(read.tokens, sent.tokens.masked_fill(~sent.mask, 0))
    for name, array in sent.columns.items():
        expected = array.masked_fill(~sent.mask, 0) if array.shape[1:] == (WIDTH,) else array
        assert read[name].dtype == array.dtype
        assert torch.equal(read[name], expected)


def test_a_real_token_takes_eight_bytes_with_one_float32_column_and_padding_one() -> None:
    batch = make_batch().with_only("values")
    assert len(pack(batch)) == sum(LENGTHS) * (4 + 4) + 3 * WIDTH * 1 + 3 * 1


def test_batches_with_different_columns_have_different_checksums() -> None:
    batch = make_batch()
    others = (
        batch.rename(values="value"),
        batch.with_columns(values=batch["values"].double()),
        batch.with_columns(values=batch["scores"].float()),
        batch.with_columns(latents=batch["latents"][:, :1]),
    )
    assert len({header(each)[-1] for each in (batch, *others)}) == 5
    assert header(batch.each(lambda array: array[:0]))[-1] == header(batch)[-1]
