"""Measure the speed of sampling: through rlcore, or with transformers' `generate`.

    python sampling_speed.py rlcore|generate [--family gpt2|llama] [--vocabulary 5000] [--batch 128]
        [--prompts 1 64] [--samples 1] [--lengths natural|fixed] [--new-tokens 64] [--repeats 3] ...

Both use the same model, 4 layers of width 256 with random weights. With natural lengths, its output layer has a bias
that gives EOS a probability of 1/32 at every token, so that lengths are geometric, truncated at the limit; with fixed
lengths the bias forbids EOS. Tokens are sampled from the model's own distribution. The batch counts sequences,
`--samples` of them for each prompt, and `tokens_per_s` is real tokens (including EOS, without the padding after it) per
CPU second of sampling. `generate` is called as documented: padded on the left, with a mask, EOS and padding ids; the
samples of a prompt are repeated rows, or with --return-sequences `num_return_sequences` of one row.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers import PreTrainedTokenizerFast as FastTokenizer

from benchmarks.figures import usage
from benchmarks.run_options import nested
from rlcore.config import structure
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.sampling.sampler import build_sampler
from rlcore_transformers.sampling.token_options import SamplerConfig

EOS, PAD = 1, 0
MEAN_LENGTH = 32
Rows = list[tuple[int, ...]]


def make_model(family: str, vocabulary: int, *, natural: bool) -> Any:
    """Create a model with near-uniform predictions apart from EOS."""
    torch.manual_seed(0)
    if family == "gpt2":
        model: Any = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocabulary, n_embd=256, n_layer=4, n_head=8, n_positions=512,
                       eos_token_id=EOS, bos_token_id=EOS, pad_token_id=PAD)
        )  # fmt: skip
    else:
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=vocabulary, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
                        eos_token_id=EOS, bos_token_id=EOS, pad_token_id=PAD)
        )  # fmt: skip
    head = torch.nn.Linear(256, vocabulary)
    torch.nn.init.normal_(head.weight, std=0.02)
    torch.nn.init.zeros_(head.bias)
    with torch.no_grad():
        head.bias[EOS] = math.log((vocabulary - 1) / (MEAN_LENGTH - 1)) if natural else -1e4
    model.lm_head = head
    model.config.tie_word_embeddings = False
    return model.eval()


def make_prompts(arguments: argparse.Namespace) -> Rows:
    """Sample distinct prompts of lengths spread evenly over the range, and repeat each `--samples` times."""
    generator = torch.Generator().manual_seed(1)
    shortest, longest = arguments.prompts
    count = arguments.batch // arguments.samples
    lengths = torch.linspace(shortest, longest, count).round().long().tolist()
    rows = [tuple(torch.randint(2, arguments.vocabulary, (n,), generator=generator).tolist()) for n in lengths]
    return [row for row in rows for _ in range(arguments.samples)]


def through_rlcore(model: PreTrainedModel, rows: Rows, arguments: argparse.Namespace) -> Callable[[], int]:
    """Return a function that samples once and counts the tokens."""
    words = {f"w{i}": i for i in range(arguments.vocabulary)}
    tokenizer = FastTokenizer(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w2")), eos_token="w1", pad_token="w0"
    )
    options = nested(arguments.set)
    policy: Any = build_causal_lm(model, structure(CausalLMConfig, options.get("model", {})), tokenizer=tokenizer)
    sample = build_sampler(structure(SamplerConfig, options.get("sampler", {})))
    sampling = SamplingConfig(max_new_tokens=arguments.new_tokens, eos_token_ids=(EOS,), batch_size=arguments.at_once)
    prompts = [Prompt(text="", tokens=row) for row in rows]
    return lambda: int(sample(policy, prompts, sampling).num_actions.sum())


def with_generate(model: Any, rows: Rows, arguments: argparse.Namespace) -> Callable[[], int]:
    """Return a function that generates once, with the same batch size as rlcore, and counts the tokens."""
    copies = arguments.samples if arguments.return_sequences else 1
    rows, size = rows[::copies], arguments.at_once // copies or len(rows)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]

    def generate(group: Rows) -> int:
        longest = max(map(len, group))
        ids = torch.tensor([[PAD] * (longest - len(row)) + list(row) for row in group])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in group])
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=arguments.new_tokens,
            num_return_sequences=copies, eos_token_id=EOS, pad_token_id=PAD,
        )[:, longest:]  # fmt: skip
        before = (out == EOS).cumsum(1) - (out == EOS).long()
        return int((before == 0).sum())

    return lambda: sum(map(generate, groups))


def main() -> None:
    """Sample several times and print one line of figures."""
    parser = argparse.ArgumentParser(description="Measure how fast continuations are sampled.")
    parser.add_argument("side", choices=("rlcore", "generate"))
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=128, help="sequences")
    parser.add_argument("--at-once", type=int, default=0, help="sequences that run at once; all if 0")
    parser.add_argument("--prompts", type=int, nargs=2, default=(1, 64), help="shortest and longest, in tokens")
    parser.add_argument("--samples", type=int, default=1, help="sequences a prompt")
    parser.add_argument("--lengths", choices=("natural", "fixed"), default="natural")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--return-sequences", action="store_true")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="such as model.sampling_dtype=bfloat16"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model(arguments.family, arguments.vocabulary, natural=arguments.lengths == "natural")
    rows = make_prompts(arguments)
    side = through_rlcore if arguments.side == "rlcore" else with_generate
    once = side(model, rows, arguments)
    with torch.no_grad():
        once()
        torch.manual_seed(2)
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = sum(once() for _ in range(arguments.repeats))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({"tokens_per_s": tokens / cpu, "tokens": tokens, "tokens_per_wall_s": tokens / wall, **usage()}))


if __name__ == "__main__":
    main()
