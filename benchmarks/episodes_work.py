"""Sample episodes of four turns with an environment that answers at once, or after some time.

    OMP_NUM_THREADS=1 python episodes_work.py [--anew] [--step-s 0] [--cohorts 1] [--episodes 64] [--prompts 64] ...

prints one line of JSON: tokens of the policy per second, per second of CPU time, and per second of CPU time or of
waiting for environments, which depends little on what else the machine does, as medians of `--repeats` rounds. A
prompt has 160 tokens, a turn 32, and an answer of the environment 16. The episodes share `--prompts` prompts, so that 8
prompts make groups of 8 episodes, and 64 are all different. `--anew` keeps no keys and values, so that every
turn reads its whole episode.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import time
from statistics import median
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.figures import usage
from rlcore import sample
from rlcore.config import structure
from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore_environments.calls import Pending
from rlcore_environments.player import Player
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.data.pipelines import PROMPTS
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

TURNS, PROMPT, TURN, ANSWER = 4, 160, 32, 16


def game(step_s: float) -> type:
    """Return an environment whose steps take this long."""

    class Answers:
        def reset(self, row: Any, *, seed: int) -> str:
            return "".join(random.Random(row["game"]).choices(string.ascii_lowercase, k=PROMPT))

        def step(self, turn: Turn) -> Step:
            time.sleep(step_s)
            return Step("c" * ANSWER, reward=1.0, done=turn.index == TURNS - 1)

    return Answers


class Waits:
    """Adds up the time in which the loop of episodes waits for calls of environments."""

    def __init__(self) -> None:
        self.seconds, self._result = 0.0, Pending.result

        def waiting(call: Pending) -> Any:
            return self._wait(call)

        Pending.result = waiting  # type: ignore[method-assign, assignment]

    def _wait(self, call: Pending) -> Any:
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        try:
            return self._result(call)
        finally:
            self.seconds += time.perf_counter() - begun - (time.thread_time() - begun_cpu)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anew", action="store_true")
    for name, kind, default in (
        ("step-s", float, 0.0), ("cohorts", int, 1), ("episodes", int, 64), ("prompts", int, 64),
        ("width", int, 128), ("layers", int, 4), ("repeats", int, 3),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"n_embd": options.width, "n_layer": options.layers, "n_head": 4, "n_positions": 512, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=30, eos_token_id=30, pad_token_id=31, **shape))
    policy = build_causal_lm(model, CausalLMConfig(), tokenizer=make_tokenizer())
    episodes = {"keep_states": not options.anew, "cohorts": options.cohorts, "concurrency": options.episodes}
    player = Player(game(options.step_s), structure(TrainConfig, {"data": {"episodes": episodes}}, where="bench"))
    rows = [{"game": k * options.prompts // options.episodes} for k in range(options.episodes)]
    prompts = player.pipeline(PROMPTS)(rows, policy.tokenizer, player.config.data, max_length=512)
    sampler = player.sampler(sample)
    sampling, seeds = SamplingConfig(max_new_tokens=TURN, min_new_tokens=TURN), list(range(options.episodes))
    wall, cpu, busy, count, waits = [], [], [], 0, Waits()
    for number in range(options.repeats + 1):
        begun, begun_cpu, waits.seconds = time.perf_counter(), time.process_time(), 0.0
        count = int(sampler(policy, prompts, sampling, row_seeds=seeds).num_actions.sum())
        if number:  # the first round warms up
            wall.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - begun_cpu)
            busy.append(cpu[-1] + waits.seconds)
    print(
        json.dumps({
            "tokens_per_s": count / median(wall), "tokens_per_cpu_s": count / median(cpu),
            "tokens_per_busy_s": count / median(busy), "tokens": count, **usage(),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()
