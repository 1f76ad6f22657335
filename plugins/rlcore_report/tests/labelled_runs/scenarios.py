"""The runs of the bench: for each trainer some that are good, and some that are broken in a known way."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from bench_models import LETTERS, VOWELS, base_model, base_scorer, prompts, word
from breakages import Inverted, Jolt, PromptsLearned, RateFactor, Sharpened, Shifted, Stale

STEPS = (40, 40, 60, 40, 30, 50, 36, 44, 56, 48, 34)
"""Steps of the runs of each seed."""


@attrs.frozen(kw_only=True)
class Scenario:
    """One kind of run.

    Attributes:
        name: begins with the trainer.
        cause: what is wrong, one of the causes of `rlcore_report.health`; empty for a good run.
        worse_than: a scenario; the run is broken only if it earns less than that one's of the same seed (`is_worse`).
        make: returns the arguments of `rlcore.train` for a seed.
        observers: return what breaks the run, if options do not.
    """

    name: str
    cause: str = ""
    worse_than: str = ""
    make: Callable[[int], dict[str, Any]]
    observers: Sequence[Callable[[], Any]] = ()


LESS, FARTHER, HIGHER = 0.1, 2.0, 1.5
"""A run that may be broken is so if, in the last fifth of the steps, its reward is lower than that of a good one by
LESS, its KL to the reference FARTHER times as large, or its loss on held-out rows HIGHER times as large, or if it did
not reach its end."""


def is_worse(rows: Sequence[Mapping[str, Any]], good: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a run is worse than a good one."""

    def late(lines: Sequence[Mapping[str, Any]], name: str) -> float:
        values = [line[name] for line in lines if name in line]
        last = values[-max(1, len(values) // 5) :]
        return sum(last) / len(last) if last else 0.0

    is_lower = late(rows, "reward/mean") < late(good, "reward/mean") - LESS
    is_far = late(rows, "kl/mean") > FARTHER * late(good, "kl/mean")
    is_higher = late(rows, "eval/loss/total") > HIGHER * late(good, "eval/loss/total")
    return len(rows) < len(good) or is_lower or is_far or is_higher


def early_letters(outputs: Sequence[str]) -> list[float]:
    """Return the share of letters before n."""
    return [sum(letter < "n" for letter in output) / max(1, len(output)) for output in outputs]


def late_letters(outputs: Sequence[str]) -> list[float]:
    """Return the share of letters from n on."""
    return [sum(letter >= "n" for letter in output) / max(1, len(output)) for output in outputs]


def vowels(outputs: Sequence[str]) -> list[float]:
    """Return the share of vowels."""
    return [sum(letter in VOWELS for letter in output) / max(1, len(output)) for output in outputs]


def shortness(outputs: Sequence[str]) -> list[float]:
    """Return 1 for an empty answer, and less for a longer one."""
    return [1 - len(output) / 10 for output in outputs]


def short_early_letters(outputs: Sequence[str]) -> list[float]:
    """Return the share of letters before n, less for answers of more than six letters."""
    pairs = zip(early_letters(outputs), outputs, strict=True)
    return [share - max(0, len(output) - 6) / 10 for share, output in pairs]


def constant(outputs: Sequence[str]) -> list[float]:
    """Return a reward that a parser gives to all, because it finds no answer."""
    return [0.0 for _ in outputs]


def noise(outputs: Sequence[str]) -> list[float]:
    """Return a reward that has nothing to do with the text."""
    numbers = random.Random("".join(outputs))
    return [numbers.random() for _ in outputs]


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        inner = isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
        merged[name] = _merged(base[name], value) if inner else value
    return merged


def online(trainer: Mapping[str, Any], **changes: Any) -> Callable[[int], dict[str, Any]]:
    """Return a function from a seed to the arguments of a run that samples; `changes` differ from the usual ones."""

    def make(seed: int) -> dict[str, Any]:
        base = {
            "model": base_model(seed), "trainer": trainer, "prompts": prompts(seed), "reward_fn": early_letters,
            "eval_prompts": prompts(seed + 50), "gen": {"max_new_tokens": 12}, "run": {"steps": STEPS[seed]},
            "eval": {"every": 10, "at_start": True, "num_prompts": 16},
        }  # fmt: skip
        return _merged(base, changes)

    return make


def _answers(seed: int, count: int) -> list[list[str]]:
    numbers = random.Random(seed)
    return [[start, word(numbers)] for start in ("".join(numbers.choices(LETTERS, k=4)) + ". " for _ in range(count))]


def offline(trainer: Mapping[str, Any], rows: Callable[[int], dict[str, Any]], **changes: Any) -> Callable[[int], Any]:
    """Return a function from a seed to the arguments of a run on rows; `changes` differ from the usual ones."""

    def make(seed: int) -> dict[str, Any]:
        base = {
            "model": base_model(seed), "trainer": trainer, "run": {"steps": STEPS[seed]},
            "eval": {"every": 10, "at_start": True}, **rows(seed),
        }  # fmt: skip
        return _merged(base, changes)

    return make


def demonstrations(seed: int) -> dict[str, Any]:
    """Return words as answers to four letters, for training and evaluation."""
    return {"samples": _answers(seed, 256), "eval_samples": _answers(seed + 7, 128)}


def few_demonstrations(seed: int) -> dict[str, Any]:
    """Return so few words that they are learned by heart."""
    return {"samples": _answers(seed, 16), "eval_samples": _answers(seed + 7, 128)}


def _pairs(seed: int, count: int, wrong: float) -> list[dict[str, str]]:
    numbers, rows = random.Random(seed), []
    while len(rows) < count:
        answers = sorted((word(numbers), word(numbers)), key=lambda text: early_letters([text])[0])
        if early_letters(answers[:1]) != early_letters(answers[1:]):
            rejected, chosen = answers if numbers.random() >= wrong else answers[::-1]
            rows.append({"prompt": "".join(numbers.choices(LETTERS, k=2)), "chosen": chosen, "rejected": rejected})
    return rows


def preferences(
    wrong: float = 0.0, wrong_held_out: float | None = None, count: int = 256
) -> Callable[[int], dict[str, Any]]:
    """Return a function that gives pairs in which the chosen answer has more letters before n, but for a share."""
    held = wrong if wrong_held_out is None else wrong_held_out
    return lambda seed: {"samples": _pairs(seed, count, wrong), "eval_samples": _pairs(seed + 7, 128, held)}


def scored(seed: int) -> dict[str, Any]:
    """Return words with rewards."""
    rows = _answers(seed, 256)
    return {
        "samples": rows,
        "rewards": early_letters([row[1] for row in rows]),
        "eval_samples": _answers(seed + 7, 128),
    }


def options_of(name: str, lr: float, **options: Any) -> dict[str, Any]:
    """Return the options of a trainer; those of the schedule are options of its optimizer."""
    schedule = {part: options.pop(part) for part in ("scheduler", "warmup_steps") if part in options}
    return {"name": name, "optimizer": {"lr": lr, **schedule}, **options}


def sft(lr: float = 2e-3, **options: Any) -> dict[str, Any]:
    """Return the options of supervised fine-tuning."""
    return options_of("sft", lr, **{"batch_size": 32, **options})


def dpo(lr: float = 3e-4, **options: Any) -> dict[str, Any]:
    """Return the options of DPO."""
    return options_of("dpo", lr, batch_size=32, cache_ref=False, **options)


def ppo(lr: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Return the options of PPO."""
    return options_of("ppo", lr, **{"rollouts": 64, "batch_size": 32, "epochs": 2, "kl_coef": 0.01, **options})


def grpo(lr: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Return the options of GRPO."""
    return options_of("grpo", lr, **{"rollouts": 64, "num_generations": 8, "iterations": 2, "kl_coef": 0.01, **options})


def rft(lr: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Return the options of RFT."""
    return options_of("rft", lr, **{"generations": 8, "batch_size": 32, **options})


def ilql(lr: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Return the options of ILQL."""
    return options_of("ilql", lr, batch_size=32, **options)


def scorer(lr: float = 3e-3) -> dict[str, Any]:
    """Return the options of reward-model training."""
    return options_of("reward", lr, batch_size=32)


def scoring(
    trainer: Mapping[str, Any], wrong: float = 0.0, held_out: float | None = None, count: int = 256
) -> Callable[[int], Any]:
    """Return a function from a seed to the arguments of a run that trains a reward model."""
    make = offline(trainer, preferences(wrong, held_out, count))
    return lambda seed: make(seed) | {"model": base_scorer(seed)}


GOOD = (
    Scenario(name="sft-good", make=offline(sft(), demonstrations)),
    Scenario(name="sft-cosine", make=offline(sft(4e-3, scheduler="cosine", warmup_steps=4), demonstrations)),
    Scenario(name="dpo-good", make=offline(dpo(), preferences())),
    Scenario(name="reward-good", make=scoring(scorer(1e-3), count=512)),
    Scenario(name="ppo-good", make=online(ppo())),
    Scenario(name="ppo-two-rewards", make=online(ppo(), reward_fn=[early_letters, vowels])),
    Scenario(name="grpo-good", make=online(grpo())),
    Scenario(name="grpo-solved", make=online(grpo(3e-3, kl_coef=0.0), reward_fn=short_early_letters)),
    Scenario(name="grpo-slow", make=online(grpo(2e-4, scheduler="linear", warmup_steps=4))),
    Scenario(name="ppo-plain", make=online(ppo(kl_coef=0.0), reward_fn=short_early_letters)),
    Scenario(name="rft-good", make=online(rft())),
    Scenario(name="ilql-good", make=offline(ilql(), scored)),
    Scenario(name="online_dpo-good", make=online(options_of("online_dpo", 1e-3, batch_size=32))),
)
TOO_LARGE, TOO_SMALL = "step too large", "step too small"
BROKEN = (
    Scenario(name="sft-rate-100x", cause=TOO_LARGE, make=offline(sft(0.2), demonstrations)),
    Scenario(name="sft-spike", cause="spike", make=offline(sft(), demonstrations), observers=[lambda: Jolt(20, 0.3)]),
    Scenario(name="sft-wrong-mask", cause="wrong mask", make=offline(sft(), demonstrations),
             observers=[PromptsLearned]),
    Scenario(name="sft-overfitted", cause="overfitting", make=offline(sft(), few_demonstrations)),
    Scenario(name="sft-rate-tiny", cause=TOO_SMALL, make=offline(sft(1e-7), demonstrations)),
    Scenario(name="sft-rate-zero", cause="learning rate 0", make=offline(sft(), demonstrations),
             observers=[lambda: RateFactor(10, 0.0)]),
    Scenario(name="dpo-rate-100x", cause=TOO_LARGE, make=offline(dpo(3e-2), preferences())),
    Scenario(name="dpo-chance", cause="labels are noise", make=offline(dpo(), preferences(0.5))),
    Scenario(name="dpo-inverted", cause="labels inverted", make=offline(dpo(), preferences(1.0, 0.0))),
    Scenario(name="dpo-rate-tiny", cause=TOO_SMALL, make=offline(dpo(1e-7), preferences())),
    Scenario(name="reward-rate-100x", cause=TOO_LARGE, make=scoring(scorer(0.3))),
    Scenario(name="reward-chance", cause="labels are noise", make=scoring(scorer(), 0.5)),
    Scenario(name="reward-inverted", cause="labels inverted", make=scoring(scorer(), 1.0, 0.0)),
    Scenario(name="ppo-rate-30x", cause=TOO_LARGE, make=online(ppo(3e-2, kl_coef=1e-4, target_kl=None))),
    Scenario(name="ppo-rate-100x", cause=TOO_LARGE, make=online(ppo(0.1, kl_coef=1e-4, target_kl=None))),
    Scenario(name="ppo-rate-10x", cause=TOO_LARGE, make=online(ppo(1e-2)), worse_than="ppo-good"),
    Scenario(name="ppo-constant", cause="reward constant", make=online(ppo(), reward_fn=constant)),
    Scenario(name="ppo-inverted", cause="reward inverted", make=online(ppo(kl_coef=1e-3)), observers=[Inverted]),
    Scenario(name="ppo-no-critic", cause="value function", make=online(ppo(value_coef=0.0))),
    Scenario(name="ppo-stale", cause="samples of another policy", make=online(ppo()), observers=[Stale]),
    Scenario(name="ppo-wrong-mask", cause="samples of another policy", make=online(ppo(kl_coef=0.0)),
             observers=[Shifted]),
    Scenario(name="ppo-rewards-disagree", cause="rewards disagree",
             make=online(ppo(), reward_fn=[early_letters, (late_letters, 0.2)])),
    Scenario(name="ppo-truncated", cause="truncation", make=online(ppo(), gen={"max_new_tokens": 2})),
    Scenario(name="ppo-rate-tiny", cause=TOO_SMALL, make=online(ppo(1e-7))),
    Scenario(name="grpo-rate-100x", cause=TOO_LARGE, make=online(grpo(0.1))),
    Scenario(name="grpo-rate-10x", cause=TOO_LARGE, make=online(grpo(1e-2)), worse_than="grpo-good"),
    Scenario(name="grpo-default-rate", cause=TOO_SMALL, make=online(grpo(1e-6, iterations=1, kl_coef=0.0))),
    Scenario(name="grpo-constant", cause="reward constant", make=online(grpo(), reward_fn=constant)),
    Scenario(name="grpo-inverted", cause="reward inverted", make=online(grpo(kl_coef=1e-3)), observers=[Inverted]),
    Scenario(name="grpo-noise", cause="reward does not depend on the text", make=online(grpo(), reward_fn=noise)),
    Scenario(name="grpo-entropy", cause="entropy", make=online(grpo()), observers=[lambda: Sharpened(1.15)]),
    Scenario(name="grpo-stale", cause="samples of another policy", make=online(grpo()), observers=[Stale]),
    Scenario(name="grpo-empty", cause="length", make=online(grpo(3e-3, kl_coef=0.0), reward_fn=shortness)),
    Scenario(name="grpo-truncated", cause="truncation", make=online(grpo(), gen={"max_new_tokens": 2})),
    Scenario(name="online_dpo-constant", cause="reward constant",
             make=online(options_of("online_dpo", 1e-3, batch_size=32), reward_fn=constant)),
    Scenario(name="online_dpo-empty", cause="length",
             make=online(options_of("online_dpo", 3e-3, batch_size=32), reward_fn=shortness)),
    Scenario(name="rft-constant", cause="reward constant", make=online(rft(), reward_fn=constant)),
    Scenario(name="rft-rate-100x", cause=TOO_LARGE, make=online(rft(0.1))),
    Scenario(name="ilql-rate-100x", cause=TOO_LARGE, make=offline(ilql(0.1), scored)),
    Scenario(name="ilql-rate-tiny", cause=TOO_SMALL, make=offline(ilql(1e-7), scored)),
)  # fmt: skip
