"""Tests that the random-walks task is the one used for published results."""

from __future__ import annotations

import hashlib
from statistics import mean

import numpy as np
import pytest
from transformers import GPT2LMHeadModel
from walks import (
    END_ID,
    MAX_NODES,
    NUM_NODES,
    PAD_ID,
    RandomWalks,
    count_shortest,
    draw_edges,
    eval_prompts,
    letter,
    model_config,
    prompts,
    reward_fn,
    samples,
    task,
    tokenizer,
)


@pytest.fixture(scope="module")
def graph() -> RandomWalks:
    return task(1000)


@pytest.mark.parametrize(
    ("seed", "digest", "num_draws", "optimality"),
    [
        (1000, "69d12e9cd7e4c474aa6f5d94862438390508d55e299c207c9d0d2cb453d00fd3", 3, 0.3515),
        (1002, "1a78d3a2a820adc1a636c6f67e37035d990439e9a9f1e80726fa21794f9433d7", 7, 0.7902),
    ],
)
def test_a_seed_gives_the_recorded_walks(seed: int, digest: str, num_draws: int, optimality: float) -> None:
    graph = task(seed)
    assert hashlib.sha256("\n".join(graph.walks).encode()).hexdigest() == digest
    assert mean(map(graph.optimality, graph.walks)) == pytest.approx(optimality, abs=5e-5)
    draws = np.random.RandomState(seed).rand(num_draws, NUM_NODES, NUM_NODES) > 0.9
    draws &= ~np.eye(NUM_NODES, dtype=bool)
    assert [bool(draw.any(1).all()) for draw in draws] == [False] * (num_draws - 1) + [True]
    assert (graph.edges[1:] == draws[-1, 1:]).all()


def test_seed_1000_gives_the_recorded_graph(graph: RandomWalks) -> None:
    assert graph.edges.sum() == 51 + 1
    assert [letter(node) for node in np.nonzero(graph.edges[:, 0])[0]] == ["a", "d", "n"]
    assert graph.edges[0].tolist() == [True] + [False] * 20
    assert graph.walks[:5] == ["sda", "fda", "ebjnbdtkna", "jnbjna", "lbusdtkbui"]
    assert mean(map(len, graph.walks)) == pytest.approx(7.735)
    assert graph.starts == list("bcdefghijklmnopqrstu")
    known = "b3 c4 d2 e4 f3 g5 h5 i3 j3 k3 l4 m4 n2 o5 p4 q4 r4 s3 t4 u4"
    assert " ".join(f"{start}{graph.shortest[ord(start) - 97]}" for start in graph.starts) == known


def test_the_optimality_of_a_uniform_policy_is_the_computed_one(graph: RandomWalks) -> None:
    moves = graph.edges / graph.edges.sum(1, keepdims=True)
    values = np.zeros((MAX_NODES + 1, NUM_NODES))  # values[k, i]: expected 10 - length, in node i as the k-th node
    for k in range(MAX_NODES, 0, -1):
        values[k] = moves @ values[k + 1] if k < MAX_NODES else 0.0
        values[k, 0] = MAX_NODES - k
    best = MAX_NODES - np.array(graph.shortest)
    assert (values[1, 1:] / best[1:]).mean() == pytest.approx(0.3462, abs=5e-5)


def test_the_best_walks_of_the_data_are_not_optimal(graph: RandomWalks) -> None:
    best = {start: max(graph.optimality(walk) for walk in graph.walks if walk[0] == start) for start in graph.starts}
    assert mean(best.values()) == pytest.approx(0.9917, abs=5e-5)
    assert [start for start, score in best.items() if score < 1] == ["m"]


@pytest.mark.parametrize(
    ("walk", "optimality"),
    [
        ("sda", 1.0),
        ("sdaxx", 1.0),  # tokens after the goal are ignored
        ("jnbjna", 4 / 7),
        ("a", 1.0),
        ("", 0.0),
        ("s", 0.0),
        ("sd", 0.0),
        ("sa", 0.0),  # no edge leads from s to a
        ("s#a", 0.0),
        ("#da", 0.0),
        ("Sda", 0.0),
        ("wda", 0.0),  # w is the letter of the pad token
        ("jnbjnbjnbjna", 0.0),  # arrives, but after the tenth node
    ],
)
def test_scores_of_walks_equal_values_worked_by_hand(graph: RandomWalks, walk: str, optimality: float) -> None:
    assert graph.optimality(walk) == pytest.approx(optimality)


def test_a_start_that_cannot_do_better_than_fail_scores_zero() -> None:
    shortest = {seed: count_shortest(draw_edges(np.random.RandomState(seed))) for seed in range(1000)}
    hopeless = [seed for seed, lengths in shortest.items() if MAX_NODES in lengths[1:]]
    assert len(hopeless) == 198
    assert len([seed for seed in hopeless if 1 <= seed <= 120]) == 26
    graph = RandomWalks(hopeless[0])
    lost = letter(graph.shortest.index(MAX_NODES))
    assert all(graph.optimality(walk) == 0 for walk in graph.walks if walk[0] == lost)
    assert all(0 <= graph.optimality(walk) <= 1 for walk in graph.walks)


def test_the_tokenizer_is_one_token_a_letter() -> None:
    letters = "".join(map(letter, range(NUM_NODES)))
    made = tokenizer()
    assert made(letters)["input_ids"] == list(range(NUM_NODES))
    assert made.decode([18, 3, 0, END_ID, PAD_ID], skip_special_tokens=True) == "sda"
    assert (made.eos_token_id, made.pad_token_id, made.bos_token_id, len(made)) == (END_ID, PAD_ID, None, 23)


def test_the_model_of_the_example_has_the_stated_size() -> None:
    assert GPT2LMHeadModel(model_config()).num_parameters() == pytest.approx(1.66e6, rel=0.15)


def test_the_files_and_functions_of_configuration_files_exist() -> None:
    assert len(samples()) == 1000
    assert (len(prompts()), len(eval_prompts()), len(set(prompts()))) == (140, 1000, 20)
    assert reward_fn(["sda", "", "jnbjna"]) == pytest.approx([1.0, 0.0, 4 / 7])
