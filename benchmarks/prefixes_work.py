"""Score several samples of each prompt with gradients: together, one at a time, or through transformers alone.

    OMP_NUM_THREADS=1 python prefixes_work.py together|apart|transformers [--repeats 5]

prints one line of JSON. The model is a GPT-2 of 4 layers, 256 wide, with 5,000 tokens; a batch is 8 samples of 1 to 64
tokens (evenly spread) of each of 4 prompts of 160. `together` passes all 32 sequences to `policy.score` at once, where
the prefix shared by the samples of a prompt is computed once; `apart` passes one sample of every prompt at a time, 8
times. `transformers` pads the batch on the right and applies log-softmax and gather to the logits after the prompts.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.figures import usage
from rlcore.types import Trajectories
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

VOCABULARY, PROMPTS, SAMPLES, PROMPT, LONGEST = 5_000, 4, 8, 160, 64


def make_batch() -> Trajectories:
    """Return the sequences, with the samples of a prompt adjacent."""
    random = torch.Generator().manual_seed(0)
    rows, chosen = [], []
    for _ in range(PROMPTS):
        prompt = torch.randint(0, VOCABULARY, (PROMPT,), generator=random).tolist()
        for length in torch.linspace(1, LONGEST, SAMPLES).long().tolist():
            rows.append(prompt + torch.randint(0, VOCABULARY, (length,), generator=random).tolist())
            chosen.append([False] * PROMPT + [True] * length)
    return Trajectories.stack(rows, chosen)


def by_transformers(model: GPT2LMHeadModel, batch: Trajectories) -> Tensor:
    """Return the sum of the responses' log-probs."""
    logits = model(batch.tokens, attention_mask=batch.mask.long(), use_cache=False).logits[:, PROMPT - 1 : -1]
    logprobs = F.log_softmax(logits, -1).gather(2, batch.tokens[:, PROMPT:, None])[..., 0]
    return (logprobs * batch.action_mask[:, PROMPT:]).sum()


def work(what: str) -> Callable[[], float]:
    """Return the measured function: forward and backward pass; it returns the sum of the log-probs."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=256, n_embd=256, n_layer=4, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model, batch = GPT2LMHeadModel(config), make_batch()
    policy = build_causal_lm(copy.deepcopy(model), CausalLMConfig(), tokenizer=make_tokenizer())
    rows = torch.arange(len(batch))
    parts = [batch.rows(rows[i::SAMPLES]) for i in range(SAMPLES)] if what == "apart" else [batch]

    def once() -> float:
        total = 0.0
        for part in parts:
            loss = by_transformers(model, part) if what == "transformers" else policy.score(part).logprobs.sum()
            loss.backward()
            total += float(loss)
        return total

    return once


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["together", "apart", "transformers"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    once = work(options.what)
    total, wall, cpu = once(), [], []
    for _ in range(options.repeats):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        once()
        wall.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - begun_cpu)
    print(json.dumps({"s_per_pass": median(wall), "cpu_s_per_pass": median(cpu), "logprobs": total, **usage()}))


if __name__ == "__main__":
    main()
