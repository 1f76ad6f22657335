"""Tests of options shared by trainers: where they are listed, and that they are checked."""

from __future__ import annotations

import pytest

from rlcore.config import config, describe, option, structure
from rlcore.errors import ConfigError
from rlcore.settings import BatchOptions, OptimizerConfig


@config
class Imitation(BatchOptions):
    batch_size: int = option(8, "sequences of one optimizer step", ge=1)
    optimizer: OptimizerConfig = option(OptimizerConfig(lr=0.5), "with a rate of its own")
    dropout: bool = option(True, "as the model says")


def test_a_class_lists_its_own_options_first_and_the_inherited_ones_after_them() -> None:
    names = list(dict.fromkeys(row.path.split(".")[0] for row in describe(Imitation)))
    assert names == ["batch_size", "optimizer", "dropout", "micro_batch_size", "micro_batch_tokens"]


def test_inherited_options_are_set_and_checked_like_others() -> None:
    options = structure(Imitation, {"micro_batch_size": 2, "optimizer": {"eps": 1e-6}})
    assert (options.micro_batch_size, options.optimizer.lr, options.optimizer.eps) == (2, 0.5, 1e-6)
    with pytest.raises(ConfigError, match="micro_batch_tokens = -1: must be at least 0"):
        structure(Imitation, {"micro_batch_tokens": -1})
    with pytest.raises(ConfigError, match="micro_batch_siz: no such option; did you mean 'micro_batch_size'"):
        structure(Imitation, {"micro_batch_siz": 1})
