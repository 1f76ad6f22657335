"""The sampler with a real vLLM on the CPU: `make test-engines`; each test starts a server of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_walks import LEARNERS, imitate, improve, lines
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import rlcore
from rlcore.protocols import Step
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm import own_server
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import StaleWeights
from rlcore_engines.vllm.generation import PATH, Completion
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.rig.policies import perturb
from rlcore_testing.small import EOS, PAD, PROMPTS, VOCABULARY, make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

pytestmark = pytest.mark.engine

RECORDED = Path(__file__).with_name("recorded_answer.json")
SAMPLING = SamplingConfig(max_new_tokens=8)
ROWS = [Prompt("", tokens) for tokens in ((0, 1), (2, 3, 4), (5,), (6, 14, 26, 14, 13), (0, 1), (0, 1))]
SEEDS = [2**62 + row for row in range(len(ROWS))]
TINY: dict[str, Any] = {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD, "initializer_range": 0.2}
"""Heads have 32 values in all models: vLLM's attention on CPUs needs a multiple of that."""


def tiny_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **TINY)).eval()


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    further = {"intermediate_size": 128, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**shape, **further, tie_word_embeddings=False, **TINY)).eval()


def tiny_qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    further = {"intermediate_size": 128, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "head_dim": 32}
    return Qwen3ForCausalLM(Qwen3Config(**shape, **further, tie_word_embeddings=True, **TINY)).eval()


def make_policy(make: Callable[[], Any], **options: Any) -> Any:
    return build_causal_lm(make(), CausalLMConfig(**options), tokenizer=make_tokenizer())


def largest_gap(policy: Any, batch: Any, temperature: float = 1.0) -> float:
    with torch.no_grad():
        own = policy.score(batch, temperature=temperature).logprobs
    return float((own - batch["logprobs"])[batch.action_mask].abs().max())


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_llama, tiny_qwen3])
def test_log_probs_equal_the_policys_after_every_update(
    make: Callable[[], Any], engine: dict[str, Any], tmp_path: Path
) -> None:
    policy, sampler = make_policy(make), VLLMSampler(VLLMConfig(weights_dir=str(tmp_path), **engine))
    try:
        for step in range(4):
            for temperature in (1.0, 0.7):
                sampling = SamplingConfig(max_new_tokens=8, temperature=temperature)
                batch = sampler(policy, ROWS, sampling, row_seeds=SEEDS)
                gap = largest_gap(policy, batch, temperature)
                print(f"{make.__name__}, update {step}, temperature {temperature}: {gap:.1e}")
                assert gap < 1e-5
            perturb(policy)
    finally:
        sampler.close()


def form_of(value: Any) -> Any:
    """Return a value of JSON with types in place of what varies."""
    if isinstance(value, dict):
        return {name: form_of(each) for name, each in value.items()}
    return [form_of(value[0])] if isinstance(value, list) and value else type(value).__name__


def test_an_answer_has_the_form_that_the_stand_in_answers_in(engine: dict[str, Any], tmp_path: Path) -> None:
    """RLCORE_RECORD=1 writes the answer that the stand-in answers in the form of."""
    policy, sampler = make_policy(tiny_gpt2), VLLMSampler(VLLMConfig(weights_dir=str(tmp_path), **engine))
    try:
        sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
        (server,) = sampler._fleet.servers
        asked = [Completion((3,), 20, seed, SamplingConfig(), (EOS,)) for seed in range(100)]
        replies = (server._call("POST", PATH, each.body()).json() for each in asked)
        answer = next(reply for reply in replies if reply["choices"][0]["finish_reason"] == "stop")
    finally:
        sampler.close()
    answer |= {"request_id": "generate-tokens-1", "model": "model", "created": 0}
    if os.environ.get("RLCORE_RECORD"):
        RECORDED.write_text(json.dumps(answer, indent=1) + "\n")
    assert form_of(answer) == form_of(json.loads(RECORDED.read_text()))


def test_a_row_depends_on_its_own_seed_alone(engine: dict[str, Any], tmp_path: Path) -> None:
    policy, sampler = make_policy(tiny_gpt2), VLLMSampler(VLLMConfig(weights_dir=str(tmp_path), **engine))
    try:
        whole = sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
        backward = sampler(policy, ROWS[::-1], SAMPLING, row_seeds=SEEDS[::-1])
        alone = [sampler(policy, [row], SAMPLING, row_seeds=[seed]) for row, seed in zip(ROWS, SEEDS, strict=True)]
    finally:
        sampler.close()
    assert backward.action_tokens[::-1] == whole.action_tokens
    assert [each.action_tokens[0] for each in alone] == whole.action_tokens
    assert whole.action_tokens[0] != whole.action_tokens[4]  # one prompt, two seeds
    for row, each in enumerate(alone):
        assert torch.equal(each["logprobs"][each.action_mask], whole["logprobs"][row][whole.action_mask[row]])


