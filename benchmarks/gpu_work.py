"""Sample, or run training steps, on one device: through rlcore, or with transformers alone.

    python gpu_work.py sample rlcore|generate [--batch 128] [--samples 1] [--layers 12] [--dtype bfloat16] ...
    python gpu_work.py step rlcore|transformers ...

The model is a Llama of width 768 and vocabulary 32,000 with random weights; prompts have 16 to 128 tokens. EOS is never
sampled, so that every program generates the same number of tokens. A step is log-probs of the continuations, the
gradient of their mean, and fused AdamW. `tokens_per_s` is in wall seconds, because the device's work is not CPU time of
the process. One-time work (kernel selection) happens in an untimed warm-up round, which takes `first_s`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers import PreTrainedTokenizerFast as FastTokenizer

from benchmarks.figures import usage
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

EOS, PAD = 1, 0
Rows = list[tuple[int, ...]]


def make_model(arguments: argparse.Namespace) -> Any:
    """Create the model on its device."""
    torch.manual_seed(0)
    width = arguments.width
    config = LlamaConfig(
        vocab_size=arguments.vocabulary, hidden_size=width, intermediate_size=width * 8 // 3, num_attention_heads=12,
        num_key_value_heads=4, num_hidden_layers=arguments.layers, max_position_embeddings=1024, eos_token_id=EOS,
        bos_token_id=EOS, pad_token_id=PAD, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(arguments.device, getattr(torch, arguments.dtype)).eval()


def make_policy(model: PreTrainedModel, arguments: argparse.Namespace) -> Any:
    """Wrap the model in a policy, with a tokenizer that is used only for its ids."""
    words = {f"w{i}": i for i in range(arguments.vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer = FastTokenizer(tokenizer_object=backend, eos_token="w1", pad_token="w0")
    return build_causal_lm(model, CausalLMConfig(), tokenizer=tokenizer)


def make_prompts(arguments: argparse.Namespace) -> Rows:
    """Sample prompts of 16 to 128 tokens, and repeat each `--samples` times."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.linspace(16, 128, arguments.batch // arguments.samples).round().long().tolist()
    rows = [tuple(torch.randint(2, arguments.vocabulary, (n,), generator=generator).tolist()) for n in lengths]
    return [row for row in rows for _ in range(arguments.samples)]


def sampling(side: str, arguments: argparse.Namespace) -> Callable[[], int]:
    """Return a function that samples a round and returns its number of tokens."""
    model, rows, count = make_model(arguments), make_prompts(arguments), arguments.new_tokens
    if side != "generate":
        policy = make_policy(model, arguments)
        prompts = [Prompt(text="", tokens=row) for row in rows]
        options = SamplingConfig(max_new_tokens=count, eos_token_ids=())
        return lambda: int(sample(policy, prompts, options).num_actions.sum())
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(row)) + list(row) for row in rows], device=model.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
    model.generation_config.eos_token_id = None

    def generate() -> int:
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=count, min_new_tokens=count,
            pad_token_id=PAD,
        )  # fmt: skip
        return int(out[:, longest:].numel())

    return generate


def training(side: str, arguments: argparse.Namespace) -> Callable[[], int]:
    """Return a function that runs a training step and returns its number of tokens."""
    policy = make_policy(make_model(arguments), arguments)
    prompts = make_prompts(arguments)
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, arguments.new_tokens + 1, (len(prompts),), generator=generator).tolist()
    rows = [[*prompt, *([7] * length)] for prompt, length in zip(prompts, lengths, strict=True)]
    chosen = [[False] * len(prompt) + [True] * length for prompt, length in zip(prompts, lengths, strict=True)]
    batch = Trajectories.stack(rows, chosen).to(policy.device)
    policy.module.train()
    optimizer = torch.optim.AdamW(policy.module.parameters(), lr=1e-6, fused=True)
    tokens = sum(map(len, rows))

    def step() -> int:
        if side == "rlcore":
            logprobs = policy.score(batch).logprobs
        else:
            said = policy.model(batch.tokens, attention_mask=batch.mask.long(), use_cache=False).logits
            every = said[:, :-1].float().log_softmax(-1).gather(2, batch.tokens[:, 1:, None])[:, :, 0]
            logprobs = every * batch.action_mask[:, 1:]
        (logprobs.sum() / -tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        return tokens

    return step


def timed(work: Callable[[], int], device: str) -> tuple[float, int]:
    """Return the wall seconds of `work`, device included, and its token count."""
    begun = time.perf_counter()
    counted = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, counted


def main() -> None:
    """Run the work several times and print one line of figures."""
    parser = argparse.ArgumentParser(description="Sample, or make training steps, on one device.")
    parser.add_argument("work", choices=("sample", "step"))
    parser.add_argument("side", choices=("rlcore", "generate", "transformers"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    make = sampling if arguments.work == "sample" else training
    work = make(arguments.side, arguments)
    first, _ = timed(work, arguments.device)
    runs = [timed(work, arguments.device) for _ in range(arguments.repeats)]
    figures: dict[str, Any] = {
        "tokens_per_s": sum(counted for _, counted in runs) / sum(seconds for seconds, _ in runs),
        "first_s": first,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device,
        **usage(),
    }
    if arguments.device == "cuda":
        figures["peak_device_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
