"""Benchmark case: the gain of single techniques; a program as it is, and with one technique disabled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore_tools.bench.duel import Duel

TITLE = "One technique at a time: with it, and without"
ITERATION: dict[str, Any] = {"figure": "s_per_iteration", "cpu_figure": "cpu_s_per_iteration"}
TOKENS: dict[str, Any] = {"figure": "tokens_per_s", "better": "more"}


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the techniques that speed up learning on random walks, then those that speed up sampling."""
    base = str(folder / "base")
    walks = ["train_ppo.py", base, "--iterations", "3" if quick else "12"]
    making = [["hand_ppo.py", "base", base]]
    repeats = ["--repeats", "1" if quick else "3"]
    natural = ["sampling_speed.py", "rlcore", *repeats]
    large = [*natural, "--vocabulary", "32000"]
    grouped = [*natural, "--prompts", "160", "160", "--samples", "8"]
    few = [*natural, "--batch", "16", "--prompts", "1", "256", "--new-tokens", "128"]
    in_learning = (
        "reused_logprobs", "prefixes", "attention_groups", "fused_activations", "fused_optimizer",
    )  # fmt: skip
    found = [
        Duel(f"random walks: {name}", walks, ["without.py", name, *walks], prepare=making, **ITERATION)
        for name in in_learning
    ]
    reference = [*walks, "--kl-coef", "0.05"]
    found.append(
        Duel(
            "random walks: a KL coefficient of 0, and one of .05, for which a reference is asked",
            walks,
            reference,
            prepare=making,
            **ITERATION,
        )
    )
    for what, work, name in (
        ("128 prompts of 1 to 64 tokens", natural, "packed_decoding"),
        ("128 prompts of 1 to 64 tokens", natural, "early_leaving"),
        ("the same, vocabulary 32,000", large, "inverse_cdf"),
        ("8 samples of each of 16 prompts of 160 tokens", grouped, "shared_prompts"),
        ("16 prompts of 1 to 256 tokens", few, "preallocated_cache"),
    ):
        found.append(Duel(f"{what}: {name}", work, ["without.py", name, *work], **TOKENS))
    return found
