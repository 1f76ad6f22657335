"""Tests of the page's HTTP interface, without a browser."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from people import TOKEN, Person, Served, in_thread, score_item

from rlcore.errors import ConfigError
from rlcore_rewards.human.judgement import read_judgements
from rlcore_rewards.human.web_page import PageServer


def test_requests_without_the_token_receive_no_question_and_store_no_judgement(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.board.ask([score_item("a")])
        item = Person(served.link, "ann").next()
        for token in ("", "#", "#another", f"#{TOKEN}x"):
            stranger = Person(served.server.address + token, "eve")
            actions = [
                ("next", {}),
                ("judge", {"id": "x", "key": item["key"], "value": 1}),
                ("take_back", {"id": "x"}),
                ("leave", {}),
                ("renew", {}),
            ]
            assert [stranger.refused(action, **given) for action, given in actions] == [403] * 5
        page = urllib.request.urlopen(served.server.address, timeout=300)
        assert TOKEN not in page.read().decode()
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert read_judgements(tmp_path) == []


def test_two_people_at_once_judge_everything_once(tmp_path: Path) -> None:
    items = [score_item(str(i)) for i in range(40)]
    with Served(tmp_path) as served:
        served.board.ask(items)

        def is_over() -> bool:
            return all(served.board.scores(item) for item in items)

        work = [
            in_thread(
                lambda who=who: Person(served.link, who).judge_until(
                    is_over, lambda item: 1 + int(item["outputs"][0]["text"]) % 5
                )
            )
            for who in ("ann", "bob")
        ]
        for thread, _ in work:
            thread.join(300)
    kept = [results[0] for _, results in work]
    assert sorted(kept[0] + kept[1]) == sorted(item.key for item in items)
    found = {each.item.outputs[0]: (each.value, each.who) for each in read_judgements(tmp_path)}
    assert {output: value for output, (value, _) in found.items()} == {str(i): 1 + i % 5 for i in range(40)}
    assert [who for _, who in found.values()].count("ann") == len(kept[0])


@pytest.mark.parametrize("given", [
    {"id": "x", "key": "k", "value": 1, "who": ""}, {"id": "x", "key": "k", "who": "a\x1b"}, {"key": "k"},
    {"id": "x" * 81, "key": "k"},
])  # fmt: skip
def test_a_request_with_wrong_fields_is_refused(given: dict[str, object], tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        assert Person(served.link, "ann").refused("judge", **given) == 400
        assert Person(served.link, "ann").refused("judge", id="x", key="k", value="v" * 100_001) == 413


def test_a_request_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        request = urllib.request.Request(
            f"{served.server.address}api/judge", b"[" * 50_000 + b"]" * 50_000, {"Authorization": f"Bearer {TOKEN}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=300)
    assert refused.value.code == 400
    assert b"nested too deeply" in refused.value.read()


def test_a_score_outside_the_scale_and_one_between_two_are_refused(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.board.ask([score_item("a")])
        person = Person(served.link, "ann")
        item = person.next()
        for value in (6, 0, 1.5, "3", True):
            assert person.refused("judge", id="x", key=item["key"], value=value) == 400
        assert person.judge(item, 3)
        assert person.post("take_back", id="y")["item"]["key"] == item["key"]


def test_an_occupied_port_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"human\.port = {port}: the page cannot be served there"):
            PageServer(None, host="127.0.0.1", port=port)
