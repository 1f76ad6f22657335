"""The calls of an episode run in one thread, or in the main one; errors of tools are counted and named."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from env_games import TEMPLATE, Scripted, make_player, play, read_prompts
from isolated_games import Alarmed, Connected
from warm_python import WarmPython

from rlcore.errors import ConfigError, DataError
from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_environments.calls import Calls
from rlcore_environments.episode import Episode
from rlcore_environments.options import ToolOptions
from rlcore_environments.play import ToolErrors
from rlcore_environments.tools import Tools
from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

SCRIPT = ["ab", "c", "d"]


class Threads:
    """It notes the thread of each of its calls, and ends with the third turn."""

    seen: list[set[int]] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.mine = {threading.get_ident()}
        self.seen.append(self.mine)

    def reset(self, row: Any, *, seed: int) -> str:
        self.mine.add(threading.get_ident())
        return "go"

    def step(self, turn: Turn) -> Step:
        self.mine.add(threading.get_ident())
        return Step("on", done=turn.index == 2)

    def close(self) -> None:
        self.mine.add(threading.get_ident())


@pytest.mark.parametrize("options", [{}, {"concurrency": 1}, {"cohorts": 2}, {"lazy": True}, {"retries": 1}])
def test_all_calls_of_an_episode_run_in_one_thread_of_its_own(options: dict[str, Any]) -> None:
    Threads.seen.clear()
    before = threading.active_count()
    batch = play(Threads, *[SCRIPT] * 5, **options)
    assert batch.failures == [""] * 5
    assert [len(each) for each in Threads.seen] == [1] * len(Threads.seen)
    assert threading.main_thread().ident not in set().union(*Threads.seen)
    episodes = Threads.seen[-5:]  # the calls before them are those of the prompts, if these are not lazy
    assert len(set().union(*episodes)) == 5
    deadline = time.monotonic() + 120
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_all_calls_run_in_the_main_thread_where_it_is_asked_for() -> None:
    Threads.seen.clear()
    assert play(Threads, *[SCRIPT] * 3, thread="main").failures == [""] * 3
    assert Threads.seen == [{threading.main_thread().ident}] * 6


@pytest.mark.parametrize("isolate", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_connections_and_state_of_a_thread_are_found_by_every_call(isolate: str) -> None:
    batch = play(Connected, SCRIPT, SCRIPT, isolate=isolate)
    assert batch.failures == ["", ""]
    assert batch.outputs[0].endswith("3 rows\n")
    assert batch["rewards"].sum(1).tolist() == [3.0, 3.0]


def test_signals_work_in_the_main_thread_and_the_error_in_others_names_the_option() -> None:
    script = ["a", "bc"], ["d", "e"]
    found = play(Alarmed, *script, thread="main")
    assert found.failures == ["", ""]
    with pytest.raises(DataError, match=r"signal only works in main thread.*set data\.episodes\.thread=main"):
        play(Alarmed, *script)
    (failure,) = play(Alarmed, ["a"], lazy=True, max_failed=1.0).failures
    assert "signal only works in main thread" in failure
    assert failure.endswith("or set data.episodes.thread=main")


@pytest.mark.slow  # it starts processes
@pytest.mark.parametrize("isolate", ["process", "episode"])
def test_a_process_of_environments_has_a_main_thread_too(isolate: str) -> None:
    script = ["a", "bc"], ["d", "e"], ["f", "g"]
    found = play("isolated_games:Alarmed", *script, isolate=isolate, thread="main")
    assert found.failures == [""] * 3
    with pytest.raises(DataError, match=r"signal only works in main thread.*set data\.episodes\.thread=main"):
        play("isolated_games:Alarmed", *script, isolate=isolate)


def test_the_main_thread_is_refused_where_episodes_are_sampled_in_another_one() -> None:
    calls, found = Calls(4, 5.0, in_main=True), list[Any]()
    assert calls.start(lambda: 7).result() == 7

    def work() -> None:
        try:
            calls.start(lambda: 7)
        except ConfigError as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].startswith("data.episodes.thread=main: episodes of this run are sampled in another thread")


def test_ctrl_c_in_the_main_thread_is_raised_at_once() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Calls(4, 5.0, in_main=True).start(stop)


STATE = threading.local()


def count() -> int:
    """Count the calls in this thread."""
    STATE.count = getattr(STATE, "count", 0) + 1
    return STATE.count  # type: ignore[no-any-return]


def query() -> int:
    """Read from a connection of the thread."""
    if not hasattr(STATE, "connection"):
        STATE.connection = sqlite3.connect(":memory:")
    return STATE.connection.execute("select 6 * 7").fetchone()[0]  # type: ignore[no-any-return]


def wait() -> str:
    """Wait longer than a call may take."""
    time.sleep(1.5)
    return "done"


def calls(*names: str) -> Turn:
    return Turn("", 0, tool_calls=[{"name": name, "arguments": {}} for name in names])


def said(step: Step) -> list[str]:
    return [message["content"] for message in step.messages]  # type: ignore[index,union-attr]


def test_the_tools_of_an_episode_run_in_one_thread() -> None:
    tools = Tools(ToolOptions(functions=[count, query]))
    one, other = tools.make(), tools.make()
    assert said(one.step(calls("count", "query", "count"))) == ["1", "42", "2"]
    assert said(other.step(calls("count"))) == ["1"]
    assert said(one.step(calls("query", "count"))) == ["42", "3"]
    one.close()
    other.close()


def test_after_a_late_call_tools_run_in_one_other_thread() -> None:
    episode = Tools(ToolOptions(functions=[count, wait], timeout_s=0.3)).make()
    step = episode.step(calls("count", "wait", "count", "count"))
    assert said(step) == ["1", "error: wait did not return within 0.3 seconds", "1", "2"]
    assert step.info == {"tool_errors": 1}


def fail() -> str:
    """Fail."""
    raise ValueError("no such door")


def test_a_column_of_tools_is_named_where_the_run_has_tools_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    policy = build_causal_lm(make_llama(), CausalLMConfig(), tokenizer=tokenizer)
    player = make_player(Tools(ToolOptions(functions=[count])))
    rows: list[dict[str, Any]] = [{"prompt": "a", "tools": []}, {"prompt": "b", "tools": [{"name": "other"}]}]
    prompts = read_prompts(player, policy, rows * 2)
    assert all("tools" not in prompt.columns for prompt in prompts)
    said = [line for line in capsys.readouterr().err.splitlines() if "rows have a column 'tools'" in line]
    assert len(said) == 1
    assert "count=2" in said[0]
    assert "first=1" in said[0]
    read_prompts(player, policy, rows[:1])
    assert "rows have a column 'tools'" not in capsys.readouterr().err


@pytest.fixture
def worded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what plays episodes of a model with a long context; each word of a turn calls the tool of this name."""

    def read(tokenizer: Any, tokens: Any, before: Any, *, tools: Any, stops: Any) -> tuple[dict[str, Any], ...]:
        names = {tool["function"]["name"] for tool in tools}
        text = tokenizer.decode(list(tokens), skip_special_tokens=True)
        return tuple({"name": word, "arguments": {}} for word in text.split() if word in {*names, "none"})

    monkeypatch.setattr("rlcore_environments.tool_calls.read_calls", read)

    def play_them(functions: Sequence[Callable[..., Any]], *script: Sequence[str], **episodes: Any) -> Any:
        model, tokenizer = make_llama(), make_tokenizer()
        model.config.max_position_embeddings, tokenizer.chat_template = 4096, TEMPLATE
        policy = build_causal_lm(model, CausalLMConfig(), tokenizer=tokenizer)
        player = make_player(Tools(ToolOptions(functions=list(functions))), data={"episodes": episodes})
        prompts = read_prompts(player, policy, [chr(97 + i) for i in range(len(script))])
        sampler: Any = player.sampler(Scripted(*script))  # type: ignore[arg-type]  # it needs no generator
        return sampler(policy, prompts, SamplingConfig(max_new_tokens=99), row_seeds=range(len(script)))

    return play_them


