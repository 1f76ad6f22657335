from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from held_laws import hold
from warm_python import WarmPython
from warm_ranks import forking

from rlcore_testing import Case, conformance
from rlcore_testing.rig import isolate

OPTIONS: dict[str, dict[str, Any]] = {
    "ddpo": {
        "rollouts": 5, "batch_size": 3, "steps": 2, "guidance": 2.0, "clip_range": 0.05, "optimizer": {"lr": 3e-3},
    }
}  # fmt: skip
PROMPT_STATISTICS = {"ddpo": {**OPTIONS["ddpo"], "stats": "prompt", "stats_size": 4, "stats_min_count": 2, "epochs": 2}}
VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"options": OPTIONS, "config": {"model": {"lora": {"r": 2}}}},
    "prompt statistics": {"options": PROMPT_STATISTICS},
    "checkpointing": {"options": OPTIONS, "config": {"model": {"gradient_checkpointing": True}}},
    "bf16": {"options": OPTIONS, "config": {"run": {"mixed_precision": "bf16"}}},
}
HARDEST = {  # in bfloat16, the batches of two processes round differently
    "resume_is_exact": tuple(VARIANTS), "two_processes_equal_one": ("lora", "prompt statistics", "checkpointing"),
}  # fmt: skip
LIBRARIES = (
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion", "diffusers.schedulers.scheduling_ddim", "peft",
)  # fmt: skip
LONG = (
    "resume_is_exact", "another_process_same_numbers", "micro_batches_change_nothing", "checkpoints_change_nothing",
)  # fmt: skip
"""Laws that start processes, which load diffusers for seconds, or make many runs."""


@pytest.fixture(scope="module", autouse=True)
def _laws_fork_with_diffusers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fork the processes that laws start from one that has imported diffusers."""
    warm = WarmPython(tmp_path_factory.mktemp("warm"), LIBRARIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "_run", forking(warm, isolate._run))
        yield
    warm.close()


def parameters() -> list[Any]:
    """Return the cases of the kit; those of long laws are marked slow."""
    return [
        pytest.param(*each.values, id=each.id, marks=[pytest.mark.slow] if each.id.endswith(LONG) else [])
        for each in conformance("rlcore-ddpo", options=OPTIONS)
    ]


@pytest.mark.parametrize("law", parameters())
def test_law(law: Case) -> None:
    law()


def of_lora() -> list[Any]:
    """Return the laws of the architecture with LoRA layers."""
    found = conformance("rlcore-ddpo", options={"stable_diffusion": {"lora": {"r": 2}}})
    return [each for each in found if each.values[0].law.kind == "learners"]


@pytest.mark.slow
@pytest.mark.parametrize("law", of_lora())
def test_law_with_lora(law: Case) -> None:
    law()


@pytest.mark.nightly
@pytest.mark.parametrize(("variant", "law"), [
    (variant, law) for law, variants in HARDEST.items() for variant in variants
])  # fmt: skip
def test_the_laws_hold_with_further_options(variant: str, law: str) -> None:
    hold("rlcore-ddpo", law, **VARIANTS[variant])
