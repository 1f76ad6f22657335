"""The random-walks task: reach node `a` of a directed random graph from a given start in as few moves as possible.

The task needs no download and is small enough to learn on one CPU core in seconds. The training walks are random, so
they are poor (a mean optimality of .35 of 1 on graph seed 1000), and a policy must find the short paths by itself.
Graph seeds differ in difficulty: state the seed with every figure.

Chen et al., 2021, arXiv:2106.01345, section 5.4; the exact procedure is that of trlX's benchmark of the same name.

    python walks.py FOLDER      write a model with random weights and its tokenizer, for the configuration files
"""

from __future__ import annotations

import sys
from collections import deque
from functools import cache

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

NUM_NODES = 21
MAX_NODES = 10
"""Number of nodes of the longest walk; also the length that a failed walk counts as."""
NUM_WALKS = 1000
EDGE_THRESHOLD = 0.9
END_ID, PAD_ID = 21, 22
END, PAD = "<end>", "<pad>"


def letter(node: int) -> str:
    """Return the letter of a node: 0 is `a`, the goal; 20 is `u`."""
    return chr(ord("a") + node)


def node_of(name: str) -> int | None:
    """Return the node of a letter, None for any other character."""
    node = ord(name) - ord("a")
    return node if 0 <= node < NUM_NODES else None


class RandomWalks:
    """A random graph with 1000 random walks on it, and the optimality of walks compared with the shortest.

    Every number depends on the order of calls to one numpy `RandomState(seed)`.

    Attributes:
        edges: bool[21, 21], `edges[i, j]` is True if the move from i to j is legal; the goal leads only to itself.
        walks: 1000 strings of letters, start and goal included, at most 10 long.
        starts: the distinct first letters of the walks, sorted.
        shortest: for each node, the number of nodes of the shortest path to the goal, both ends included; 10 if it has
            more or does not exist.
    """

    def __init__(self, seed: int = 1000) -> None:
        random = np.random.RandomState(seed)
        self.edges = draw_edges(random)
        self.walks = [draw_walk(random, self.edges) for _ in range(NUM_WALKS)]
        self.starts = sorted({walk[0] for walk in self.walks})
        self.shortest = count_shortest(self.edges)

    def optimality(self, walk: str) -> float:
        """Return (10 - length) / (10 - shortest possible length) of a walk, between 0 and 1.

        The walk ends at its first `a`. A walk with an illegal move or unknown letter, or one that never arrives, counts
        as 10 nodes long and scores 0; so do the empty walk and walks from starts whose shortest path has 10 nodes.
        """
        start = node_of(walk[0]) if walk else None
        if start is None or self.shortest[start] >= MAX_NODES:
            return 0.0
        return (MAX_NODES - self._length(walk)) / (MAX_NODES - self.shortest[start])

    def _length(self, walk: str) -> int:
        before: int | None = None
        for index, name in enumerate(walk[:MAX_NODES]):
            node = node_of(name)
            if node is None or (before is not None and not self.edges[before, node]):
                return MAX_NODES
            if node == 0:
                return index + 1
            before = node
        return MAX_NODES


def draw_edges(random: np.random.RandomState) -> npt.NDArray[np.bool_]:
    """Draw graphs until every node has an outgoing edge, then make the goal absorbing."""
    while True:
        edges = random.rand(NUM_NODES, NUM_NODES) > EDGE_THRESHOLD
        np.fill_diagonal(edges, False)
        if edges.any(1).all():
            break
    edges[0] = False
    edges[0, 0] = True
    return edges


def draw_walk(random: np.random.RandomState, edges: npt.NDArray[np.bool_]) -> str:
    """Return a random walk from a random start other than the goal, up to the goal or the tenth node."""
    node = 0
    while node == 0:
        node = random.randint(NUM_NODES)
    path = [node]
    while node != 0 and len(path) < MAX_NODES:
        node = int(random.choice(np.nonzero(edges[node])[0]))
        path.append(node)
    return "".join(letter(node) for node in path)


def count_shortest(edges: npt.NDArray[np.bool_]) -> list[int]:
    """Return the lengths of shortest paths, by breadth-first search from the goal against the edges' direction."""
    lengths = {0: 1}
    waiting = deque([0])
    while waiting:
        node = waiting.popleft()
        for before in map(int, np.nonzero(edges[:, node])[0]):
            if before not in lengths:
                lengths[before] = lengths[node] + 1
                waiting.append(before)
    return [min(lengths.get(node, MAX_NODES), MAX_NODES) for node in range(NUM_NODES)]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per letter: a..u are 0..20, `<end>` is 21, `<pad>` 22, without BOS."""
    vocab = {letter(node): node for node in range(NUM_NODES)} | {END: END_ID, PAD: PAD_ID}
    backend = Tokenizer(models.WordLevel(vocab))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD)


def model_config(*, tiny: bool = False) -> GPT2Config:
    """Return the configuration of a GPT-2 with 1.66 M parameters (6 layers, 144 wide), or 1 layer, 24 wide if tiny."""
    layers, width, heads = (1, 24, 2) if tiny else (6, 144, 12)
    return GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=PAD_ID + 1,
        n_positions=64,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


@cache
def task(seed: int = 1000) -> RandomWalks:
    """Return the task of a graph seed; results are cached."""
    return RandomWalks(seed)


# The functions that configuration files refer to as `walks:name`, for graph seed 1000.


def samples() -> list[str]:
    """Return the 1000 training walks."""
    return list(task().walks)


def starts() -> list[str]:
    """Return the 20 starts, the prompts of one round of groups."""
    return list(task().starts)


def prompts() -> list[str]:
    """Return the prompts of one round of single responses: each start seven times."""
    return task().starts * 7


def eval_prompts() -> list[str]:
    """Return 1000 prompts: each start fifty times."""
    return task().starts * 50


def reward_fn(samples: list[str]) -> list[float]:
    """Return the optimality of each walk."""
    return [task().optimality(walk) for walk in samples]


if __name__ == "__main__":
    GPT2LMHeadModel(model_config()).save_pretrained(sys.argv[1])
    tokenizer().save_pretrained(sys.argv[1])