def test_errors_of_tools_are_counted_for_each_episode(worded: Callable[..., Any]) -> None:
    batch = worded([count, fail], ["count count", "x"], ["fail none count", "fail", "x"], ["x"])
    assert batch.numbers["episode/tool_calls"] == [2.0, 4.0, 0.0]
    assert batch.numbers["episode/tool_errors"] == [0.0, 3.0, 0.0]
    assert [about["tool_errors"] for about in batch.arguments["info"]] == [0, 3, 0]
    assert "environment/tool_errors" not in batch.numbers


def test_a_tool_nearly_all_of_whose_calls_raise_alike_is_named_once(
    worded: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    worded([count, fail], *[["fail count fail", "fail", "x"]] * 3)  # 9 calls of `fail`, which all fail
    found = [line for line in capsys.readouterr().err.splitlines() if "nearly all calls of a tool" in line]
    assert len(found) == 1
    assert "tool=fail" in found[0]
    assert "error='fail raised ValueError: no such door' failed=9 of=9" in found[0]
    assert "remedy" not in found[0]


def results(name: str, *texts: str) -> Any:
    """Return an episode with results of a tool."""
    episode = Episode(0, Prompt("", ()), 0)
    episode.messages = [{"role": "tool", "name": name, "content": text} for text in texts]
    return episode


RAISED = "error: query raised ProgrammingError: SQLite objects created in a thread can only be used in that same thread"
OTHER, GOOD, LATE = "error: query raised KeyError: 'a'", "42", "error: query did not return within 10 seconds"


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([RAISED] * 8, "failed=8 of=8"),
        ([RAISED] * 7, "failed=14 of=14"),  # of both rounds
        ([RAISED] * 3, ""),  # too few to tell
        ([RAISED] * 10 + [GOOD], "failed=10 of=11"),
        ([GOOD] + [RAISED] * 10, "failed=10 of=11"),
        ([GOOD, *[RAISED] * 9], ""),  # nine of ten
        ([RAISED, OTHER] * 20, ""),  # not alike
        ([GOOD] * 20, ""),
        ([LATE] * 8, "failed=8 of=8"),
        (["error: query: missing a required argument: 'a'"] * 20, ""),  # what the policy does wrong
    ],
)
def test_what_counts_as_nearly_all_calls(texts: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    errors = ToolErrors("Shop")
    errors.note([results("query", *texts)])
    errors.note([results("query", *texts)])
    said = capsys.readouterr().err
    assert said.count("nearly all calls of a tool fail alike") == int(bool(named))
    assert named in said
    assert ("set data.episodes.thread=main" in said) == (bool(named) and texts[-2] == RAISED)


def test_calls_of_several_rounds_are_counted_together_and_later_rounds_on_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors = ToolErrors("Shop")
    errors.note([results("query", *[GOOD] * 50)])
    assert not capsys.readouterr().err
    for _ in range(4):  # the tool breaks after its first round; two calls of each later one
        errors.note([results("query", RAISED, RAISED)])
    assert "failed=8 of=8" in capsys.readouterr().err


class Closing:
    """It ends with the second turn, whatever the policy wrote, as done, truncated or both."""

    answer: Step

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Turn) -> Step:
        return Step("on") if turn.index == 0 else self.answer


