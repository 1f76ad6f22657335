"""The workload of a trainer: as it declares it, or guessed from the names of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.settings import BatchOptions
from rlcore_plan.workload import Workload, declared, default_workload

ASSUMED = ("batch_size", "micro_batch_size", "micro_batch_tokens")
"""Options with the usual names, from which the workload of a trainer is guessed that declares none."""


def workload_of(trainer: Any, options: Any, name: str, num_prompts: int) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload that a trainer declares, or one guessed from the names of its options, with a note.

    Raises:
        PluginError: `workload` of the trainer returns no attributes of a workload.
    """
    declare = getattr(trainer, "workload", None)
    if declare is not None:
        base = attrs.asdict(default_workload(options)) if isinstance(options, BatchOptions) else {}
        return declared(Workload, declare(options, num_prompts), f"{name}: workload", base), ()
    values: Mapping[str, Any] = {} if options is None else attrs.asdict(options, recurse=False)
    sizes = {key: int(values[key]) for key in ASSUMED if isinstance(values.get(key), int)}
    samples = "prompts" in trainer.needs
    sampled = int(values.get("rollouts", sizes.get("batch_size", 32))) if samples else 0
    guess = Workload(
        batch_size=sizes.get("batch_size", sampled or 32),
        micro_batch_size=sizes.get("micro_batch_size", 0),
        micro_batch_tokens=sizes.get("micro_batch_tokens", 0),
        num_sampled=sampled,
        num_held=sampled,
        reference=bool(values.get("kl_coef")),
        num_scored=sampled if values.get("kl_coef") else 0,
    )
    return guess, (f"{name} declares no workload; assumed from the names of its options: {guess}",)
