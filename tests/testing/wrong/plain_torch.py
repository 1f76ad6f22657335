"""An architecture in plain torch, with a reference of its own, and one whose scores are not those of the reference."""

import copy
from contextlib import nullcontext

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rlcore import ops
from rlcore.protocols import DecodeStep
from rlcore.types import PolicyOutputs
from rlcore_testing.small import VOCABULARY

WIDTH = 8


class Recurrent(nn.Module):
    """Embeddings, a GRU's cell, and a head of logits."""

    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)


class WithValue(nn.Module):
    """The model, and a value head if there is one."""

    def __init__(self, model, *, value_head):
        super().__init__()
        self.model = model
        self.value = nn.Linear(WIDTH, 1) if value_head else None

    def forward(self, tokens, mask, state=None):
        """Return logits and values after each token, and the last state; padding leaves the state as it is."""
        inputs, states = self.model.embedding(tokens), []
        state = inputs.new_zeros(len(tokens), WIDTH) if state is None else state
        for column in range(tokens.shape[1]):
            state = torch.where(mask[:, column, None], self.model.cell(inputs[:, column], state), state)
            states.append(state)
        hidden = torch.stack(states, 1)
        return self.model.head(hidden), None if self.value is None else self.value(hidden)[..., 0], state


class RecurrentPolicy:
    """A policy that names nothing of transformers."""

    export_class = "plain_torch.Recurrent"
    max_length = max_prompt_length = version = 0
    outputs_begin_text = steers = False

    def __init__(self, model, tokenizer, *, value_head, reference):
        self.reference = WithValue(copy.deepcopy(model).requires_grad_(False), value_head=False) if reference else None
        self.module, self.tokenizer = WithValue(model, value_head=value_head), tokenizer
        self.eos_token_ids = (tokenizer.eos_token_id,)
        self.use_forward(self.module, autocast=nullcontext)

    @property
    def device(self):
        return self.module.model.head.weight.device

    def to(self, device):
        for each in (self.module, self.reference):
            if each is not None:
                each.to(device)

    def use_forward(self, forward, *, autocast):
        self.forward, self.autocast = forward, autocast

    def training_step(self):
        return nullcontext()

    def score(self, batch, *, entropy=False, logits=False, temperature=1.0):
        return self.outputs(self.forward, batch, entropy, logits, temperature)

    @torch.no_grad()
    def reference_score(self, batch, *, logits=False, temperature=1.0):
        return self.outputs(self.reference, batch, False, logits, temperature)

    def outputs(self, forward, batch, entropy, logits, temperature):
        with self.autocast():
            after, values, _ = forward(batch.tokens, batch.mask)
        before = (after / temperature).roll(1, 1)[batch.action_mask]
        return PolicyOutputs(
            logprobs=ops.spread(ops.token_logprobs(before, batch.tokens[batch.action_mask]), batch.action_mask),
            values=None if values is None else values.roll(1, 1) * batch.action_mask,
            entropy=ops.spread(ops.entropy(before), batch.action_mask) if entropy else None,
            logits=before if logits else None,
        )

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        return RecurrentDecoder(self, prompts)

    def save_pretrained(self, folder):
        save_file({name: each.detach().clone() for name, each in self.module.state_dict().items()}, folder / "weights")
        self.tokenizer.save_pretrained(folder)

    def load_pretrained(self, folder):
        self.module.load_state_dict(load_file(folder / "weights"))
        self.version += 1

    export = save_pretrained


class RecurrentDecoder:
    """Decodes with the state as its cache."""

    def __init__(self, policy, prompts):
        width = max(map(len, prompts))
        self.policy, self.state = policy, None
        self.tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        self.mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])

    @torch.no_grad()
    def start(self):
        with self.policy.autocast():
            logits, values, self.state = self.policy.module(self.tokens, self.mask, self.state)
        return DecodeStep(logits[:, -1], None if values is None else values[:, -1])

    def step(self, tokens):
        self.tokens = tokens[:, None]
        self.mask = torch.ones_like(self.tokens, dtype=torch.bool)
        return self.start()

    def keep(self, rows):
        self.state = self.state[rows]


def make_recurrent():
    torch.manual_seed(0)
    return Recurrent()


def reference_logprobs(model, tokens):
    """Feed one token after another to the cell."""
    state, found = torch.zeros(WIDTH), []
    for token in tokens:
        state = model.cell(model.embedding.weight[token], state)
        found.append(model.head(state).log_softmax(-1))
    return torch.stack(found)


def build_recurrent(spec, config, *, tokenizer=None, value_head=False, reference=False):
    return RecurrentPolicy(spec, tokenizer, value_head=value_head, reference=reference)


def build_hasty(spec, config, *, tokenizer=None, value_head=False, reference=False):
    """Let padding pass through the cell."""
    policy = build_recurrent(spec, config, tokenizer=tokenizer, value_head=value_head, reference=reference)
    forward = policy.forward
    policy.forward = lambda tokens, mask: forward(tokens, torch.ones_like(mask))
    return policy


def build_unreferenced(spec, config, *, tokenizer=None, value_head=False, reference=False):
    return build_recurrent(spec, config, tokenizer=tokenizer, value_head=value_head, reference=reference)


for build in (build_recurrent, build_hasty, build_unreferenced):
    build.example_model, build.reference_logprobs = make_recurrent, reference_logprobs
build_unreferenced.reference_logprobs = lambda model, tokens: reference_logprobs(model, tokens)[:-1]
