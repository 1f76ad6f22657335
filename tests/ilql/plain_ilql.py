"""Reference ILQL as in the paper: a loop over tokens, on plain copies of the model and its heads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.types import Sample

Make = Callable[..., Any]
TALKS = [
    ["hello", " you."],
    ["ab", "c"],
    ["who? ", "me!", " why? ", "because."],
    ["", "alone"],
    ["a", "b", "c", "d", "e", "f"],
]
REWARDS: list[Any] = [1.0, -0.5, 2.0, 0.25, -1.0]
DENSE: list[Any] = [1.0, [0.5, -1.0], [1.0, -2.0], [0.0, 1.0, 0.0, 0.5, 0.0], [1.0, 0.0, -1.0]]
"""A number; one for each token (`c` and the end); one for each output; for each token; for each output."""
PLACED: list[list[float]] = [
    [0, 0, 0, 0, 0, 1],
    [0.5, -1],
    [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, -2],
    [0, 1, 0, 0.5, 0],
    [0, 1, 0, 0, 0, -1],
]
"""`DENSE` placed by hand at the chosen tokens: every output includes its EOS; the first letter is never chosen."""


def make_ilql(make: Make, model: PreTrainedModel, /, **changes: Any) -> Any:
    inputs = {"samples": TALKS, "rewards": REWARDS} | changes.pop("inputs", {})
    sections = {name: changes.pop(name) for name in ("data", "run", "model") if name in changes}
    options = {"batch_size": len(inputs["samples"]), "standardise_rewards": False} | changes
    return make("ilql", model, sections=sections, inputs=inputs, **options)


class Plain:
    """Copy of a policy with its heads, evaluated independently of rlcore."""

    def __init__(self, policy: Any, model: PreTrainedModel) -> None:
        model.load_state_dict(policy.model.state_dict())
        self.model = model
        self.value = copy.deepcopy(policy.module.value.head)
        self.q, self.targets = copy.deepcopy(policy.module.q_heads.heads), copy.deepcopy(policy.module.q_heads.targets)

    def losses(self, samples: Sequence[Sample], rewards: Sequence[Sequence[float]], options: dict[str, float]) -> Any:
        """Return each term's mean over all chosen tokens of the samples; rewards are those of the chosen tokens."""
        sums: dict[str, Any] = dict.fromkeys(("q", "v", "cql", "awac"), 0.0)
        count = 0
        for sample, earned in zip(samples, rewards, strict=True):
            steps = [t for t, chosen in enumerate(sample.action_mask) if chosen]
            hidden, logits, start = self.read(sample)
            v = [self.value(hidden[t - start]).squeeze() for t in steps]
            for k, t in enumerate(steps):
                token, state = sample.tokens[t], hidden[t - start]
                q_bar = min(head(state[None])[0, token].item() for head in self.targets)
                after = v[k + 1].item() if k + 1 < len(steps) else 0.0
                for head in self.q:
                    q = head(state[None])[0]
                    sums["q"] += (q[token] - (earned[k] + options["gamma"] * after)) ** 2
                    sums["cql"] += q.logsumexp(0) - q[token]
                weight = options["tau"] if q_bar > v[k].item() else 1 - options["tau"]
                sums["v"] += weight * (q_bar - v[k]) ** 2
                gain = torch.tensor(options["awac_beta"] * (q_bar - v[k].item())).exp()
                sums["awac"] -= gain * logits[t - start].log_softmax(0)[token]
            count += len(steps)
        return {name: total / count for name, total in sums.items()}

    def read(self, sample: Sample) -> tuple[Tensor, Tensor, int]:
        """Return inputs, outputs of the model's head and an offset; token t has row t minus the offset."""
        seen: list[Tensor] = []
        hook = self.model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        ids = torch.tensor([sample.tokens])
        if self.model.config.is_encoder_decoder:
            first = sample.action_mask.index(True)
            begin = torch.tensor([[self.model.config.decoder_start_token_id]])
            decoder_ids = torch.cat([begin, ids[:, first:-1]], 1)
            logits = self.model(input_ids=ids[:, :first], decoder_input_ids=decoder_ids).logits
        else:
            first, logits = 1, self.model(ids).logits
        hook.remove()
        return seen[0][0], logits[0], first

    def named(self) -> dict[str, nn.Parameter]:
        parts = {"model": self.model, "value.head": self.value, "q_heads.heads": self.q}
        return {f"{name}.{of}": weight for name, part in parts.items() for of, weight in part.named_parameters()}
