"""GPT-2 with a value head in plain PyTorch: scoring of whole walks, and sampling with a preallocated cache.

While scoring, hidden states contain only the selected positions (packed); only attention uses the padded rectangle.

Shapes: B rollouts, T moves, N chosen tokens, H hidden, V vocabulary. Column t of every [B, T] array refers to move t,
which is token t + 1 of a row that begins with the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, GPT2LMHeadModel

from benchmarks.example import END_ID, PAD_ID, letter

MOVES = 9
BY_HAND = "by_hand"
NO_MASK = torch.zeros(1, 1, 1, 1, dtype=torch.long)
"""Prevents transformers from building a mask: a four-dimensional one is passed through unchanged."""

Mix = Callable[[int, Tensor], Tensor]
"""Attention in block i: float[N, 3H] to float[N, H]. Only this function maps tokens to rows."""


class Network:
    """GPT-2's weights, with a value head on the last hidden state, run without modules."""

    def __init__(self, folder: str) -> None:
        self.gpt2 = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        body, config = self.gpt2.transformer, self.gpt2.config
        self.width, self.heads = config.n_embd, config.n_head
        self.blocks = list(body.h)
        self.vocab, self.positions, self.last_norm = body.wte.weight, body.wpe.weight, body.ln_f
        self.value_head = nn.Sequential(nn.Linear(self.width, 2 * self.width), nn.ReLU(), nn.Linear(2 * self.width, 1))
        self.parameters = [*self.gpt2.parameters(), *self.value_head.parameters()]

    def norm(self, layer: Any, x: Tensor) -> Tensor:
        """Apply a layer norm's weights to float[N, H]."""
        return F.layer_norm(x, (self.width,), layer.weight, layer.bias)

    def trunk(self, tokens: Tensor, positions: Tensor, mix: Mix) -> Tensor:
        """Return the last hidden states, float[N, H], of tokens, long[N], at positions, long[N] or one for all."""
        x = F.embedding(tokens, self.vocab) + self.positions[positions]
        for i, block in enumerate(self.blocks):
            attention, mlp = block.attn, block.mlp
            qkv = torch.addmm(attention.c_attn.bias, self.norm(block.ln_1, x), attention.c_attn.weight)
            x = x + torch.addmm(attention.c_proj.bias, mix(i, qkv), attention.c_proj.weight)
            hidden = torch.addmm(mlp.c_fc.bias, self.norm(block.ln_2, x), mlp.c_fc.weight)
            x = x + torch.addmm(mlp.c_proj.bias, F.gelu(hidden, approximate="tanh"), mlp.c_proj.weight)
        return self.norm(self.last_norm, x)

    def heads_of(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs over the vocabulary, float[N, V], and values, float[N]."""
        return F.log_softmax(hidden @ self.vocab.t(), -1), self.value_head(hidden)[:, 0]

    def score(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs and values of the moves that `mask` selects, float[B, T] each, zero elsewhere.

        Args:
            tokens: long[B, T + 1], the start and the moves.
            mask: bool[B, T], True where the policy chose.
        """
        height, width = mask.shape
        chosen = mask.reshape(-1).nonzero()[:, 0]

        def mix(_: int, qkv: Tensor) -> Tensor:
            square = qkv.new_zeros(height * width, 3 * self.width).index_copy(0, chosen, qkv)
            q, k, v = square.view(height, width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return mixed.transpose(1, 2).reshape(-1, self.width)[chosen]

        hidden = self.trunk(tokens[:, :-1].reshape(-1)[chosen], chosen % width, mix)
        logprobs, values = self.heads_of(hidden)
        logprobs = logprobs.gather(1, tokens[:, 1:].reshape(-1)[chosen, None])[:, 0]
        empty = hidden.new_zeros(height * width)
        logprobs, values = empty.index_copy(0, chosen, logprobs), empty.index_copy(0, chosen, values)
        return logprobs.view(height, width), values.view(height, width)


class ModuleNetwork(Network):
    """The same model run through transformers' modules, with only attention replaced.

    Both use the fused GELU. The extra time over `Network` is the cost of the modules alone: queries, keys and values
    are used in the layout of the preceding projection, so that attention copies nothing.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        AttentionInterface.register(BY_HAND, attention)
        self.gpt2.set_attn_implementation(BY_HAND)
        self._qkv: Tensor
        for block in self.blocks:
            block.mlp.act = nn.GELU(approximate="tanh")
            block.attn.c_attn.register_forward_hook(self._take)

    def _take(self, _module: nn.Module, _inputs: tuple[Tensor, ...], qkv: Tensor) -> None:
        self._qkv = qkv[0]

    def trunk(self, tokens: Tensor, positions: Tensor, mix: Mix) -> Tensor:
        """Return the last hidden states, as `Network.trunk` does."""
        run = self.gpt2.transformer(
            tokens[None],
            position_ids=positions.expand(len(tokens))[None],
            attention_mask=NO_MASK,
            use_cache=False,
            mix=lambda i: mix(i, self._qkv),
        )
        hidden: Tensor = run.last_hidden_state
        return hidden[0]


def attention(
    module: Any, query: Tensor, _key: Tensor, _value: Tensor, _mask: Tensor | None, *, mix: Any, **_unused: Any
) -> tuple[Tensor, None]:
    """Replace transformers' attention function with `mix`; return float[1, N, heads, width]."""
    return mix(module.layer_idx).view(1, query.shape[2], query.shape[1], -1), None


@dataclass
class HandRollouts:
    """A round of sampled walks; entries beyond the end of a walk are zero (PAD_ID in `tokens`).

    Attributes:
        tokens: long[B, T + 1].
        mask: bool[B, T], True where the policy chose the move (the end token included).
        logprobs, values: float[B, T], from the sampling policy.
    """

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    values: Tensor

    def texts(self) -> list[str]:
        """Decode the walks without the end token; a sampled pad token is decoded to a letter outside the alphabet."""
        rows = [row[: row.index(END_ID)] if END_ID in row else row for row in self.tokens.tolist()]
        return ["".join(map(letter, row)) for row in rows]


class HandSampler:
    """HandSampler of continuations for a fixed number of starts, with a preallocated cache of keys and values."""

    def __init__(self, network: Network, num_rows: int) -> None:
        self.network, self.num_rows = network, num_rows
        shape = (num_rows, network.heads, MOVES, network.width // network.heads)
        self.keys = [torch.empty(shape) for _ in network.blocks]
        self.values = [torch.empty(shape) for _ in network.blocks]

    def _mix(self, t: int) -> Mix:
        """Return attention from position t to the positions up to t, and update the cache."""

        def mix(i: int, qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(self.num_rows, 3, self.network.heads, 1, -1).unbind(1)
            keys, values = self.keys[i], self.values[i]
            keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
            mixed = F.scaled_dot_product_attention(q, keys[:, :, : t + 1], values[:, :, : t + 1])
            return mixed.reshape(self.num_rows, -1)

        return mix

    @torch.no_grad()
    def __call__(self, starts: Tensor) -> HandRollouts:
        """Sample one walk from each start, long[B], at temperature 1."""
        tokens = torch.full((self.num_rows, MOVES + 1), PAD_ID)
        tokens[:, 0] = starts
        mask = torch.zeros(self.num_rows, MOVES, dtype=torch.bool)
        logprobs, values = torch.zeros(2, self.num_rows, MOVES)
        alive = torch.ones(self.num_rows, dtype=torch.bool)
        for t in range(MOVES):
            hidden = self.network.trunk(tokens[:, t], torch.tensor(t), self._mix(t))
            distribution, values[:, t] = self.network.heads_of(hidden)
            move = torch.multinomial(distribution.exp(), 1)
            logprobs[:, t] = distribution.gather(1, move)[:, 0]
            mask[:, t] = alive
            tokens[:, t + 1] = move[:, 0].where(alive, PAD_ID)
            alive = alive & (move[:, 0] != END_ID)
            if not alive.any():
                break
        longest = int(mask.sum(1).max())
        mask = mask[:, :longest].contiguous()
        return HandRollouts(
            tokens[:, : longest + 1].contiguous(), mask, logprobs[:, :longest] * mask, values[:, :longest] * mask
        )
