"""Families of models with their chat templates are trained with adapters on what the policy wrote, and nothing else."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

import rlcore
from rlcore.protocols import Step, Turn
from rlcore.types import Episodes, Trajectories
from rlcore_transformers.data.tokens import encode
from rlcore_transformers.models.policy import ModelPolicy

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "rig"), str(ROOT / "tests" / "warm")]

from template_families import FAMILIES  # noqa: E402
from tokenizer_fixtures import byte_tokenizer  # noqa: E402, F401

LETTERS = "ABCDEFGH"
"""What the policy may write: letters of the vocabulary that no merge joins, so that texts have these tokens."""
MOST = 6
"""Most tokens of a turn."""
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip
MODELS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gpt2": (GPT2Config, {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}, "chatml"),
    "llama": (LlamaConfig, SMALL, "llama 3"),
    "qwen3": (Qwen3Config, SMALL, "qwen 3"),
}
TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"rollouts": 4, "batch_size": 4, "epochs": 2, "kl_coef": 0.1},
    "grpo": {"rollouts": 8, "num_generations": 4, "kl_coef": 0.1},
    "rft": {"generations": 4, "prompts": 2, "batch_size": 4},
}


class Letters:
    """Asks for a letter three times; the reward of a turn is its number of letters A to D."""

    def reset(self, row: Any, *, seed: int) -> str:
        return f"letter {seed % 7}?"

    def step(self, turn: Turn) -> Step:
        reward = sum(turn.text.count(letter) for letter in "ABCD")
        return Step(f"got {len(turn.text)}. more?", reward=float(reward), done=turn.index == 2)


def tokenizer_of(byte_tokenizer: Any, name: str) -> Any:  # noqa: F811
    """Return the byte-level tokenizer with a family's template and special tokens; the end of turns is its EOS."""
    family = FAMILIES[name]
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str()),
        eos_token=family.end, bos_token="<|eos|>", pad_token="<|eos|>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": [each for each in family.special if each != family.end]})
    tokenizer.chat_template = family.template
    return tokenizer


def train(tokenizer: Any, model: str, trainer: str, folder: Path) -> Any:
    kind, shape, _ = MODELS[model]
    allowed = torch.zeros(len(tokenizer), len(tokenizer), dtype=torch.bool)
    allowed[:, [*tokenizer.convert_tokens_to_ids(list(LETTERS)), tokenizer.eos_token_id]] = True
    config = kind(
        vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=0, bos_token_id=0, **shape
    )
    torch.manual_seed(1)
    return rlcore.train(
        {"path": config, "peft": {"type": "lora", "r": 2, "target_modules": "all-linear"}},
        tokenizer=tokenizer, trainer={"name": trainer, **TRAINERS[trainer], "optimizer": {"lr": 1e-2}},
        environment=Letters, prompts=[{"prompt": f"question {i}"} for i in range(4)], logit_mask=allowed,
        data={"episodes": {"history": "sampled" if model == "qwen3" else "rendered"}},
        gen={"max_new_tokens": MOST}, eval={"every": 0, "at_end": False}, loggers=[],
        run={"root": str(folder), "name": "run", "steps": 2, "report": False},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("model", MODELS)
def test_an_adapter_is_trained_on_the_policys_turns_within_one_rendering_of_the_dialogue(
    byte_tokenizer: Any,  # noqa: F811
    model: str,
    trainer: str,
    played: list[Episodes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = tokenizer_of(byte_tokenizer, MODELS[model][2])
    letters = torch.tensor([*tokenizer.convert_tokens_to_ids(list(LETTERS))])
    score, scored = ModelPolicy.score, list[Trajectories]()

    def noting(self: Any, batch: Any, **named: Any) -> Any:
        scored.append(batch)
        return score(self, batch, **named)

    monkeypatch.setattr(ModelPolicy, "score", noting)
    result = train(tokenizer, model, trainer, tmp_path)
    assert result.metrics["episode/turns"] == 3.0
    weights = {name for name, weight in result.policy.module.named_parameters() if weight.requires_grad}
    assert weights
    assert all("lora" in name or "value" in name for name in weights)
    for batch in scored:  # the environment writes no capital letters, and the policy nothing but these and the end
        is_letter = torch.isin(batch.tokens, letters)
        assert bool((batch.action_mask[is_letter]).all())
        assert bool((is_letter | (batch.tokens == tokenizer.eos_token_id))[batch.action_mask].all())
    assert scored
    ends = {end for batch in played for i in range(len(batch.tokens)) for end in check_episode(tokenizer, batch, i)}
    assert ends == {True, False}  # turns that the policy ended, and turns that were cut off


def check_episode(tokenizer: Any, batch: Episodes, i: int) -> list[bool]:
    """Compare an episode with one rendering of its dialogue; return for each turn whether the policy ended it."""
    tokens, chosen = batch.tokens[i][batch.mask[i]].tolist(), batch.action_mask[i][batch.mask[i]].tolist()
    messages = batch.arguments["messages"][i]
    last = max(k for k, each in enumerate(messages) if each["role"] == "assistant")
    asked = [*messages[: last + 1], {"role": "user", "content": "next"}]
    (whole,) = encode(tokenizer, [tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)])
    assert tokens == whole[: len(tokens)]
    # The chosen tokens are, in turn, the letters of each turn, and its end unless the turn was cut off.
    runs = [
        [token for token, _ in run]
        for is_run, run in groupby(zip(tokens, chosen, strict=True), lambda pair: pair[1])
        if is_run
    ]
    texts = [each["content"] for each in messages[: last + 1] if each["role"] == "assistant"]
    for run, text in zip(runs, texts, strict=True):
        ids = tokenizer.convert_tokens_to_ids(list(text))
        assert run == (ids if len(ids) == MOST else [*ids, tokenizer.eos_token_id])
    return [len(text) < MOST for text in texts]
