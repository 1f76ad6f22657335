"""Tests of the switches of speed: with its option on, a technique is used; with it off, it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from tiny import GPT, make_causal
from transformers import GPTJConfig

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_ilql import q_heads as q_head_module
from rlcore_ilql.config import q_heads
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.cpu.packed_decoder import PackedDecoder, SharedCache
from rlcore_transformers.models import forward
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.decoding.cache import PreallocatedLayer
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig, SpeedConfig
from rlcore_transformers.models.speed import BY_NAME, activations, fused_logprobs, packing
from rlcore_transformers.models.speed.frozen_trunk import FrozenTrunk
from rlcore_transformers.models.speed.packing import AttentionGroups
from rlcore_transformers.sampling import sampler


@attrs.frozen(eq=False)
class Bench:
    """One technique, switched on or off, and what its tests need.

    Attributes:
        name: the technique.
        on: whether it is switched on.
        patch: replaces functions until the test ends.
        make_trainer: the fixture.
        folder: an empty folder.
    """

    name: str
    on: bool
    patch: pytest.MonkeyPatch
    make_trainer: Callable[..., Any]
    folder: Path

    def calls(self, owner: Any, function: str) -> list[str]:
        """Wrap `function` of `owner` so that each call adds an entry to the list that is returned."""
        inner, calls = getattr(owner, function), list[str]()

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(function)
            return inner(*args, **kwargs)

        self.patch.setattr(owner, function, counted)
        return calls

    def causal(self, model: Any = None, *, heads: Any = None, value_head: bool = False, **options: Any) -> Any:
        """Build a decoder-only policy with the switch."""
        config = CausalLMConfig(speed=SpeedConfig(**{self.name: self.on}), **options)
        return build_causal_lm(
            make_gpt2() if model is None else model, config, tokenizer=make_tokenizer(), heads=heads,
            value_head=value_head,
        )  # fmt: skip

    def t5(self) -> Any:
        """Build an encoder-decoder with the switch."""
        config = Seq2SeqLMConfig(speed=SpeedConfig(**{self.name: self.on}))
        return build_seq2seq_lm(make_t5(), config, tokenizer=make_tokenizer())

    def ppo(self, *, optimizer: Any = None) -> Any:
        """Build a PPO trainer whose sequences end at different tokens."""
        given: dict[str, Any] = {"gen": {"max_new_tokens": 40}, "sampler": {"name": "default"}}
        for section in ("gen", "sampler"):
            option = BY_NAME[self.name].option
            if option.startswith(f"{section}."):
                given[section][option.removeprefix(f"{section}.")] = self.on
        inputs = {"prompts": ["a", "b", "c", "d"] * 4, "reward_fn": lambda outputs: [0.0] * len(outputs)}
        options = {} if optimizer is None else {"optimizer": optimizer}
        return self.make_trainer(
            "ppo", make_gpt2(), sections=given, inputs=inputs, rollouts=16, batch_size=16, kl_coef=0.0, **options
        )


def batch_of(*lengths: int, begins: int = 2) -> Trajectories:
    """Return sequences that begin with the same tokens, with all but the first token chosen."""
    rows = [[5] * min(begins, length) + [6 + i] * (length - begins) for i, length in enumerate(lengths)]
    return Trajectories.stack(rows, [[False] + [True] * (len(row) - 1) for row in rows])


def draw_from(policy: Any, num: int, *, distinct: int = 1, length: int = 4) -> None:
    """Sample `num` sequences after prompts of `length` tokens, some of them equal."""
    prompts = [Prompt(text="", tokens=(3 + i % distinct, *[4] * (length - 1))) for i in range(num)]
    sample(policy, prompts, SamplingConfig(max_new_tokens=6), generator=torch.Generator().manual_seed(1))


def packing_in_scores(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(packing.Packing, "attend")
    policy.score(batch_of(3, 9))
    return bool(calls)


def prefixes_in_scores(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(packing, "distinct_prefixes")
    policy.score(batch_of(12, 12, begins=9))
    return bool(calls)


def prefixes_in_prompts(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(packing, "distinct_prefixes")
    draw_from(policy, 40)
    draw_from(policy, 2)
    return bool(calls)


def prefixes_in_the_trunk(bench: Bench) -> bool:
    policy = bench.causal(unfrozen_layers=1)
    with policy.training_step():
        policy.score(batch_of(3))
        calls = bench.calls(packing, "distinct_prefixes")
        policy.score(batch_of(3, 9, 9))
    return bool(calls)


def attention_groups(bench: Bench) -> bool:
    policy = bench.causal()
    bench.patch.setattr(packing, "CALL", 0)
    calls = bench.calls(AttentionGroups, "attend")
    policy.score(batch_of(3, 9, begins=0))
    return bool(calls)


def length_groups_of(policy: Any, bench: Bench) -> bool:
    bench.patch.setattr(activations, "PASS", 0)
    passes = list[int]()
    policy.model.register_forward_pre_hook(lambda *_: passes.append(1))
    policy.score(batch_of(3, 20, 20))
    return len(passes) > 1


def length_groups_of_gptj(bench: Bench) -> bool:
    return length_groups_of(bench.causal(make_causal(GPTJConfig(**GPT, rotary_dim=4))), bench)


def length_groups_of_t5(bench: Bench) -> bool:
    return length_groups_of(bench.t5(), bench)


def frozen_trunk(bench: Bench) -> bool:
    policy = bench.causal(unfrozen_layers=1)
    calls = bench.calls(FrozenTrunk, "_replaced")
    with policy.training_step():
        for _ in range(2):
            policy.score(batch_of(3, 9))
    return bool(calls)


def fused_logprobs_of_the_policy(bench: Bench) -> bool:
    policy = bench.causal()
    bench.patch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    calls = bench.calls(forward, "score_tokens")
    policy.score(batch_of(3, 9))
    return bool(calls)


def fused_logprobs_of_q_heads(bench: Bench) -> bool:
    policy = bench.causal(heads=q_heads(1))
    bench.patch.setattr(fused_logprobs, "WHOLE_BYTES", 0)
    calls = bench.calls(q_head_module, "score_tokens")
    policy.score(batch_of(3, 9))
    return bool(calls)


def small_logprobs(bench: Bench) -> bool:
    policy = bench.causal()
    bench.patch.setattr(fused_logprobs, "FEW_BYTES", 0)
    calls = bench.calls(fused_logprobs, "whole_scores")
    policy.score(batch_of(3, 9))
    return bool(calls)


def fused_activations_of_the_policy(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(torch.nn.GELU, "forward")
    policy.score(batch_of(3, 9))
    return bool(calls)


def fused_activations_of_a_critic(bench: Bench) -> bool:
    make_gpt2().save_pretrained(bench.folder)
    policy = bench.causal(make_llama(), critic=str(bench.folder), value_head=True)
    calls = bench.calls(torch.nn.GELU, "forward")
    policy.score(batch_of(3, 9))
    return bool(calls)


def packed_decoding(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(PackedDecoder, "step")
    draw_from(policy, 40)
    return bool(calls)


def shared_prompts(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(SharedCache, "attend")
    draw_from(policy, 40, distinct=2, length=20)
    return bool(calls)


def preallocated_cache_of_gpt2(bench: Bench) -> bool:
    policy = bench.causal()
    calls = bench.calls(PreallocatedLayer, "update")
    draw_from(policy, 3)
    return bool(calls)


def preallocated_cache_of_t5(bench: Bench) -> bool:
    policy = bench.t5()
    calls = bench.calls(PreallocatedLayer, "update")
    draw_from(policy, 3)
    return bool(calls)


def early_leaving(bench: Bench) -> bool:
    """Let sequences leave only because they ended: all have the same limit."""
    trainer = bench.ppo()
    calls = bench.calls(CausalDecoder, "keep")
    trainer.rollout()
    return bool(calls)


def inverse_cdf(bench: Bench) -> bool:
    trainer = bench.ppo()
    inverted, drawn = bench.calls(sampler, "draw"), bench.calls(sampler, "draw_multinomial")
    trainer.rollout()
    assert bool(inverted) != bool(drawn)
    return bool(inverted)


def reused_logprobs(bench: Bench) -> bool:
    """Count forward passes that recompute log-probs after sampling."""
    trainer = bench.ppo()
    calls = bench.calls(trainer.run.models.policy, "score")
    trainer.rollout()
    assert trainer.run.sampling.is_exact == bench.on
    return not calls


def fused_optimizer(bench: Bench, name: str, owner: Any) -> bool:
    given = list[Any]()
    make = owner.__init__

    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        given.append(kwargs["fused"])
        make(self, *args, **kwargs)

    bench.patch.setattr(owner, "__init__", noting)
    trainer = bench.ppo(optimizer={"name": name, "options": {"fused": bench.on}})
    trainer.rollout()
    assert len(set(given)) == 1
    return given[0] is True


def fused_adamw(bench: Bench) -> bool:
    return fused_optimizer(bench, "adamw", torch.optim.AdamW)


def fused_adam(bench: Bench) -> bool:
    return fused_optimizer(bench, "adam", torch.optim.Adam)


USES: list[tuple[str, Callable[[Bench], bool]]] = [
    ("packing", packing_in_scores),
    ("prefixes", prefixes_in_scores),
    ("prefixes", prefixes_in_prompts),
    ("prefixes", prefixes_in_the_trunk),
    ("attention_groups", attention_groups),
    ("length_groups", length_groups_of_gptj),
    ("length_groups", length_groups_of_t5),
    ("frozen_trunk", frozen_trunk),
    ("fused_logprobs", fused_logprobs_of_the_policy),
    ("fused_logprobs", fused_logprobs_of_q_heads),
    ("small_logprobs", small_logprobs),
    ("fused_activations", fused_activations_of_the_policy),
    ("fused_activations", fused_activations_of_a_critic),
    ("packed_decoding", packed_decoding),
    ("shared_prompts", shared_prompts),
    ("preallocated_cache", preallocated_cache_of_gpt2),
    ("preallocated_cache", preallocated_cache_of_t5),
    ("early_leaving", early_leaving),
    ("inverse_cdf", inverse_cdf),
    ("reused_logprobs", reused_logprobs),
    ("fused_optimizer", fused_adamw),
    ("fused_optimizer", fused_adam),
]
"""Techniques, and functions that return whether one is used where it can be."""


def test_every_speed_technique_has_a_check_of_its_use() -> None:
    assert {name for name, _ in USES} == set(BY_NAME)


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize(("name", "uses"), USES, ids=[uses.__name__ for _, uses in USES])
def test_a_technique_is_used_if_and_only_if_its_switch_is_on(
    name: str,
    uses: Callable[[Bench], bool],
    on: bool,
    monkeypatch: pytest.MonkeyPatch,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
) -> None:
    assert uses(Bench(name, on, monkeypatch, make_trainer, tmp_path)) is on
