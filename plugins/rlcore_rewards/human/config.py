"""Options of the reward `human`."""

from __future__ import annotations

from typing import Literal

from rlcore.config import config, option


@config
class HumanConfig:
    """People who judge completions on a web page."""

    mode: Literal["score", "rank"] = option(
        "score", "`score`: a number for each completion; `rank`: an order of the different completions of a prompt, of "
        "which the best gets 1 and the worst 0",
    )  # fmt: skip
    low: float = option(1.0, "lowest score")
    high: float = option(5.0, "highest score")
    interval: float = option(1.0, "distance of two scores; 0: a continuous slider", ge=0)
    judges: int = option(1, "people who judge each completion, or each ranking; their scores are averaged", ge=1)
    second_opinion: float = option(
        0.0, "share of completions, or rankings, that one more person judges, to measure how far people agree",
        ge=0, le=1,
    )  # fmt: skip
    question: str = option("", "instructions that the page shows; default: what is asked, and which score is the best")
    timeout_s: float | None = option(
        None, "end the run with an error if completions wait longer than this for people", gt=0, unit="seconds"
    )
    lease_s: float = option(
        120.0, "a completion shown to a person who is no longer reachable is given to another one after this time; "
        "browsers slow down hidden tabs to one sign of life a minute", gt=0, unit="seconds",
    )  # fmt: skip
    host: str = option("127.0.0.1", "address that the page is served at; 0.0.0.0: reachable from other machines")
    port: int = option(0, "port of the page; 0: a free one", ge=0, le=65535)
    folder: str | None = option(None, "folder of judgements.jsonl, shared by several runs; default: the run's folder")
