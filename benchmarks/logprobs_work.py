"""Score tokens of a vocabulary of 50,000 and train on them, through rlcore or with log-softmax over all logits.

    OMP_NUM_THREADS=1 python logprobs_work.py update rlcore|log_softmax [--entropy]    PPO's score and update
    OMP_NUM_THREADS=1 python logprobs_work.py head rlcore|log_softmax [--entropy]      the output embedding alone

prints one line of JSON. `update` is a GPT-2 of 4 layers, 128 wide, with a value head; a batch is 32 sequences of 32
prompt tokens and 224 response tokens, all of one length, so that there is no padding to save. It is scored without
gradients, then trained on: forward and backward pass, one step of AdamW. Both programs recompute activations in the
backward pass and apply the head only to positions that predict a response. `head` is the forward and backward pass of
4096 rows of 256 numbers.

Peak extra memory is the maximum resident set during one repetition minus the resident set before it, measured after
weights and optimizer state were allocated and free memory was returned to the system.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.figures import usage
from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig
from rlcore.types import Trajectories
from rlcore_ppo.loss import policy_loss, value_loss
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.speed.fused_logprobs import score_tokens

VOCABULARY, ENTROPY_COEF, LR = 50_000, 0.01, 1e-5
Scored = tuple[Tensor, Tensor, Tensor | None]
"""Log-probs, values and entropies; prompt positions are zero or omitted."""


class Theirs(nn.Module):
    """Transformers language model with a value head, scored with log-softmax and gather."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model
        width = model.config.n_embd
        self.value = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))

    def forward(self, tokens: Tensor, prompt: int, *, entropy: bool) -> Scored:
        """Score all tokens after the prompts, which have `prompt` tokens each."""
        hidden = self.model.transformer(tokens, use_cache=False).last_hidden_state[:, prompt - 1 : -1]
        logprobs = F.log_softmax(self.model.lm_head(hidden), -1)
        chosen = logprobs.gather(-1, tokens[:, prompt:, None])[..., 0]
        entropies = -(logprobs.exp() * logprobs).sum(-1) if entropy else None
        return chosen, self.value(hidden)[..., 0], entropies


def ppo_loss(now: Scored, old: Scored, advantages: Tensor, chosen: Tensor) -> Tensor:
    """Return PPO's loss over the tokens that bool[B, T] selects."""
    loss = policy_loss(now[0], old[0], advantages, clip=0.2)
    loss = loss + value_loss(now[1], old[1], old[1] + advantages, clip=0.2)
    if now[2] is not None:
        loss = loss - ENTROPY_COEF * now[2]
    return (loss * chosen).sum() / chosen.sum()


def make_update(side: str, options: argparse.Namespace) -> Callable[[], None]:
    """Return a function that scores a batch and trains on it."""
    torch.manual_seed(0)
    size, prompt, length, entropy = options.batch, 32, 256, options.entropy
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=options.width, n_layer=options.layers, n_head=4, n_positions=length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(1, VOCABULARY, (size, length))
    advantages = torch.randn(size, length)
    if side == "rlcore":
        policy = build_causal_lm(
            model, CausalLMConfig(gradient_checkpointing=True), tokenizer=make_tokenizer(), value_head=True
        )
        updater = Updater(policy, OptimizerConfig(lr=LR, max_grad_norm=0.0), Ranks(), total_updates=None)
        policy.module.train()
        mask = torch.ones(size, length, dtype=torch.bool)
        batch = Trajectories(tokens, mask, mask & (torch.arange(length) >= prompt), mask[:, 0])

        def score() -> Scored:
            said = policy.score(batch, entropy=entropy)
            assert said.values is not None
            return said.logprobs, said.values, said.entropy

        def ours() -> None:
            with torch.no_grad():
                old = score()
            updater.backward(ppo_loss(score(), old, advantages, batch.action_mask))
            updater.step()

        return ours
    theirs = Theirs(model).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR, fused=True)
    advantages, chosen = advantages[:, prompt:], torch.ones(size, length - prompt, dtype=torch.bool)

    def update() -> None:
        with torch.no_grad():
            old = theirs(tokens, prompt, entropy=entropy)
        ppo_loss(theirs(tokens, prompt, entropy=entropy), old, advantages, chosen).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def make_head(side: str, options: argparse.Namespace) -> Callable[[], None]:
    """Return a function that runs the forward and backward pass of the output embedding alone."""
    torch.manual_seed(0)
    rows, width = 4096, 256
    hidden, weight = torch.randn(rows, width, requires_grad=True), nn.Parameter(torch.randn(VOCABULARY, width) / 16)
    tokens, slopes = torch.randint(VOCABULARY, (rows,)), torch.randn(rows) / rows

    def run() -> None:
        if side == "rlcore":
            logprobs, entropy, _ = score_tokens(hidden, weight, None, tokens, entropy=options.entropy)
        else:
            every = F.log_softmax(hidden @ weight.T, -1)
            logprobs = every.gather(1, tokens[:, None])[:, 0]
            entropy = -(every.exp() * every).sum(-1) if options.entropy else None
        loss = (logprobs * slopes).sum()
        (loss if entropy is None else loss - ENTROPY_COEF * entropy.mean()).backward()
        hidden.grad = weight.grad = None

    return run


def measure(work: Callable[[], None], repeats: int) -> dict[str, Any]:
    """Run the work once as a warm-up, then `repeats` times; report the seconds of each and the peak memory of one."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def resident(name: str) -> float:
        (line,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith(name))
        return int(line.split()[1]) / 1024

    work()
    wall, cpu, extra = [], [], []
    for _ in range(repeats):
        ctypes.CDLL(None).malloc_trim(0)
        reset.write_text("5", encoding="utf-8")  # reset the peak
        before, begun, spent = resident("VmRSS"), time.perf_counter(), time.process_time()
        work()
        cpu.append(time.process_time() - spent)
        wall.append(time.perf_counter() - begun)
        extra.append(resident("VmHWM") - before)
    return {
        "s_per_update": round(median(wall), 4),
        "cpu_s_per_update": round(median(cpu), 4),
        "peak_extra_mb": round(max(extra), 1),
        **usage(),
    }


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["update", "head"])
    parser.add_argument("side", choices=["rlcore", "log_softmax"])
    parser.add_argument("--entropy", action="store_true", help="with an entropy bonus")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="sequences")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    make = {"update": make_update, "head": make_head}[options.what]
    print(json.dumps(measure(make(options.side, options), options.repeats)))


if __name__ == "__main__":
    main()
