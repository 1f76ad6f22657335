"""Tests of runs that are killed while people judge their completions in headless Chromium."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from people import follow_link
from tabs import Tab, wait_until

from rlcore_rewards.human.judgement import read_judgements
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer

JUDGES = {
    "ann": lambda output: 1 + sum(map(ord, output)) % 5,
    "bob": lambda output: max(1, JUDGES["ann"](output) - sum(map(ord, output)) % 2),  # as ann, or one less
}
"""The score that each person gives a completion."""


def write_config(folder: Path, *, steps: int, judges: int) -> Path:
    """Write the file of a run with four completions a step, whose page has the same port at each start."""
    make_gpt2().save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "model": {"path": str(folder / "model")}, "trainer": {"name": "reinforce", "rollouts": 4},
        "data": {"prompts": PROMPTS[: 4 * steps], "reward_fn": {"fn": "human", "port": port, "judges": judges}},
        "gen": {"max_new_tokens": 4}, "eval": {"at_end": False}, "loggers": [], "checkpoint": {"every": 1},
        "run": {"root": str(folder), "name": "judged", "steps": steps, "resume": "auto", "rollouts": "all"},
    }  # fmt: skip
    file = folder / "run.yaml"
    file.write_text(json.dumps(settings))
    return file


@contextmanager
def training(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield the process of a run, and its link; the process is killed by SIGKILL at the end of the block."""
    log = config.with_name("log.txt")
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "rlcore", "train", str(config)], stdout=out, stderr=out)
    try:
        yield process, follow_link(log.read_text)
    finally:
        process.kill()
        process.wait()


def answer(tab: Tab) -> tuple[str, str, str, int]:
    """Score the question that a tab shows; return who gave which completion of which prompt what."""
    tab.shown()
    prompt, output = (str(tab.page.locator(f"#{part} .text").text_content()) for part in ("turns", "outputs"))
    score = JUDGES[tab.who](output)
    tab.score(score)
    return tab.who, prompt, output, score


def alpha_of_pairs(pairs: list[tuple[int, ...]]) -> float:
    """Return Krippendorff's alpha of intervals: 1 less the squared difference within pairs by that of all values."""
    values = [value for pair in pairs for value in pair]
    within, among = (mean((a - b) ** 2 for a, b in each) for each in (pairs, permutations(values, 2)))
    return 1 - within / among


@pytest.mark.nightly
def test_a_run_that_is_killed_receives_through_its_new_link_what_was_answered_meanwhile(
    browser: Any, tmp_path: Path
) -> None:
    config = write_config(tmp_path, steps=1, judges=1)
    with training(config) as (_, link):
        tab = Tab(browser, link, "ann")
        tab.shown()
        tab.score(2)
        wait_until(lambda: "1 judged" in tab.page.locator("#counts").inner_text())
        answered = tab.shown()
    tab.score(5)
    wait_until(lambda: "1 answer is kept in this browser" in tab.page.get_by_role("alert").inner_text())
    with training(config) as (process, link):
        tab.page.goto(link)
        for _ in range(2):
            tab.shown()
            tab.score(3)
        assert process.wait(300) == 0
    found = read_judgements(tmp_path / "judged")
    assert sorted(each.value for each in found) == [2, 3, 3, 5]
    assert [each.item.outputs[0] for each in found if each.value == 5] == [answered]
    assert len({each.item.key for each in found}) == 4


@pytest.mark.nightly
def test_two_judges_of_a_run_that_is_killed_lose_nothing_and_the_report_has_their_agreement(
    browser: Any, tmp_path: Path
) -> None:
    config, run = write_config(tmp_path, steps=2, judges=2), tmp_path / "judged"
    with training(config) as (_, link):
        ann, bob = (Tab(browser, link, who) for who in JUDGES)
        given = [answer(tab) for tab in [ann, bob] * 5]  # all completions of the first step, and one of the second
        wait_until(lambda: len(read_judgements(run)) == 10)
        for tab in (ann, bob):
            tab.shown()
    given += [answer(tab) for tab in (ann, bob)]  # while the run is down
    for tab in (ann, bob):
        wait_until(lambda tab=tab: "1 answer is kept in this browser" in tab.page.get_by_role("alert").inner_text())
    with training(config) as (process, link):
        with ann.page.expect_event("load"):  # the link is pasted in the same tab, and behind '#' alone it is another
            ann.page.goto(link)
        bob.page.close()
        bob.open(link)
        for tab in (ann, bob):
            wait_until(lambda tab=tab: tab.page.locator("#who").inner_text() == tab.who)
            assert tab.page.locator("#login").is_hidden()
        given += [answer(tab) for tab in [ann, bob] * 2]
        assert process.wait(300) == 0
    assert all(error.startswith("Failed to load resource") for tab in (ann, bob) for error in tab.errors)

    found = read_judgements(run)
    assert sorted((each.who, each.item.prompt, *each.item.outputs, each.value) for each in found) == sorted(given)
    assert len((run / "judgements.jsonl").read_text().splitlines()) == 16
    scores: dict[tuple[str, str], dict[str, int]] = {}
    for who, prompt, output, score in given:
        scores.setdefault((prompt, output), {})[who] = score
    assert [set(each) for each in scores.values()] == [{"ann", "bob"}] * 8
    rollouts = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    assert len(rollouts) == 8
    for row in rollouts:
        assert row["reward"] == mean(scores[row["prompt"], row["output"]].values())

    alpha = alpha_of_pairs([tuple(each.values()) for each in scores.values()])
    assert 0 < alpha < 1
    page = browser.new_page()
    page.goto((run / "report.html").as_uri())
    text = page.locator("body").inner_text()
    assert "16 judgements of 8 questions: " in text
    assert "2 people judged 8 completions more than once (score); " in text
    assert f"1 if they agree and 0 as by chance: {alpha:.2f}" in text
