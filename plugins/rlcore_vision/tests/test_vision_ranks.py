"""Two processes learn as one, also where one of them has a batch without images."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "shard"), [("llava", "none"), ("qwen2_vl", "none"), ("qwen2_vl", "fsdp"), ("llava", "zero3")]
)
def test_two_processes_of_which_one_has_no_image_learn_as_one(family: str, shard: str, tmp_path: Path) -> None:
    one = call_in_new_process(
        "vision_ranks:trained", {"folder": str(tmp_path / "one"), "family": family, "shard": "none"}, what="one"
    )
    two = call_on_two_ranks(
        "vision_ranks:trained", {"folder": str(tmp_path / "two"), "family": family, "shard": shard}, what="two"
    )
    assert one.keys() == two.keys()
    for name, expected in one.items():
        assert two[name] == pytest.approx(expected, rel=1e-4, abs=2e-6), name
    assert sum(norm > 1e-3 for name, (_, norm) in one.items() if name.startswith(("vision_tower", "visual"))) > 8
