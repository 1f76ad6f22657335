"""The losses of SFT, PPO and ILQL in plain torch, row by row, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Loss = tuple[Tensor, dict[str, Any]]


def sft(run: Any) -> Iterator[Loss]:
    for rows in run.steps:
        loss = -torch.cat([distributions(run.model, row)[1] for row in rows]).mean()
        yield loss, {"loss/total": loss}


def ppo(run: Any) -> Iterator[Loss]:
    options, steps, scores, kl_coef = run.options, iter(run.steps), list[Tensor](), run.options["kl_coef"]
    for responses, previous, end in zip(run.rounds, [0, *run.ends], run.ends, strict=False):
        with torch.no_grad():
            known = {id(each): _sampled(run, each, scores, responses) for each in responses}
            kl = sum(float(each["kl"].sum()) for each in known.values()) / len(responses)
            for each in known.values():
                each["rewards"] -= kl_coef * each["kl"]
                each["advantages"] = _gae(each, options["gamma"], options["lam"])
                each["returns"] = each["advantages"] + each["values"]
            if options["whiten_advantages"]:
                every = torch.cat([each["advantages"] for each in known.values()])
                for each in known.values():
                    std = every.std(correction=0).clamp(min=options["min_advantage_std"])
                    each["advantages"] = (each["advantages"] - every.mean()) / std
        logged: dict[str, float] = {"kl/mean": kl, "kl/coef": kl_coef}
        if options["kl_target"] is not None:
            error = min(max(kl / options["kl_target"] - 1, -0.2), 0.2)
            kl_coef *= 1 + error * len(responses) / options["kl_horizon"]
        sums, count, passed, seen = torch.zeros(4), 0, torch.zeros(2), 0
        for number in range(previous + 1, end + 1):
            rows = next(steps)
            terms = torch.cat([_terms(run, each, known[id(each)]) for each in rows], 1)
            policy, value, entropy, _ = terms.mean(1)
            sums, count = sums + terms.detach().sum(1), count + terms.shape[1]
            means = sums / count
            total = means[0] + options["value_coef"] * means[1] - options["entropy_coef"] * means[2]
            logged |= {
                "loss/policy": float(means[0]), "loss/value": float(means[1]), "policy/approx_kl": float(means[3]),
                "loss/total": float(total),
            }  # fmt: skip
            yield policy + options["value_coef"] * value - options["entropy_coef"] * entropy, logged
            passed += torch.stack([terms.detach()[3].sum(), torch.tensor(1.0 * terms.shape[1])])
            seen += len(rows)
            if seen == len(responses):
                is_far = float(passed[0] / passed[1]) > 1.5 * (options["target_kl"] or torch.inf)
                assert not is_far or number == end, "the round should have ended here"
                passed, seen = torch.zeros(2), 0


def _sampled(run: Any, response: Any, scores: list[Tensor], responses: list[Any]) -> dict[str, Tensor]:
    """Return what is known of a response before the round is learned from, one number per chosen token."""
    options, temperature = run.options, run.gen["temperature"]
    every, old = distributions(run.model, response, temperature)
    every_ref, ref = distributions(run.reference, response, temperature)
    gap = old - ref
    kl = {
        "k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() - 1 + gap, "full": (every.exp() * (every - every_ref)).sum(-1),
    }[options["kl_estimator"]]  # fmt: skip
    values = values_of(run, response)
    chosen = [t for t, own in enumerate(response.action_mask) if own]
    rewards = torch.zeros(len(chosen))
    rewards[-1] = _bounded(response, options)
    if options["score_scaling"] == "running":
        if response is responses[0]:
            scores += [torch.tensor(_bounded(each, options)) for each in responses]
        rewards /= torch.stack(scores).std()
    after = values[-1] if options["bootstrap_truncated"] and not response.ended else torch.zeros(())
    return {
        "old": old, "kl": kl, "values": torch.stack([values[t - 1] for t in chosen]), "rewards": rewards,
        "after": after,
    }  # fmt: skip


def _bounded(response: Any, options: Any) -> float:
    score: float = response.score - options["missing_eos_penalty"] * (not response.ended)
    low, high = options["score_min"], options["score_max"]
    return min(max(score, -torch.inf if low is None else low), torch.inf if high is None else high)


def _gae(known: dict[str, Tensor], gamma: float, lam: float) -> Tensor:
    values = [*known["values"], known["after"]]
    advantages, running = [], torch.zeros(())
    for t in reversed(range(len(values) - 1)):
        running = known["rewards"][t] + gamma * values[t + 1] - values[t] + gamma * lam * running
        advantages.append(running)
    return torch.stack(advantages[::-1])


def _terms(run: Any, response: Any, known: dict[str, Tensor]) -> Tensor:
    """Return policy loss, value loss, entropy and approximate KL of each chosen token: [4, tokens]."""
    options = run.options
    every, new = distributions(run.model, response, run.gen["temperature"])
    ratio = (new - known["old"]).exp()
    policy = []
    for rho, advantage in zip(ratio, known["advantages"], strict=True):
        bound = min(max(float(rho), 1 - options["clip"]), 1 + options["clip"])
        is_clipped = advantage * rho > advantage * bound
        policy.append(-advantage * bound + 0 * rho if is_clipped else -advantage * rho)
    values = torch.stack([values_of(run, response)[t - 1] for t, own in enumerate(response.action_mask) if own])
    value = (values - known["returns"]) ** 2
    if options["clip_value"]:
        near = known["values"] + (values - known["values"]).clamp(-options["clip_value"], options["clip_value"])
        value = torch.maximum(value, (near - known["returns"]) ** 2)
    entropy = -(every.exp() * every).sum(-1)
    return torch.stack([torch.stack(policy), value / 2, entropy, ratio - 1 - (new - known["old"])])


def ilql(run: Any) -> Iterator[Loss]:
    options, heads = run.options, run.heads
    totals = torch.tensor(run.rewards)
    scaled = (totals - totals.mean()) / totals.std() if options["standardise_rewards"] else totals
    reward_of = {id(row): float(reward) for row, reward in zip(run.samples, scaled, strict=True)}
    for number, rows in enumerate(run.steps, start=1):
        terms = torch.cat([_ilql_terms(run, row, reward_of[id(row)]) for row in rows], 1).mean(1)
        names = ("loss/q", "loss/v", "loss/cql", "loss/awac")
        loss = terms[0] + terms[1] + options["cql_coef"] * terms[2] + options["awac_coef"] * terms[3]
        yield loss, {"loss/total": loss, **dict(zip(names, terms, strict=True))}
        if number % options["sync_every"] == 0:
            rate = options["target_rate"]
            for name, weight in heads.items():
                if "targets" in name:
                    online = heads[name.replace("targets", "heads")].detach()
                    weight.copy_(rate * online + (1 - rate) * weight)


def _ilql_terms(run: Any, row: Any, reward: float) -> Tensor:
    """Return the losses of Q, V, CQL and AWAC of each chosen token: [4, tokens]."""
    options, hidden, values = run.options, hidden_of(run, row), values_of(run, row)
    logprobs = distributions(run.model, row)[1]
    chosen = [t for t, own in enumerate(row.action_mask) if own]
    found = []
    for k, t in enumerate(chosen):
        token, heads = row.tokens[t], range(options["num_q_heads"])
        q = [_head(run.heads, f"q_heads.heads.{i}", hidden[t - 1]) for i in heads]
        target = min(float(_head(run.heads, f"q_heads.targets.{i}", hidden[t - 1])[token]) for i in heads)
        value, is_last = values[t - 1], k == len(chosen) - 1
        goal = reward if is_last else options["gamma"] * float(values[chosen[k + 1] - 1])
        advantage = target - value
        weight = options["tau"] if advantage > 0 else 1 - options["tau"]
        found.append(torch.stack([
            sum((each[token] - goal) ** 2 for each in q), weight * advantage**2,
            -sum(each.log_softmax(-1)[token] for each in q),
            -float((options["awac_beta"] * advantage).exp()) * logprobs[k],
        ]))  # fmt: skip
    return torch.stack(found, 1)


def distributions(model: Any, row: Any, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return log-probs of all tokens in the place of each chosen one, [tokens, V], and those of the chosen ones."""
    logits = model(torch.tensor([row.tokens])).logits[0] / temperature
    chosen = [t for t, own in enumerate(row.action_mask) if own]
    every = torch.stack([logits[t - 1] for t in chosen]).log_softmax(-1)
    return every, torch.stack([every[k, row.tokens[t]] for k, t in enumerate(chosen)])


def hidden_of(run: Any, row: Any) -> Tensor:
    """Return the inputs of the output embeddings: [T, H]."""
    states: Tensor = run.model(torch.tensor([row.tokens]), output_hidden_states=True).hidden_states[-1][0]
    return states


def values_of(run: Any, row: Any) -> Tensor:
    """Return V after each token of a row: [T]."""
    return _head(run.heads, "value.head", hidden_of(run, row))[:, 0]


def _head(heads: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    """Return Linear(ReLU(Linear(hidden)))."""
    risen = torch.relu(hidden @ heads[f"{name}.rise.weight"].T + heads[f"{name}.rise.bias"])
    return risen @ heads[f"{name}.fall.weight"].T + heads[f"{name}.fall.bias"]