@pytest.mark.parametrize(
    ("answer", "whole", "cut"),
    [
        (Step(done=True, reward=2.0), "done", "truncated"),
        (Step(truncated=True), "truncated", "truncated"),
        (Step(done=True, truncated=True), "done", "truncated"),
        (Step("more"), "max_turns", "max_turns"),
    ],
)
def test_an_episode_whose_last_turn_is_cut_is_truncated_whatever_its_environment_returns(
    answer: Step, whole: str, cut: str
) -> None:
    """A turn may have 4 tokens: "abc" and EOS fit, "abcde" does not."""
    made = type("Closing", (Closing,), {"answer": answer})
    gen = SamplingConfig(max_new_tokens=4)
    batch = play(made, ["a", "abc"], ["a", "abcde"], ["abcde", "abc"], gen=gen, max_turns=2)
    assert [about["end"] for about in batch.arguments["info"]] == [whole, cut, whole]
    assert batch.ended.tolist() == [whole == "done", False, whole == "done"]
    assert batch.numbers["episode/truncated"] == [float(each == "truncated") for each in (whole, cut, whole)]
    assert batch["rewards"].sum(1).tolist() == [float(answer.reward)] * 3


GAME = """
import notes_of_the_game
class Game:
    def reset(self, row, *, seed):
        return notes_of_the_game.OPENING
    def step(self, turn):
        import later_of_the_game
        return {"messages": "on", "reward": later_of_the_game.REWARD, "done": True}
"""


@pytest.fixture
def game(tmp_path: Path) -> Path:
    """Write an environment that imports modules of its folder, one of them in an episode."""
    (tmp_path / "game_of_the_folder.py").write_text(GAME)
    (tmp_path / "notes_of_the_game.py").write_text("OPENING = 'go'")
    (tmp_path / "later_of_the_game.py").write_text("REWARD = 3.0")
    return tmp_path


@pytest.mark.slow  # it starts processes
@pytest.mark.parametrize("isolate", ["process", "episode"])
def test_a_class_of_the_working_folder_runs_in_a_process(
    isolate: str, game: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(game)
    monkeypatch.setattr("sys.path", [folder for folder in sys.path if folder not in ("", ".", str(game))])
    batch = play("game_of_the_folder:Game", ["a"], ["b"], isolate=isolate)
    assert batch.failures == ["", ""]
    assert batch["rewards"].sum(1).tolist() == [3.0, 3.0]


@pytest.mark.slow  # it starts processes
def test_a_class_of_the_working_folder_runs_in_a_process_from_the_command_line(
    game: Path, warm_python: WarmPython
) -> None:
    """The folder of a console script is that of the interpreter, not the working folder."""
    configuration = {
        "model": {"path": str(game / "model")}, "trainer": {"name": "reinforce", "rollouts": 2},
        "data": {
            "environment": "game_of_the_folder:Game", "prompts": ["a", "b"], "episodes": {"isolate": "process"},
        },
        "gen": {"max_new_tokens": 2}, "run": {"name": "played", "steps": 1, "report": False}, "eval": {"at_end": False},
    }  # fmt: skip
    make_llama().save_pretrained(game / "model")
    make_tokenizer().save_pretrained(game / "model")
    (game / "run.yaml").write_text(json.dumps(configuration))
    script = str(Path(sys.executable).with_name("rlcore"))
    done = warm_python.run([script, "train", "run.yaml"], cwd=game, environment=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = [json.loads(line) for line in (game / "runs/played/metrics.jsonl").read_text().splitlines()]
    assert row["reward/mean"] == 3.0
