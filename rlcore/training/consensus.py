"""Checks, before the first step, that all processes of a run have the same configuration, model and data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from rlcore.checkpoints.fingerprints import fingerprint_parameters
from rlcore.checkpoints.identity import ABSENT, flatten
from rlcore.config.plain import to_json
from rlcore.errors import RanksError
from rlcore.ranks import Ranks
from rlcore.safe_text import shorten
from rlcore.settings import TrainConfig, to_record
from rlcore.training.inputs import DATA_INPUTS

LOCAL = {"model.path", "model.tokenizer", "run.root", *(f"data.{name}" for name in DATA_INPUTS)}
"""Options that may differ from machine to machine: paths, whose contents are compared instead."""
REWARDS = "data.reward_fn."
"""Prefix of the reward functions in an identity; what is bound to them, such as a device, may differ."""
MODEL = "weights of the model in memory (seed torch before building it, or pass a folder)"
SHOWN = 8


def agree_on_configuration(ranks: Ranks, config: TrainConfig) -> None:
    """Check that every option is the same on all ranks, except for the names of folders and data sets.

    Raises:
        RanksError: raised on every rank; it names each option that differs, and its values.
    """
    options = flatten(to_record(config))
    kept = {name: value for name, value in options.items() if not any(_is_within(name, local) for local in LOCAL)}
    _agree(ranks, kept, "configuration")


def agree_on_weights(ranks: Ranks, model: Any) -> None:
    """Check that a model in memory has the same weights on all ranks, before the run copies or divides it.

    Weights in a folder are compared by `agree_on_identity`.

    Raises:
        RanksError: raised on every rank, with the digests that differ.
    """
    if ranks.world > 1:
        is_here = isinstance(model, nn.Module)
        _agree(ranks, {MODEL: fingerprint_parameters(model) if is_here else "not in memory"}, "model")


def agree_on_identity(ranks: Ranks, identity: Mapping[str, Any]) -> None:
    """Check that all ranks train the same model on the same rows: prompts, samples, rewards and evaluation data.

    Raises:
        RanksError: raised on every rank; it names the data that differ, their numbers of rows and their digests.
    """
    kept = {name: "" if name.startswith(REWARDS) else value for name, value in identity.items()}
    _agree(ranks, kept, "model or data")


def _agree(ranks: Ranks, values: Mapping[str, Any], what: str) -> None:
    if ranks.world == 1:
        return
    digest = hashlib.sha256(to_json(sorted(values.items())).encode("utf-8", "surrogatepass")).hexdigest()
    if len(set(ranks.gather([digest]))) == 1:
        return
    everyone = ranks.gather([dict(values)])
    first = everyone[0]
    different = {rank: _differences(first, each) for rank, each in enumerate(everyone) if each != first}
    if not different:
        return
    rank, names = next(iter(different.items()))
    lines = [
        f"  {name}: {_show(everyone[rank], name)} on rank {rank}, {_show(first, name)} on rank 0"
        for name in names[:SHOWN]
    ]
    more = [f"  and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    ranks_text = f"rank {', '.join(map(str, different))}"
    head = f"{ranks_text}: another {what} than rank 0; every process of a run must have the same"
    raise RanksError("\n".join([head, *lines, *more]))


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in first.keys() | other.keys() if first.get(name, ABSENT) != other.get(name, ABSENT))


def _show(values: Mapping[str, Any], name: str) -> str:
    return shorten(values.get(name, ABSENT))


def _is_within(name: str, section: str) -> bool:
    return name == section or name.startswith(f"{section}.")
