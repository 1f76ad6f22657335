"""Laws of environments, which are played without a model: the kit answers with short texts.

An environment may have an attribute `example_turns`, texts with which its episodes get somewhere, and `example_row`, a
row for `reset` if it has no rows of its own. Where the right texts depend on the episode, `example_turns_of` is a
function of the row and the seed (a static method, in a class) that returns the texts in their order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rlcore.components import describe_error
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import as_second_rank, at_another_time, call_in_new_process, threads_left, undisturbed

if TYPE_CHECKING:
    from rlcore.types import Row
    from rlcore_environments.answers import Factory

ENVIRONMENTS = "environments"
TURNS = ("1", "yes", "a", "", "no idea", "42", "north", "[x]")
MOST_TURNS = 64
GRACE_S = 120.0
"""Seconds after `close` in which threads may end."""
SEEDS = (0, 1, 2, 2**62)
Record = list[Any]


@law(ENVIRONMENTS)
def its_answers_can_be_read(subject: Subject) -> None:
    """`reset` returns messages, and every `step` one of the forms of a step, with finite rewards.

    Lists and mappings in the row, which other episodes of the same row share, do not change.
    """
    for seed in SEEDS:
        record = _Episode(_factory(subject), subject, seed).play()
        require(len(record) > 1, f"with the seed {seed}, no step was made")


@law(ENVIRONMENTS)
def the_same_row_and_seed_give_the_same_episode(subject: Subject) -> None:
    """Episodes with the same row, seed and turns have the same messages, rewards and end, also in another year."""
    for seed in SEEDS:
        first = _alone(subject, seed)
        _same(first, _alone(subject, seed), "in a second episode", "take random numbers from `seed`")
        with at_another_time():
            _same(first, _alone(subject, seed), "at another time", "do not read the clock")


@law(ENVIRONMENTS)
def another_process_plays_the_same_episode(subject: Subject) -> None:
    """A new process, where strings have other hashes, plays the same episode, on the second of two ranks."""
    arguments = {"name": subject.it.qualified, "options": dict(subject.options), "seed": SEEDS[1]}
    other = call_in_new_process(f"{__name__}:play_alone", arguments, what=f"an episode of {subject.it}")
    _same(
        _alone(subject, SEEDS[1]), other, "in another process", "depend on the arguments alone, not on hash() or RANK"
    )


@law(ENVIRONMENTS)
def episodes_do_not_interfere(subject: Subject) -> None:
    """Episodes that are played turn by turn in alternation are those that are played one after another."""
    alone = [_alone(subject, seed) for seed in SEEDS]
    factory = _factory(subject)
    episodes = [_Episode(factory, subject, seed) for seed in SEEDS]
    while any([episode.advance() for episode in episodes]):  # noqa: C419  every one of them advances
        pass
    for before, episode in zip(alone, episodes, strict=True):
        _same(before, episode.finish(), "beside others", "keep the state of an episode in its object")


def _may_be_called_at_once(subject: Subject) -> bool:
    """Return whether its `concurrency` is not 1."""
    return _factory(subject).concurrency != 1


@law(ENVIRONMENTS, when=_may_be_called_at_once)
def threads_change_nothing(subject: Subject) -> None:
    """Episodes that are played in several threads at once are those of one thread."""
    alone, factory = [_alone(subject, seed) for seed in SEEDS], _factory(subject)
    with ThreadPoolExecutor(len(SEEDS)) as pool:
        found = list(pool.map(lambda seed: _Episode(factory, subject, seed).play(), SEEDS))
    for before, after in zip(alone, found, strict=True):
        _same(before, after, "beside other threads", "share nothing that changes, or set `concurrency = 1`")


@law(ENVIRONMENTS)
def global_random_numbers_are_neither_read_nor_changed(subject: Subject) -> None:
    """An episode does not depend on the global generators of Python, numpy and torch, and leaves them as they are.

    Nor does it change torch's default dtype or the root logger, or write files into the working folder.
    """
    import numpy as np
    import torch

    records = []
    for number in (1, 2):
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        torch.manual_seed(number)
        with undisturbed("an episode"):
            records.append(_alone(subject, SEEDS[2]))
    first, then = records
    _same(first, then, "after other global seeds", "use random.Random(seed)")


@law(ENVIRONMENTS)
def it_can_be_closed_at_any_time(subject: Subject) -> None:
    """`close()`, if there is one, works before `reset`, after it, after a turn, and after the end.

    An episode that is over leaves no thread behind, apart from those that the first ones start for all.
    """
    factory, threads = _factory(subject), set[threading.Thread]()
    for turns in (None, 0, 1, MOST_TURNS, MOST_TURNS):
        threads = set(threading.enumerate())
        episode = _Episode(factory, subject, SEEDS[0], begins=turns is not None)
        for _ in range(turns or 0):
            episode.advance()
        try:
            episode.finish()
        except LawBroken:
            raise
        except Exception as error:
            when = "before reset" if turns is None else f"after {turns} turns"
            raise LawBroken(f"close() {when} raised {describe_error(error)}; it is called whatever happened") from error
    left = threads_left(threads, GRACE_S)
    require(not left, f"an episode leaves the threads {', '.join(left)} running; end them in close()")


def _states_no_limit(subject: Subject) -> bool:
    """Return whether it states no `max_turns`."""
    return not _factory(subject).max_turns


@law(ENVIRONMENTS, when=_states_no_limit)
def an_episode_ends(subject: Subject) -> None:
    """An episode ends by itself within 64 turns."""
    record = _alone(subject, SEEDS[0])
    require(
        any(record[-1][2:]),
        f"an episode goes on after {MOST_TURNS} turns, and the environment states no `max_turns`; set this attribute",
    )


def play_alone(name: str, options: dict[str, Any], seed: int) -> Record:
    """Play an episode of the environment `name`; runs in another process."""
    from rlcore.plugins.registry import all_registries

    component = all_registries().environments.get(name)
    with as_second_rank():
        return _alone(Subject(component.dist, (), component, options), seed)


def _alone(subject: Subject, seed: int) -> Record:
    return _Episode(_factory(subject), subject, seed).play()


def _factory(subject: Subject) -> Factory:
    from rlcore_environments.answers import factory_of

    config = subject.config()
    target: Any = subject.it.target()
    return factory_of(target if config is None else target(config))


class _Episode:
    """One episode, answered with the example turns: all from an offset, or those for the seed."""

    def __init__(self, factory: Factory, subject: Subject, seed: int, *, begins: bool = True) -> None:
        from rlcore.protocols import EnvironmentFactoryTraits
        from rlcore_environments.answers import check_environment

        target: object = subject.it.target()
        row, turns_of = _row(factory, target), EnvironmentFactoryTraits(target).example_turns_of
        stated = EnvironmentFactoryTraits(target).example_turns or TURNS
        turns = stated if turns_of is None else turns_of(dict(row), seed)
        self._texts: Sequence[str] = tuple(turns)
        self._offset = seed if turns_of is None else 0
        self._most = min(factory.max_turns or MOST_TURNS, MOST_TURNS)
        self._tools, self._seed, self._index = bool(factory.tools), seed, 0
        self._environment: Any = check_environment(factory.make(), factory)
        self._row, self._row_before = row, repr(dict(row))
        self.goes_on, self.record = begins, Record()
        if begins:
            self._begin(row)

    def _begin(self, row: Mapping[str, Any]) -> None:
        from rlcore_environments.answers import read_messages

        found = self._call(lambda: self._environment.reset(dict(row), seed=self._seed), "reset")
        self.record.append(self._read(lambda: read_messages(found, "reset")))

    def advance(self) -> bool:
        """Make one turn; return whether the episode goes on."""
        from rlcore.protocols import Turn
        from rlcore_environments.answers import read_step
        from rlcore_environments.tool_calls import parse_calls

        if not self.goes_on:
            return False
        text = self._texts[(self._index + self._offset) % len(self._texts)]
        turn = Turn(text, self._index, tool_calls=parse_calls(text) if self._tools else ())
        found = self._call(lambda: self._environment.step(turn), f"step {self._index}")
        answer = self._read(lambda: read_step(found))
        self.record.append([answer.messages, sorted(answer.rewards.items()), answer.done, answer.truncated])
        self._index += 1
        self.goes_on = not (answer.done or answer.truncated) and self._index < self._most
        return self.goes_on

    def finish(self) -> Record:
        """Close the environment, and return what was said."""
        from rlcore.protocols import EnvironmentTraits
        from rlcore_environments.calls import finished

        finished(EnvironmentTraits(self._environment).close())
        require(
            repr(dict(self._row)) == self._row_before,
            f"an episode changes its row from {self._row_before:.120} to {dict(self._row)!r:.120}; work on a copy",
        )
        found: Record = _plain(self.record)
        return found

    def play(self) -> Record:
        """Play to the end."""
        while self.advance():
            pass
        return self.finish()

    def _call(self, call: Callable[[], object], what: str) -> Any:
        from rlcore_environments.calls import finished

        try:
            return finished(call())
        except Exception as error:
            raise LawBroken(
                f"{what} with the seed {self._seed} raised {describe_error(error)}; answer what it cannot use with a "
                "message"
            ) from error

    def _read(self, read: Callable[[], object]) -> Any:
        from rlcore_environments.answers import BadAnswer

        try:
            return read()
        except BadAnswer as error:
            raise LawBroken(f"with the seed {self._seed}: {error}") from error


def _row(factory: Factory, target: object) -> Row:
    from rlcore.protocols import EnvironmentFactoryTraits

    rows = None if factory.own_rows is None else factory.own_rows("train")
    return EnvironmentFactoryTraits(target).example_row if rows is None else next(iter(rows), {})


def _plain(value: object) -> Any:
    """Return a record as it looks after a journey as JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _same(first: Record, then: Record, when: str, advice: str) -> None:
    for k, (one, other) in enumerate(zip(first, then, strict=False)):
        what = "reset returns" if k == 0 else f"step {k - 1} returns"
        require(one == other, f"{what} {one!r:.120}, but {when} {other!r:.120}; {advice}")
    require(len(first) == len(then), f"an episode has {len(first) - 1} turns, but {when} {len(then) - 1}; {advice}")
