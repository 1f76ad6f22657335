"""Tests of what trainers declare to `rlcore plan`: the rest follows from their options, and mistakes name them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rlcore.config import config, option
from rlcore.errors import PluginError
from rlcore.settings import BatchOptions
from rlcore_tools.plan.workload import Workload, declared, default_workload


@config
class Imitation(BatchOptions):
    batch_size: int = option(8, "sequences of one optimizer step", ge=1)
    dropout: bool = option(True, "as the model says")


@config
class Rounds(BatchOptions):
    rollouts: int = option(64, "responses of a round", ge=1)


def test_the_workload_follows_from_options_with_the_usual_names() -> None:
    assert default_workload(Imitation(micro_batch_size=2), 100) == Workload(
        batch_size=8, micro_batch_size=2, dropout=True
    )
    assert default_workload(Rounds(micro_batch_tokens=512), 100) == Workload(
        batch_size=64, micro_batch_tokens=512, num_sampled=64, num_held=64
    )


def test_a_trainer_declares_what_does_not_follow_from_its_options() -> None:
    base = attrs.asdict(default_workload(Rounds(), 100))
    found = declared(Workload, {"batch_size": 32, "value_head": True}, "acme: workload", base)
    assert found == Workload(batch_size=32, num_sampled=64, num_held=64, value_head=True)
    assert declared(Workload, found, "acme: workload", base) is found


@pytest.mark.parametrize(
    ("returned", "named"), [({"batch_sizes": 8}, "batch_sizes"), ({}, "batch_size"), (8, "int")],
)  # fmt: skip
def test_a_trainer_that_returns_no_workload_is_named_in_the_error(returned: Any, named: str) -> None:
    with pytest.raises(PluginError, match=rf"acme: workload\(\) returned .*\.plan\.workload\.Workload.*{named}"):
        declared(Workload, returned, "acme: workload")
