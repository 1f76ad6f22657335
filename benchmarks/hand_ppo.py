"""PPO on random walks, written by hand for one model and one task: the speed baseline for rlcore.

No framework, no checkpoints, no logger and no option that costs time: plain PyTorch over the weights of a
GPT2LMHeadModel. One iteration is 140 rollouts of at most 9 tokens (20 starts x 7), then 4 epochs of minibatches of 100
and 40, which makes 8 optimizer steps. KL coefficient 0, fused AdamW at 3e-4, GAE(1, .95), clips .2, value coefficient
1.2. The model is in hand_gpt2.py; `--modules` runs it through the modules of transformers.

    OMP_NUM_THREADS=1 python hand_ppo.py base FOLDER [--tiny]                              make the starting model
    OMP_NUM_THREADS=1 python hand_ppo.py ppo FOLDER [--iterations 12] [--seed 0] [--modules]    train it, print JSON
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel
from transformers.utils import logging

from benchmarks.example import END_ID, PAD_ID, RandomWalks, model_config, tokenizer
from benchmarks.figures import Clock, report
from benchmarks.hand_gpt2 import HandRollouts, HandSampler, ModuleNetwork, Network

ROUNDS_OF_STARTS, EPOCHS, MINIBATCH = 7, 4, 100
LR, BETAS, WEIGHT_DECAY = 3e-4, (0.9, 0.95), 1e-6
LAM, CLIP, VALUE_COEF = 0.95, 0.2, 1.2


def generalised_advantages(rewards: Tensor, values: Tensor, *, lam: float) -> Tensor:
    """Return A_t = sum over l of lam^l * delta_{t+l}, delta_t = r_t + V_{t+1} - V_t (gamma 1; V = 0 past the end).

    float[B, T] each. Schulman et al., 2016, arXiv:1506.02438, equation 16.
    """
    advantages, running = torch.empty_like(values), torch.zeros_like(values[:, 0])
    following = running
    for t in reversed(range(values.shape[1])):
        running = rewards[:, t] + following - values[:, t] + lam * running
        advantages[:, t], following = running, values[:, t]
    return advantages


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Normalise the entries selected by `mask` to mean 0 and population standard deviation 1; zero the others."""
    chosen = advantages[mask]
    return (advantages - chosen.mean()) / (chosen.std(correction=0) + 1e-8) * mask


def ppo_loss(
    logprobs: Tensor, values: Tensor, rollouts: HandRollouts, advantages: Tensor, returns: Tensor, rows: Tensor
) -> Tensor:
    """Return the clipped policy loss plus 1.2 times the clipped value loss, means over the chosen tokens of `rows`.

    Schulman et al., 2017, arXiv:1707.06347, equations 7 and 9.
    """
    mask, loss_per_ratio, old_values = rollouts.mask[rows], -advantages[rows], rollouts.values[rows]
    ratio = ((logprobs - rollouts.logprobs[rows]) * mask).exp()
    policy = torch.max(loss_per_ratio * ratio, loss_per_ratio * ratio.clamp(1 - CLIP, 1 + CLIP))
    near = old_values + (values - old_values).clamp(-CLIP, CLIP)
    value = torch.max((values - returns[rows]) ** 2, (near - returns[rows]) ** 2)
    return ((policy + VALUE_COEF / 2 * value) * mask).sum() / mask.sum()


class HandPPO:
    """PPO trainer for the walks of one graph, one call per iteration."""

    def __init__(self, folder: str, *, graph_seed: int = 1000, network: type[Network] = Network) -> None:
        self.task = RandomWalks(graph_seed)
        self.starts = torch.tensor([ord(start) - ord("a") for start in self.task.starts]).repeat(ROUNDS_OF_STARTS)
        self.network, self.clock = network(folder), Clock()
        self.sampler = HandSampler(self.network, len(self.starts))
        self.optimizer = torch.optim.AdamW(
            self.network.parameters, lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )

    def evaluate(self, num_rounds: int = 8) -> float:
        """Return the mean optimality of some rounds of walks, 140 each, without learning from them."""
        walks = [walk for _ in range(num_rounds) for walk in self.sampler(self.starts).texts()]
        return float(sum(map(self.task.optimality, walks)) / len(walks))

    def iterate(self) -> float:
        """Sample a round, learn from it, and return the mean optimality of its walks."""
        rollouts = self.sampler(self.starts[torch.randperm(len(self.starts))])
        self.clock.end_phase("sample")
        scores = torch.tensor([self.task.optimality(walk) for walk in rollouts.texts()])
        self.clock.end_phase("score")
        rewards = torch.zeros_like(rollouts.values)
        rewards[torch.arange(len(scores)), rollouts.mask.sum(1) - 1] = scores
        advantages = generalised_advantages(rewards, rollouts.values, lam=LAM)
        returns = advantages + rollouts.values
        advantages = whiten(advantages, rollouts.mask)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(scores)).split(MINIBATCH):
                logprobs, values = self.network.score(rollouts.tokens[rows], rollouts.mask[rows])
                ppo_loss(logprobs, values, rollouts, advantages, returns, rows).backward()
                self.clock.end_phase("train")
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.clock.end_phase("optimizer")
        return float(scores.mean())


def make_base(folder: str, *, tiny: bool = False, graph_seed: int = 1000) -> None:
    """Train the initial model on the 1000 walks, 15 epochs of batches of 100, and save it with its tokenizer."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(model_config(tiny=tiny))
    walks = [[ord(name) - ord("a") for name in walk] + [END_ID] for walk in RandomWalks(graph_seed).walks]
    rows = nn.utils.rnn.pad_sequence([torch.tensor(walk) for walk in walks], batch_first=True, padding_value=PAD_ID)
    labels = rows.masked_fill(rows == PAD_ID, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(15):
        for batch in torch.randperm(len(walks)).split(100):
            model(rows[batch], labels=labels[batch]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["base", "ppo"])
    parser.add_argument("folder", help="where the starting model is, or goes")
    parser.add_argument("--tiny", action="store_true", help="base: 1 layer, 24 wide")
    parser.add_argument("--modules", action="store_true", help="ppo: run the model through transformers' modules")
    parser.add_argument("--graph-seed", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.what == "base":
        make_base(options.folder, tiny=options.tiny, graph_seed=options.graph_seed)
        return
    torch.manual_seed(options.seed)
    network = ModuleNetwork if options.modules else Network
    ppo = HandPPO(options.folder, graph_seed=options.graph_seed, network=network)
    ppo.clock.mark()
    scores = []
    for _ in range(options.iterations):
        scores.append(ppo.iterate())
        ppo.clock.mark()
    figures = report(scores, ppo.clock)
    print(json.dumps(figures | {"end_score": round(ppo.evaluate(), 4)}))


if __name__ == "__main__":
    main()
