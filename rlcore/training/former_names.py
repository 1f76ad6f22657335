"""Names of a run in rlcore 0.1, which are names of its parts now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _part(path: str) -> tuple[str, Callable[[Any], Any]]:
    part, name = path.split(".")
    return path, lambda run: getattr(getattr(run, part), name)


def _build_policy(run: Any) -> Callable[..., Any]:
    def build_policy(*, value_head: bool = False, reference: bool = False, q_heads: int = 0) -> Any:
        heads = {"q_heads": q_heads} if q_heads else {}
        return run.build("policy", value_head=value_head or q_heads > 0, reference=reference, **heads)

    return build_policy


def _built(kind: str) -> Callable[[Any], Any]:
    return lambda run: run.models.built if run.models.kind == kind else None


FORMER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "build_policy": ('build("policy")', _build_policy),
    "build_scorer": ('build("scorer")', lambda run: lambda: run.build("scorer")),
    "build_learner": ("build(kind)", lambda run: run.build),
    "build_frozen": _part("models.frozen"),
    "policy": ("learner", _built("policy")),
    "scorer": ("learner", _built("scorer")),
    "built_policy": _part("models.policy"),
    "tokenizer": ("learner.tokenizer", lambda run: run.learner.tokenizer),
    "elapsed_s": _part("progress.elapsed_s"),
    "samples_exactly": ("sampling.is_exact", lambda run: run.sampling.is_exact),
    "open_reward": ("closing.hold", lambda run: run.closing.hold),
    "close_at_end": ("closing.hold", lambda run: run.closing.hold),
    **{
        name: _part(f"{part}.{name}")
        for part, names in {
            "models": ("is_full_precision",),
            "data": (
                "inputs", "eval_prompts", "eval_samples", "sample_stream", "ordered_samples", "sample_rewards",
                "read_prompts", "reward_fn", "metric_fn",
            ),
            "sampling": (
                "sampler", "generator", "row_seeds", "sample", "score", "score_outputs", "rollouts", "logit_mask",
            ),
        }.items()
        for name in names
    },
}  # fmt: skip
"""Name of rlcore 0.1 → what took its place, and how it is found."""
