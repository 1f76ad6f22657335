"""Models, decoders and a CPU stand-in for CUDA graphs, shared by the tests of this plugin."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from rlcore_cuda_graphs.choice import StaticDecoding
from rlcore_cuda_graphs.graphs import reads_on_host
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder

PAD, VOCABULARY = 31, 32
SHAPE: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "pad_token_id": 31, "bos_token_id": 30,
    "eos_token_id": 30,
}  # fmt: skip
GPT: dict[str, Any] = {
    "vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 30,
    "eos_token_id": 30, "pad_token_id": 31, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
RAGGED = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3], [13, 14]]
FAMILIES = {
    "gpt2": hf.GPT2Config(**GPT),
    "llama": hf.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": hf.Qwen2Config(**SHAPE),
    "neox": hf.GPTNeoXConfig(**SHAPE),
    "gemma2, softcaps, wide windows": hf.Gemma2Config(**SHAPE, sliding_window=60, attn_implementation="eager"),
}


def make_causal(config: PreTrainedConfig) -> PreTrainedModel:
    """Make the model that `config` describes, with seeded weights large enough for peaked distributions."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model


class Tape(TorchDispatchMode):
    """CPU stand-in for a CUDA graph: numbers are constants, tensors keep their addresses, replay runs no Python."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0

    def capture(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        call()
        with self:
            return call()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads_on_host(func, args):
            raise RuntimeError(f"{func} cannot be captured")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        self.num_replays += 1
        for func, args, kwargs, out in self.calls:
            schema = func._schema
            is_view = not schema.is_mutable and any(each.alias_info is not None for each in schema.returns)
            if is_view:
                continue
            again = func(*args, **kwargs)
            if not schema.is_mutable:
                for place, value in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
                    if isinstance(place, Tensor):
                        place.copy_(value)


class Recorder:
    """Factory of tapes that records each tape in a list."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def __call__(self) -> Callable[[], Tape]:
        return self.make

    def make(self) -> Tape:
        self.tapes.append(Tape())
        return self.tapes[-1]

    @property
    def num_replays(self) -> int:
        return sum(tape.num_replays for tape in self.tapes)


def plain(model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, waiting: int = 0, **options: Any) -> Any:
    """Return the core's decoder with a growing cache, the reference in these tests."""
    return CausalDecoder(model, prompts, pad_id=PAD, **options)


def ordinary(model: PreTrainedModel, prompts: Sequence[Sequence[int]], num_tokens: int, **options: Any) -> Any:
    return plain(model, prompts, max_new_tokens=num_tokens, **options)


def make_static(recorder: Any = None) -> StaticDecoding:
    """Return a static decoder, with CUDA graphs from `recorder` if one is passed."""
    return StaticDecoding(plain, pad_id=PAD, make_graphs=recorder)


def static(
    static: StaticDecoding, model: PreTrainedModel, prompts: Sequence[Sequence[int]], num_tokens: int, **options: Any
) -> Any:
    return static(model, prompts, max_new_tokens=num_tokens, **options)


def run(make: Callable[..., Any], model: PreTrainedModel, **options: Any) -> list[Tensor]:
    """Return the logits of 12 decoding steps during which sequences finish one by one; tokens depend on the logits."""
    decoder = make(model, RAGGED, 12, **options)
    said, logits = decoder.start(), []
    for at in range(12):
        logits.append(said.logits)
        if at in (3, 5, 6, 8):
            left = torch.arange(at % 2, len(said.logits), device=model.device)[: max(1, len(said.logits) - 1)]
            decoder.keep(left)
            logits[-1] = said.logits[left]
        said = decoder.step((logits[-1].argmax(1) + at) % 30)
    return [*logits, said.logits]


def assert_same(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert [len(each) for each in got] == [len(each) for each in expected]
    torch.testing.assert_close(torch.cat(list(got)), torch.cat(list(expected)), atol=1e-5, rtol=1e-5)
