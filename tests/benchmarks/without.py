"""Run another program of this folder with one technique taken away, to see what that brings.

    python without.py TECHNIQUE SCRIPT [ARGUMENT ...]

Each is replaced by what a library without it would do: the work is the same, and slower.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig


def replace(owner: Any, name: str, stand_in: object) -> None:
    """Put something in the place of what a module or a class has under a name.

    Raises:
        AttributeError: it has nothing there, so that the program would run with the technique all the same.
    """
    getattr(owner, name)
    setattr(owner, name, stand_in)


def inverted_distribution() -> None:
    """Draw by `torch.multinomial` from normalised probabilities."""
    from rlcore.sampling import next_token

    def draw(logits: Tensor, _uniforms: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = logits.log_softmax(1)
        tokens = torch.multinomial(logprobs.exp(), 1)
        return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]

    replace(next_token, "draw", draw)


def early_leaving() -> None:
    """Continue sequences that have ended until the last one has."""
    from rlcore.sampling import loop

    replace(loop, "LEAVE_SHARE", 0)


def packed_decoding() -> None:
    """Continue sequences padded, in the growing cache."""
    from rlcore.models import inputs

    replace(inputs, "pays", lambda *_, **__: False)


def shared_prompts() -> None:
    """Hold a prompt's keys and values with each of its sequences."""
    from rlcore.models.decoding import packed as decoder
    from rlcore.models.decoding.block_cache import BlockCache

    replace(decoder, "_kind", lambda *_: BlockCache)


def preallocated_cache() -> None:
    """Continue sequences padded, in the cache of transformers, which is copied for every token."""
    from rlcore.models.decoding import causal

    def make_cache(config: PreTrainedConfig, _capacity: int) -> DynamicCache:
        return DynamicCache(config=config)

    packed_decoding()
    replace(causal, "make_cache", make_cache)


def fused_optimizer() -> None:
    """Step AdamW as torch does it if it is not asked."""
    plain = torch.optim.AdamW.__init__

    def init(self: torch.optim.AdamW, *args: object, **options: object) -> None:
        plain(self, *args, **{**options, "fused": None})  # type: ignore[arg-type]

    replace(torch.optim.AdamW, "__init__", init)


def fused_activations() -> None:
    """Keep GELU as transformers spells it out."""
    from rlcore.models import loading

    replace(loading, "fuse_activations", lambda _: None)


def reused_logprobs() -> None:
    """Score what was sampled once more before learning from it."""
    from rlcore_ppo.trainer import PPOTrainer

    replace(PPOTrainer, "_is_known", lambda *_: False)


def shared_prefixes() -> None:
    """Have every token of a packed batch read, whatever it stands behind."""
    from rlcore.models.speed import packing

    replace(packing, "distinct_prefixes", packing.every_prefix)


def attention_groups() -> None:
    """Have attention see one rectangle, as wide as the longest sequence."""
    from rlcore.models.speed import packing

    replace(packing, "CALL", sys.maxsize)


TECHNIQUES: dict[str, Callable[[], None]] = {
    technique.__name__.replace("_", "-"): technique
    for technique in (
        inverted_distribution, early_leaving, packed_decoding, shared_prompts, preallocated_cache, fused_optimizer,
        fused_activations, reused_logprobs, shared_prefixes, attention_groups,
    )
}  # fmt: skip


def main() -> None:
    """Take the technique away and become the other program."""
    technique, script, *arguments = sys.argv[1:]
    TECHNIQUES[technique]()
    program = str(Path(__file__).resolve().parent / script)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
