"""More runs of the bench: of trainers that came later and the loss `kto`, and defects that come and go."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from bench_models import LETTERS, base_classifier, teacher
from breakages import Inverted, RateFactor
from scenarios import (
    STEPS,
    TOO_LARGE,
    TOO_SMALL,
    Scenario,
    constant,
    demonstrations,
    dpo,
    grpo,
    noise,
    offline,
    online,
    options_of,
    ppo,
    preferences,
    scorer,
    scoring,
    sft,
    short_early_letters,
)
from torch import Tensor

from rlcore_ddpo.pipeline_loading import make_tiny_pipeline


def in_order(outputs: Sequence[str]) -> list[float]:
    """Return the share of letters after which comes one that the teacher's words have there."""
    return [_share_in_order(output) for output in outputs]


def _share_in_order(output: str) -> float:
    places = [LETTERS.find(letter) for letter in output]
    pairs = list(itertools.pairwise(places))
    return sum(min(pair) >= 0 and (pair[1] - pair[0]) % 26 in (1, 2, 3, 5) for pair in pairs) / max(1, len(pairs))


def _distilled(lr: float = 2e-3, **options: Any) -> Callable[[int], dict[str, Any]]:
    def make(seed: int) -> dict[str, Any]:
        trainer = options_of("distill", lr, **{"teacher": teacher(seed), "batch_size": 32, **options})
        return offline(trainer, demonstrations, gen={"max_new_tokens": 12})(seed)

    return make


def _distilled_and_scored(*, is_right: bool = True) -> Callable[[int], dict[str, Any]]:
    """Return runs on the policy's own outputs; with the wrong teacher, the policy is the right one at first."""

    def make(seed: int) -> dict[str, Any]:
        trainer = {"teacher": teacher(seed, is_trained=is_right), "on_policy": 1.0, "divergence": "reverse_kl"}
        arguments = _distilled(**trainer)(seed) | {"reward_fn": in_order}
        return arguments if is_right else arguments | {"model": teacher(seed)}

    return make


def reinforce(lr: float = 3e-3, **options: Any) -> dict[str, Any]:
    """Return the options of REINFORCE."""
    return options_of("reinforce", lr, **{"rollouts": 64, **options})


