"""The sampler `openai` with a real vLLM on the CPU: `make test-engines`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_engine import make_policy, tiny_gpt2
from test_engine_broadcast import started

import rlcore
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import OpenAIConfig, VLLMConfig
from rlcore_engines.vllm.openai_sampler import OpenAISampler
from rlcore_testing.small import EOS, LETTERS, PROMPTS, SAMPLES, make_tokenizer, toy_reward

pytestmark = pytest.mark.engine

EXTRA = ("top_k", "min_tokens", "stop_token_ids", "return_token_ids", "min_p", "repetition_penalty")
GREEDY = SamplingConfig(max_new_tokens=8, temperature=0.0)
ROWS = [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in PROMPTS]


def train(folder: Path, trainer: dict[str, Any], sampler: dict[str, Any], **options: Any) -> list[tuple[Any, ...]]:
    result = rlcore.train(
        tiny_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, sampler=sampler, reward_fn=toy_reward,
        gen={"max_new_tokens": 6}, loggers=[],
        run={"root": str(folder), "name": "run", "steps": 2, "report": False, "rollouts": "all"}, **options,
    )  # fmt: skip
    files = [result.run_dir / name for name in ("rollouts.jsonl", "completions.jsonl")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return [(row.get("step"), row["prompt"], row["output"]) for row in map(json.loads, lines)]


def test_completions_of_a_real_server(engine: dict[str, Any], tmp_path: Path) -> None:
    """Greedy ones are those of the model here; options, seeds and stop sequences arrive; runs repeat."""
    given = {name: value for name, value in engine.items() if name != "tolerance"}
    policy = make_policy(tiny_gpt2)
    with started(VLLMConfig(weights_dir=str(tmp_path / "server"), **given), policy) as fleet:
        (server,) = fleet.servers
        model = server._read("/v1/models")["data"][0]["id"]
        options: dict[str, Any] = {"url": f"{server.url}/v1", "model": model}
        exact, plain = OpenAISampler(OpenAIConfig(**options, extra=EXTRA)), OpenAISampler(OpenAIConfig(**options))

        expected = sample(policy, ROWS, GREEDY)
        greedy = exact(policy, ROWS, GREEDY)
        assert greedy.action_tokens == expected.action_tokens
        assert greedy.ended.tolist() == expected.ended.tolist()
        assert exact._sends_tokens
        visible = [[token for token in row if token < len(LETTERS) or token == EOS] for row in expected.action_tokens]
        assert plain(policy, ROWS, GREEDY).action_tokens == visible

        seeds = list(range(len(ROWS)))
        given_seeds = SamplingConfig(max_new_tokens=8, top_k=5, min_new_tokens=2, eos_token_ids=(EOS, 3))
        rows = exact(policy, ROWS, given_seeds, row_seeds=seeds)
        assert rows.action_tokens == exact(policy, ROWS, given_seeds, row_seeds=seeds).action_tokens
        others = exact(policy, ROWS, given_seeds, row_seeds=[seed + 100 for seed in seeds])
        assert rows.action_tokens != others.action_tokens
        for row in (*rows.action_tokens, *others.action_tokens):
            assert len(row) >= 2
            assert not {EOS, 3} & {*row[:-1]}
            assert len(row) == 8 or row[-1] in (EOS, 3)

        stops = SamplingConfig(max_new_tokens=8, stop_sequences=("a", "e"))
        stopped = plain(policy, ROWS * 4, stops, row_seeds=list(range(4 * len(ROWS)))).action_tokens
        ends = [row for row in stopped if {0, 4} & {*row}]
        assert ends
        assert all(row[-1] in (0, 4) and not {0, 4} & {*row[:-1]} for row in ends)

        named = {"name": "openai", **options}
        rft = {"name": "rft", "generations": 4, "improve_steps": 1, "optimizer": {"lr": 1e-2}}
        sft = {"name": "sft", "batch_size": 4, "optimizer": {"lr": 1e-2}}
        imitated = [train(tmp_path / f"rft{i}", rft, named, prompts=list(PROMPTS)) for i in range(2)]
        assert imitated[0] == imitated[1] != []
        assert len([row for row in imitated[0] if row[0] in (1, 2)]) >= 4 * len(PROMPTS)
        evaluated = [
            train(tmp_path / f"sft{i}", sft, named, samples=SAMPLES, eval_prompts=list(PROMPTS)) for i in range(2)
        ]
        assert evaluated[0] == evaluated[1] != []
        print(f"rft: {len(imitated[0])} rows, such as {imitated[0][0]}; sft: {len(evaluated[0])} rows, such as "
              f"{evaluated[0][0]}", file=sys.stderr)  # fmt: skip