def test_a_tied_head_that_is_not_packed_anew_stops_the_run(
    engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same engine without the last step of `FileEngine.finish_weight_update`."""
    package = tmp_path / "package"
    shutil.copytree(own_server.HERE, package, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    source = (package / "engine_worker.py").read_text()
    call = "layer.quant_method.process_weights_after_loading(layer)"
    assert call in source
    (package / "engine_worker.py").write_text(source.replace(call, "pass"))
    monkeypatch.setattr(own_server, "HERE", package)
    policy, sampler = make_policy(tiny_gpt2), VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **engine))
    try:
        sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
        perturb(policy)
        with pytest.raises(StaleWeights) as error:
            sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
    finally:
        sampler.close()
    print(error.value)


@pytest.mark.parametrize("lora", ["merged", "adapter"])
def test_an_adapter_reaches_the_server(lora: str, engine: dict[str, Any], tmp_path: Path) -> None:
    peft = {"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    policy = make_policy(tiny_qwen3, peft=peft)
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path), lora=lora, **engine))
    generator = torch.Generator().manual_seed(0)
    try:
        for _ in range(3):
            batch = sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
            gap = largest_gap(policy, batch)
            print(f"{lora}: {gap:.1e}")
            assert gap < 1e-5
            with torch.no_grad():
                for name, weight in policy.module.named_parameters():
                    if "lora_" in name:
                        weight.normal_(0.0, 0.2, generator=generator)
            policy.version += 1
    finally:
        sampler.close()


def train(folder: Path, sampler: dict[str, Any], **given: Any) -> Any:
    run = {"root": str(folder), "name": "run", "steps": 4, "report": False, "rollouts": "all", **given.pop("run", {})}
    options: dict[str, Any] = {"prompts": list(PROMPTS), "reward_fn": toy_reward, "gen": {"max_new_tokens": 8}}
    trainer = {"name": "grpo", "rollouts": 16, "num_generations": 4, "optimizer": {"lr": 1e-2}}
    return rlcore.train(
        tiny_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, loggers=[], run=run,
        sampler={"name": "vllm", **sampler}, **{**options, **given},
    )  # fmt: skip


def outputs(result: Any) -> list[Any]:
    lines = map(json.loads, (result.run_dir / "rollouts.jsonl").read_text().splitlines())
    return [(row["step"], row["prompt"], row["output"], row["reward"]) for row in lines]


def test_resuming_equals_not_having_stopped(engine: dict[str, Any], tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", engine)
    train(tmp_path / "parts", engine, run={"steps": 2})
    parts = train(tmp_path / "parts", engine, run={"resume": "auto"})
    assert outputs(parts) == outputs(whole)
    for mine, other in zip(parts.policy.module.parameters(), whole.policy.module.parameters(), strict=True):
        assert torch.equal(mine, other)


def trained(folder: str, sampler: dict[str, Any], **run: Any) -> dict[str, Any]:
    """Train an adapter in this process, one of one or two."""
    peft = {"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    result = rlcore.train(
        {"path": tiny_qwen3(), "peft": peft}, tokenizer=make_tokenizer(), prompts=list(PROMPTS),
        reward_fn=toy_reward, loggers=[],
        trainer={"name": "grpo", "rollouts": 16, "num_generations": 4, "optimizer": {"lr": 1e-2}},
        gen={"max_new_tokens": 8}, sampler={"name": "vllm", **sampler},
        run={"root": folder, "name": "run", "steps": 3, "report": False, "rollouts": "all", **run},
    )  # fmt: skip
    weights = [each.flatten().tolist() for _, each in result.policy.weights()]
    return (
        {"rows": outputs(result), "weights": weights, "gap": result.metrics["is/logprob_gap"]}
        if (result.run.ranks.is_main)
        else {}
    )


@pytest.mark.parametrize("lora", ["merged", "adapter"])
def test_weights_divided_among_two_processes_sample_and_learn_as_whole_ones(
    lora: str, engine: dict[str, Any], tmp_path: Path
) -> None:
    found, options = {}, {**engine, "args": list(engine["args"]), "lora": lora}
    for name, call, run in (("one", call_in_new_process, {}), ("two", call_on_two_ranks, {"shard": "fsdp"})):
        arguments = {"folder": str(tmp_path / name), "sampler": options, **run}
        found[name] = call("test_engine:trained", arguments, what=name)
    one, two = found["one"], found["two"]
    print(f"{lora}: gap {two['gap']:.1e}")
    assert two["gap"] < 1e-5
    assert two["rows"] == one["rows"]
    for mine, other in zip(one["weights"], two["weights"], strict=True):
        assert other == pytest.approx(mine, abs=1e-5)


class Twice:
    """Asks two times; the reward of a turn is its number of letters a."""

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Any) -> Step:
        return Step(messages="you " + turn.text[-1:], reward=float(turn.text.count("a")), done=turn.index == 1)


def test_episodes_of_two_turns_are_played(engine: dict[str, Any], tmp_path: Path) -> None:
    result = train(tmp_path, engine, environment=Twice, reward_fn=None, run={"steps": 2})
    assert result.metrics["episode/turns"] == 2.0
    assert result.metrics["episode/failed"] == 0.0
    assert result.metrics["is/logprob_gap"] < 1e-5


class Killer:
    """Kills the server during the third round."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def on_rollout(self, run: Any, batch: Any) -> None:
        if run.step == 2:
            guard = run.sampling.sampler._fleet._own._process.pid
            self.killed = [int(pid) for pid in Path(f"/proc/{guard}/task/{guard}/children").read_text().split()]
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("trainer", LEARNERS)
def test_random_walks_are_learned_from_vllm(trainer: str, engine: dict[str, Any], tmp_path: Path) -> None:
    """Optimality reaches .95, with a server that is killed on the way, and with log-probs within 1e-5 at each step."""
    imitate(tmp_path)
    killer = Killer()
    improved = improve(tmp_path, trainer, engine, observers=[killer], run={"steps": 30})
    gaps = [line["is/logprob_gap"] for line in lines(improved.run_dir / "metrics.jsonl") if "is/logprob_gap" in line]
    print(f"{trainer}: optimality {improved.metrics['eval/reward/mean']:.4f}; gaps: mean {sum(gaps) / len(gaps):.1e}, "
          f"largest {max(gaps):.1e} over {len(gaps)} rounds; killed {killer.killed}", file=sys.stderr)  # fmt: skip
    assert killer.killed
    assert len(gaps) == 30
    assert max(gaps) < 1e-5
    assert improved.metrics["eval/reward/mean"] >= 0.95