def kto(lr: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Return the options of KTO."""
    return options_of("dpo", lr, loss="kto", batch_size=32, **options)


def redness(images: Tensor) -> list[float]:
    """Return by how much each image is redder than green and blue."""
    return [float(image[0].mean() - image[1:].mean()) for image in images]


def _painted(lr: float = 2e-3) -> Callable[[int], dict[str, Any]]:
    trainer = {
        "rollouts": 32,
        "batch_size": 8,
        "steps": 3,
        "guidance": 1.0,
        "clip_range": 0.02,
        "warmup_steps": 20,
    }

    def make(seed: int) -> dict[str, Any]:
        return {
            "model": make_tiny_pipeline(seed=seed), "tokenizer": None, "trainer": options_of("ddpo", lr, **trainer),
            "prompts": ["a cat", "a dog"], "reward_fn": redness, "gen": {"batch_size": 32},
            "run": {"steps": STEPS[seed] // 2}, "eval": {"every": 10, "at_start": True, "samples": 4, "show": 0},
        }  # fmt: skip

    return make


def _stepped(
    lr: float = 2e-3, wrong: float = 0.0, held_out: float | None = None, **options: Any
) -> Callable[[int], dict[str, Any]]:
    """Return runs of a process-reward model: steps of letters before n are correct; a share of the labels is wrong."""

    def rows(numbers: random.Random, count: int, share: float) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            correct = [numbers.random() < 0.5 for _ in range(3)]
            lines = ["".join(numbers.choices(LETTERS[:13] if each else LETTERS[13:], k=5)) for each in correct]
            labels = [each != (numbers.random() < share) for each in correct]
            found.append({"prompt": "".join(numbers.choices(LETTERS, k=4)), "completions": lines, "labels": labels})
        return found

    def make(seed: int) -> dict[str, Any]:
        shares = (wrong, wrong if held_out is None else held_out)
        samples, eval_samples = (
            rows(random.Random(seed + i * 50), count, share)
            for i, (count, share) in enumerate(zip((512, 128), shares, strict=True))
        )
        return {
            "model": base_classifier(seed), "trainer": options_of("process_reward", lr, batch_size=32, **options),
            "samples": samples, "eval_samples": eval_samples, "run": {"steps": STEPS[seed]},
            "eval": {"every": 10, "at_start": True},
        }  # fmt: skip

    return make


def _distilled_on_prompts(lr: float = 2e-3) -> Callable[[int], dict[str, Any]]:
    def make(seed: int) -> dict[str, Any]:
        trainer = options_of("distill_prompts", lr, teacher=teacher(seed), batch_size=32)
        own, held_out = ([row[0] for row in demonstrations(seed)[name]] for name in ("samples", "eval_samples"))
        return online(trainer, reward_fn=in_order, prompts=own, eval_prompts=held_out)(seed)

    return make


OTHER_GOOD = (
    Scenario(name="process_reward-good", make=_stepped()),
    Scenario(name="distill_prompts-good", make=_distilled_on_prompts()),
    Scenario(name="distill-good", make=_distilled()),
    Scenario(name="distill-demonstrations", make=_distilled(on_policy=0.0, divergence="forward_kl")),
    Scenario(name="distill-scored", make=_distilled_and_scored()),
    Scenario(name="reinforce-good", make=online(reinforce())),
    Scenario(name="reinforce-short", make=online(reinforce(), reward_fn=short_early_letters)),
    Scenario(name="kto-good", make=offline(kto(), preferences())),
    Scenario(name="ddpo-good", make=_painted()),
)
OTHER_BROKEN = (
    Scenario(name="process_reward-rate-100x", cause=TOO_LARGE, make=_stepped(0.2)),
    Scenario(name="process_reward-rate-tiny", cause=TOO_SMALL, make=_stepped(1e-8)),
    Scenario(name="process_reward-chance", cause="labels are noise", make=_stepped(wrong=0.5)),
    Scenario(name="process_reward-inverted", cause="labels inverted", make=_stepped(wrong=1.0, held_out=0.0)),
    Scenario(name="distill_prompts-rate-100x", cause=TOO_LARGE, make=_distilled_on_prompts(0.2)),
    Scenario(name="distill_prompts-rate-tiny", cause=TOO_SMALL, make=_distilled_on_prompts(1e-7)),
    Scenario(name="distill-rate-100x", cause=TOO_LARGE, make=_distilled(0.2)),
    Scenario(name="distill-rate-10x", cause=TOO_LARGE, make=_distilled(2e-2), worse_than="distill-good"),
    Scenario(name="distill-rate-tiny", cause=TOO_SMALL, make=_distilled(1e-7)),
    Scenario(name="distill-wrong-teacher", cause="wrong teacher", make=_distilled_and_scored(is_right=False)),
    Scenario(name="reinforce-rate-100x", cause=TOO_LARGE,
             make=online(reinforce(0.3), reward_fn=short_early_letters), worse_than="reinforce-short"),
    Scenario(name="reinforce-rate-10x", cause=TOO_LARGE,
             make=online(reinforce(3e-2), reward_fn=short_early_letters), worse_than="reinforce-short"),
    Scenario(name="reinforce-rate-tiny", cause=TOO_SMALL, make=online(reinforce(1e-7))),
    Scenario(name="reinforce-constant", cause="reward constant", make=online(reinforce(), reward_fn=constant)),
    Scenario(name="reinforce-inverted", cause="reward inverted", make=online(reinforce()), observers=[Inverted]),
    Scenario(name="reinforce-noise", cause="reward does not depend on the text",
             make=online(reinforce(), reward_fn=noise)),
    Scenario(name="reinforce-truncated", cause="truncation", make=online(reinforce(), gen={"max_new_tokens": 2})),
    Scenario(name="kto-rate-100x", cause=TOO_LARGE, make=offline(kto(0.1), preferences())),
    Scenario(name="kto-rate-tiny", cause=TOO_SMALL, make=offline(kto(1e-7), preferences())),
    Scenario(name="kto-chance", cause="labels are noise", make=offline(kto(), preferences(0.5))),
    Scenario(name="kto-inverted", cause="labels inverted", make=offline(kto(), preferences(1.0, 0.0))),
    Scenario(name="ddpo-rate-100x", cause=TOO_LARGE, make=_painted(0.2)),
    Scenario(name="ddpo-inverted", cause="reward inverted", make=_painted(), observers=[Inverted]),
    Scenario(name="reward-overfitted", cause="overfitting", make=scoring(scorer(), count=24)),
    Scenario(name="sft-recovers", cause="spike", make=offline(sft(), demonstrations),
             observers=[lambda: RateFactor(15, 100.0), lambda: RateFactor(17, 0.01)]),
    Scenario(name="sft-early-recovers", cause=TOO_LARGE, make=offline(sft(), demonstrations),
             observers=[lambda: RateFactor(1, 100.0), lambda: RateFactor(4, 0.01)]),
    Scenario(name="dpo-collapse", cause=TOO_LARGE, make=offline(dpo(1e-2, beta=0.01), preferences())),
    Scenario(name="grpo-kl-explosion", cause=TOO_LARGE, make=online(grpo(kl_coef=1e-5)),
             observers=[lambda: RateFactor(1, 50.0), lambda: RateFactor(3, 0.02)]),
    Scenario(name="ppo-kl-explosion", cause=TOO_LARGE, make=online(ppo(kl_coef=1e-5, target_kl=None)),
             observers=[lambda: RateFactor(1, 50.0), lambda: RateFactor(3, 0.02)]),
)  # fmt: skip
