"""A third party's recurrent policy in plain torch, which can be divided: e2e_recurrent.py ROOT RUN CHANGES_AS_JSON."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from e2e_scenarios import COMMON, PPO
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import rlcore
from rlcore import hookimpl, ops
from rlcore.config import merge
from rlcore.hookspecs import Register
from rlcore.protocols import DecodeStep
from rlcore.sharding import DividedModule
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_testing.small import EOS, VOCABULARY, make_tokenizer

WIDTH, LAYERS = 8, 2
WEIGHTS = "weights.safetensors"


@hookimpl
def register_architectures(register: Register) -> None:
    register("recurrent", "e2e_recurrent:build_recurrent", summary="two layers of GRUs")
    register("recurrent_whole", "e2e_recurrent:build_whole", summary="the same, without Divisible")


class Layer(nn.Module):
    """A GRU over sequences with padding on any side, which leaves the state as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, inputs: Tensor, mask: Tensor, state: Tensor) -> Tensor:
        """Return the state after each token: float[B, T, H] from float[B, T, H], bool[B, T] and float[B, H]."""
        states = []
        for column in range(inputs.shape[1]):
            state = torch.where(mask[:, column, None], self.cell(inputs[:, column], state), state)
            states.append(state)
        return torch.stack(states, 1)


class Recurrent(nn.Module):
    """Embeddings, layers, and heads of logits and values."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head, self.value = nn.Linear(WIDTH, VOCABULARY), nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor, mask: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits and values after each token, and the last state of each layer."""
        hidden, last = self.embedding(tokens), []
        begin = hidden.new_zeros(LAYERS, len(tokens), WIDTH) if states is None else states
        for layer, state in zip(self.layers, begin, strict=True):
            hidden = layer(hidden, mask, state)
            last.append(hidden[:, -1])
        return self.head(hidden), self.value(hidden)[..., 0], torch.stack(last)


class WholePolicy:
    """The policy; nothing of it names `transformers`."""

    export_class = "e2e_recurrent.Recurrent"
    max_length = max_prompt_length = version = 0
    steers = False
    outputs_begin_text, eos_token_ids = False, (EOS,)

    def __init__(self, module: Recurrent, tokenizer: Any, *, reference: bool) -> None:
        self.module, self.tokenizer = module, tokenizer
        self.reference = copy.deepcopy(module).requires_grad_(False) if reference else None
        self.use_forward(module, autocast=nullcontext)

    @property
    def device(self) -> torch.device:
        return self.module.head.weight.device

    def to(self, device: torch.device) -> None:
        self.module.to(device)

    def use_forward(self, forward: Callable[..., Any], *, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self._forward, self._autocast = forward, autocast

    def training_step(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def score(
        self, batch: Trajectories, *, entropy: bool = False, logits: bool = False, temperature: float = 1.0
    ) -> PolicyOutputs:
        return self._outputs(self._forward, batch, entropy, logits, temperature)

    @torch.no_grad()
    def reference_score(self, batch: Trajectories, *, logits: bool = False, temperature: float = 1.0) -> PolicyOutputs:
        if isinstance(self, DividedModule):
            self.gather()
        return self._outputs(self.reference, batch, False, logits, temperature)

    def _outputs(
        self, forward: Any, batch: Trajectories, entropy: bool, logits: bool, temperature: float
    ) -> PolicyOutputs:
        with self._autocast():
            after, values, _ = forward(batch.tokens, batch.mask)
        before = (after / temperature).roll(1, 1)[batch.action_mask]
        return PolicyOutputs(
            logprobs=ops.spread(ops.token_logprobs(before, batch.tokens[batch.action_mask]), batch.action_mask),
            values=values.roll(1, 1) * batch.action_mask,
            entropy=ops.spread(ops.entropy(before), batch.action_mask) if entropy else None,
            logits=before if logits else None,
        )

    def decoder(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False
    ) -> RecurrentDecoder:
        return RecurrentDecoder(self.module, prompts)

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: each.detach().clone() for name, each in self.module.state_dict().items()}, folder / WEIGHTS)

    def load_pretrained(self, folder: Path) -> None:
        self.module.load_state_dict(load_file(folder / WEIGHTS))
        self.version += 1

    export = save_pretrained


class RecurrentDecoder:
    """Decodes with the states of the layers as its cache."""

    def __init__(self, module: Recurrent, prompts: Sequence[Sequence[int]]) -> None:
        self.module, width = module, max(map(len, prompts))
        self.tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        self.mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
        self.states: Tensor | None = None

    @torch.no_grad()
    def start(self) -> DecodeStep:
        logits, values, self.states = self.module(self.tokens, self.mask, self.states)
        return DecodeStep(logits[:, -1], values[:, -1])

    def step(self, tokens: Tensor) -> DecodeStep:
        self.tokens = tokens[:, None]
        self.mask = torch.ones_like(self.tokens, dtype=torch.bool)
        return self.start()

    def keep(self, rows: Tensor) -> None:
        assert self.states is not None
        self.states = self.states[:, rows]


class DivisiblePolicy(DividedModule, WholePolicy):
    """The policy, which says at which layers it is divided, and that its reference is divided too."""

    def blocks(self, trained: nn.Module) -> list[nn.Module]:
        return list(trained.layers)  # type: ignore[arg-type]

    def frozen_parameters(self) -> Mapping[str, nn.Parameter]:
        return {} if self.reference is None else dict(self.reference.named_parameters())

    def load_pretrained(self, folder: Path) -> None:
        with self.overwriting():
            super().load_pretrained(folder)


def build_recurrent(
    spec: Recurrent, config: None, *, tokenizer: Any = None, value_head: bool = False, reference: bool = False
) -> DivisiblePolicy:
    """Build the policy."""
    return DivisiblePolicy(spec, tokenizer, reference=reference)


def build_whole(
    spec: Recurrent, config: None, *, tokenizer: Any = None, value_head: bool = False, reference: bool = False
) -> WholePolicy:
    """Build the policy that cannot be divided."""
    return WholePolicy(spec, tokenizer, reference=reference)


def make_recurrent() -> Recurrent:
    torch.manual_seed(0)
    return Recurrent()


def train(root: Path, run: str, changes: dict[str, Any]) -> Any:
    """Train with PPO in `root`/`run`."""
    steady = {"trainer": {"optimizer": {"lr": 3e-3, "eps": 1e-2}}, "run": {"name": run, "root": str(root)}}
    sections = merge(merge(merge(PPO, COMMON), steady), changes)
    model = {"path": make_recurrent(), "architecture": "recurrent"} | sections.pop("model", {})
    return rlcore.train(**sections, model=model, tokenizer=make_tokenizer())


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
