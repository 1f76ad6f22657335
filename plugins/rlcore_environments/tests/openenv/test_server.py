"""Episodes against a real server, with the real client in a Python of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from adapter_runs import train_two_steps
from openenv_options import make

from rlcore.errors import RLCoreError
from rlcore.protocols import Turn
from rlcore_environments.process import RemoteError, isolated_factory
from rlcore_testing import Case, conformance
from rlcore_testing.law import laws_in
from rlcore_testing.laws import environments

pytestmark = pytest.mark.slow
CASES = [
    case
    for case in conformance("rlcore-environments:openenv", options={"openenv": {"url": "http://127.0.0.1:1"}})
    if case.values[0].law in laws_in(environments)
]
ELSEWHERE = ("another_process_plays_the_same_episode", "an_episode_ends")
"""Laws that load the environment in this Python, or hold for games with a limit of their own."""
TEXTS: dict[str, Any] = {"observation_field": "text", "success_return": 1.0}


@pytest.fixture(scope="module")
def remote(openenv_python: str) -> Iterator[Callable[..., Any]]:
    """Yield a function that returns a factory of episodes in a process with the other Python, one for equal options."""
    made: dict[str, Any] = {}

    def build(**options: Any) -> Any:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = isolated_factory(make(**options), openenv_python, one_each=False)
        return made[key]

    yield build
    for factory in made.values():
        factory.shutdown()


@pytest.mark.nightly
def test_an_episode_is_played_to_its_end(url: str, remote: Any) -> None:
    factory = remote(url=url, rules="Be brief.", **TEXTS, max_turns=9)
    assert factory.max_turns == 9
    secrets = set()
    for seed in range(12):
        session, low, high = factory.make(), 1, 8
        assert session.reset({}, seed=seed) == "Be brief.\n\nGuess a number from 1 to 8."
        for index in range(4):
            guess = (low + high) // 2
            step = session.step(Turn(f"I guess {guess}.", index))
            if step["done"]:
                break
            low, high = (guess + 1, high) if step["messages"] == "higher" else (low, guess - 1)
        assert step == {
            "messages": "Right.",
            "reward": 1.0,
            "done": True,
            "info": {"guesses": index + 1, "success": True},
        }
        session.close()
        secrets.add(guess)
    assert len(secrets) > 4


@pytest.mark.nightly
def test_only_the_seed_decides_and_sessions_in_turns_do_not_interfere(url: str, remote: Any) -> None:
    factory = remote(url=url, **TEXTS, reset={"highest": 1000})

    def play(seed: int, row: Any) -> Iterator[Any]:
        session = factory.make()
        yield session.reset(row, seed=seed)
        for index in range(8):
            yield session.step(Turn(str(100 * index), index))
        session.close()

    rows: list[tuple[int, Any]] = [(1, {}), (3, {}), (1, {"reset": {"split": "hard", "index": 3}})]
    alone = [list(play(*row)) for row in rows]
    assert [said[0] for said in alone] == [
        "Guess a number from 1 to 1000.", "Guess a number from 1 to 1000.",
        "Guess a number from 1 to 1000. Task {'split': 'hard', 'index': 3}.",
    ]  # fmt: skip
    assert alone[0] != alone[1]
    together = zip(*[play(*row) for row in rows], strict=True)
    assert [list(each) for each in zip(*together, strict=True)] == alone


@pytest.mark.nightly
def test_own_functions_make_the_action_and_the_text(url: str, remote: Any) -> None:
    session = remote(url=url, act="openenv_texts:act", observe="openenv_texts:observe").make()
    assert session.reset({}, seed=0) == "Guess a number from 1 to 8. (0)"
    assert session.step(Turn("Guess 7: 0", 0))["messages"] == "higher (1)"
    session.close()
    plain = remote(url=url).make()
    assert plain.reset({}, seed=0) == '{"text": "Guess a number from 1 to 8.", "guesses": 0}'
    plain.close()


@pytest.mark.nightly
def test_failures_are_raised_and_closing_ends_the_session(start_server: Any, remote: Any) -> None:
    url, server = start_server(0)
    factory = remote(url=url, **TEXTS)
    for said, message in (
        ("raise", "Server error: no such number"),
        ("give up", "the episode ended, and none of its observations had a reward"),
    ):
        session = factory.make()
        session.reset({}, seed=0)
        with pytest.raises(RemoteError, match=message):
            session.step(Turn(said, 0))
        session.close()
    last = factory.make()
    last.reset({}, seed=0)
    assert last.step(Turn("open", 0))["messages"] == "1"  # the others are closed
    server.kill()
    server.wait()
    start_server(int(url.rpartition(":")[2]))
    with pytest.raises(RemoteError, match="Connection"):
        last.step(Turn("1", 1))
    last.close()
    wrong = remote(url=url, observation_field="hint").make()
    with pytest.raises(RemoteError, match="the observation has no text 'hint'"):
        wrong.reset({}, seed=0)
    wrong.close()
    nowhere = remote(url="http://127.0.0.1:1").make()
    with pytest.raises(RemoteError, match=r"ConnectionError: Failed to connect to ws://127\.0\.0\.1:1/ws"):
        nowhere.reset({}, seed=0)


@pytest.mark.nightly
@pytest.mark.parametrize("law", [each for each in CASES if each.values[0].law.name not in ELSEWHERE])
def test_law_of_environments(law: Case, url: str, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rlcore_environments.answers.factory_of", lambda given: remote(url=url, **TEXTS, max_turns=8)
    )  # in place of this Python, which lacks openenv
    law()


@pytest.mark.nightly
def test_grpo_trains_two_steps(url: str, openenv_python: str, tmp_path: Path) -> None:
    options = {"name": "openenv", "url": url, **TEXTS, "max_turns": 3}
    result = train_two_steps(tmp_path, options, isolate="process", python=openenv_python)
    # The policy writes letters, which are no guesses: three times "higher".
    assert result.metrics["episode/turns"] == result.metrics["eval/episode/max_turns"] * 3 == 3.0
    assert result.metrics["episode/failed"] == 0.0


@pytest.mark.nightly
def test_keys_come_from_the_environment_and_are_in_no_record(
    start_server: Any, openenv_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    url, _ = start_server(0, "open-sesame")
    options = {"name": "openenv", "url": url, **TEXTS, "max_turns": 3, "header_env": {"Authorization": "DOOR_HEADER"}}
    for key, failed in (("open-sesame", 0.0), ("open-barley", None)):
        monkeypatch.setenv("DOOR_HEADER", f"Bearer {key}")
        folder = tmp_path / key.partition("-")[2]
        if failed is None:
            with pytest.raises(RLCoreError, match=r"HTTP 403") as wrong:
                train_two_steps(folder, options, isolate="process", python=openenv_python)
            assert key not in str(wrong.value)
        else:
            result = train_two_steps(folder, options, isolate="process", python=openenv_python)
            assert result.metrics["episode/failed"] == failed
            assert "Authorization: <hidden>" in (result.run_dir / "config.yaml").read_text()  # nor the variable
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert not any(key.encode() in text for text in files)
        assert key not in "".join(capfd.readouterr())
