"""Laws of environments, which are played without a model: the kit answers with short texts.

An environment may have an attribute `example_turns`, texts with which its episodes get somewhere, and `example_row`, a
row for `reset` if it has no rows of its own.

Also in this file: laws of what plays episodes: the hook `play_environment`, called with a small environment and
scripted turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from rlcore.components import describe_error
from rlcore_testing.law import DIST, LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.probes import hooks_of, resolve

if TYPE_CHECKING:
    from rlcore.types import Prompt, Trajectories
    from rlcore_environments.answers import Factory

ENVIRONMENTS = "environments"
TURNS = ("1", "yes", "a", "", "no idea", "42", "north", "[x]")
MOST_TURNS = 64
SEEDS = (0, 1, 2, 2**62)
Record = list[Any]


@law(ENVIRONMENTS)
def its_answers_can_be_read(subject: Subject) -> None:
    """`reset` returns messages, and every `step` one of the forms of a step, with finite rewards."""
    for seed in SEEDS:
        record = _Episode(_factory(subject), subject, seed).play()
        require(len(record) > 1, f"with the seed {seed}, no step was made")


@law(ENVIRONMENTS)
def the_same_row_and_seed_give_the_same_episode(subject: Subject) -> None:
    """Two episodes with the same row, seed and turns have the same messages, rewards and end."""
    for seed in SEEDS:
        _same(_alone(subject, seed), _alone(subject, seed), "in a second episode", "take random numbers from `seed`")


@law(ENVIRONMENTS)
def another_process_plays_the_same_episode(subject: Subject) -> None:
    """A new process, where strings have other hashes, plays the same episode."""
    arguments = {"name": subject.it.qualified, "options": dict(subject.options), "seed": SEEDS[1]}
    other = call_in_new_process(f"{__name__}:play_alone", arguments, what=f"an episode of {subject.it}")
    _same(_alone(subject, SEEDS[1]), other, "in another process", "depend on the arguments alone, not on hash()")


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
    """An episode does not depend on the global generators of Python, numpy and torch, and leaves them as they are."""
    import numpy as np
    import torch

    def states() -> tuple[Any, ...]:
        numbers: Any = np.random.get_state()  # noqa: NPY002  the law is about the global one
        return random.getstate(), (numbers[1].tolist(), numbers[2]), torch.get_rng_state().tolist()

    records = []
    for number in (1, 2):
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        torch.manual_seed(number)
        before = states()
        records.append(_alone(subject, SEEDS[2]))
        after = states()
        names = [name for name, a, b in zip(("random", "numpy", "torch"), before, after, strict=True) if a != b]
        require(
            not names,
            f"an episode changes the global generator of {', '.join(names)}; use one of its own, such as "
            "random.Random(seed)",
        )
    first, then = records
    _same(first, then, "after other global seeds", "use random.Random(seed)")


@law(ENVIRONMENTS)
def it_can_be_closed_at_any_time(subject: Subject) -> None:
    """`close()`, if there is one, works before `reset`, after it, after a turn, and after the end."""
    factory = _factory(subject)
    for turns in (None, 0, 1, MOST_TURNS):
        episode = _Episode(factory, subject, SEEDS[0], begins=turns is not None)
        for _ in range(turns or 0):
            episode.advance()
        try:
            episode.finish()
        except Exception as error:
            when = "before reset" if turns is None else f"after {turns} turns"
            raise LawBroken(f"close() {when} raised {describe_error(error)}; it is called whatever happened") from error


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
    return _alone(Subject(component.dist, (), component, options), seed)


def _alone(subject: Subject, seed: int) -> Record:
    return _Episode(_factory(subject), subject, seed).play()


def _factory(subject: Subject) -> Factory:
    from rlcore_environments.answers import factory_of

    config = subject.config()
    target: Any = subject.it.target()
    return factory_of(target if config is None else target(config))


class _Episode:
    """One episode, answered with the example turns in their order from an offset that depends on the seed."""

    def __init__(self, factory: Factory, subject: Subject, seed: int, *, begins: bool = True) -> None:
        from rlcore_environments.answers import check_environment

        target: Any = subject.it.target()
        self._texts: Sequence[str] = tuple(getattr(target, "example_turns", TURNS))
        self._most = min(factory.max_turns or MOST_TURNS, MOST_TURNS)
        self._tools, self._seed, self._index = bool(factory.tools), seed, 0
        self._environment: Any = check_environment(factory.make(), factory)
        self.goes_on, self.record = begins, Record()
        if begins:
            self._begin(_row(factory, target))

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
        text = self._texts[(self._index + self._seed) % len(self._texts)]
        turn = Turn(text, self._index, tool_calls=parse_calls(text) if self._tools else ())
        found = self._call(lambda: self._environment.step(turn), f"step {self._index}")
        answer = self._read(lambda: read_step(found))
        self.record.append([answer.messages, sorted(answer.rewards.items()), answer.done, answer.truncated])
        self._index += 1
        self.goes_on = not (answer.done or answer.truncated) and self._index < self._most
        return self.goes_on

    def finish(self) -> Record:
        """Close the environment, and return what was said."""
        from rlcore_environments.calls import finished

        close = getattr(self._environment, "close", None)
        if callable(close):
            finished(close())
        found: Record = _plain(self.record)
        return found

    def play(self) -> Record:
        """Play to the end."""
        while self.advance():
            pass
        return self.finish()

    def _call(self, call: Callable[[], Any], what: str) -> Any:
        from rlcore_environments.calls import finished

        try:
            return finished(call())
        except Exception as error:
            raise LawBroken(
                f"{what} with the seed {self._seed} raised {describe_error(error)}; answer what it cannot use with a "
                "message"
            ) from error

    def _read(self, read: Callable[[], Any]) -> Any:
        from rlcore_environments.answers import BadAnswer

        try:
            return read()
        except BadAnswer as error:
            raise LawBroken(f"with the seed {self._seed}: {error}") from error


def _row(factory: Factory, target: Any) -> Mapping[str, Any]:
    rows = None if factory.own_rows is None else factory.own_rows("train")
    found: Mapping[str, Any] = next(iter(rows), {}) if rows is not None else getattr(target, "example_row", {})
    return found


def _plain(value: Any) -> Any:
    """Return a record as it looks after a journey as JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _same(first: Record, then: Record, when: str, advice: str) -> None:
    for k, (one, other) in enumerate(zip(first, then, strict=False)):
        what = "reset returns" if k == 0 else f"step {k - 1} returns"
        require(one == other, f"{what} {one!r:.120}, but {when} {other!r:.120}; {advice}")
    require(len(first) == len(then), f"an episode has {len(first) - 1} turns, but {when} {len(then) - 1}; {advice}")


HOOK = "play_environment"
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}a {{ m.content }}</s>{% else %}u {{ m.content }}.{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a {% endif %}"
)
"""A chat template whose words are all in the vocabulary of `rlcore_testing.small.make_tokenizer`."""
PLAYED_TURNS = ("xy", "z", "xyz")
REWARDS = (1.0, -2.0, 4.0)
ROWS = ("b", "cd", "e")


def _plays(subject: Subject) -> bool:
    """Return whether it plays episodes."""
    return any(HOOK in hooks_of(plugin.module) for plugin in subject.plugins)


@law(DIST, when=_plays)
def episodes_have_the_tokens_of_one_rendering(subject: Subject) -> None:
    """With a template that is append-only, the tokens of an episode are one rendering of its whole dialogue."""
    batch, tokenizer = _played(subject)
    for row, messages in enumerate(batch.arguments["messages"]):
        expected = tokenizer.apply_chat_template(messages[:-1], tokenize=False)
        said = tokenizer.decode(batch.tokens[row][batch.mask[row]].tolist())
        require(said == expected, f"an episode reads {said!r}, and its dialogue is rendered as {expected!r}")


@law(DIST, when=_plays)
def only_sampled_tokens_are_chosen(subject: Subject) -> None:
    """Chosen are the tokens that the sampler returned, in their order, with its log-probs; all others have none."""
    batch, tokenizer = _played(subject)
    expected = [token for text in PLAYED_TURNS for token in _ids(tokenizer, text)]
    for row in range(len(batch)):
        chosen = batch.tokens[row][batch.action_mask[row]].tolist()
        require(chosen == expected, f"chosen are the tokens {chosen}, but sampled were {expected}")
    wrong = (batch["logprobs"] != -1.0 * batch.action_mask).nonzero().tolist()
    require(not wrong, f"the log-probs at {wrong[:4]} are not those of the sampler, or of no sampled token")


@law(DIST, when=_plays)
def the_reward_of_a_turn_is_at_its_last_token(subject: Subject) -> None:
    """The column `rewards` has the reward of each turn at the last token of the turn, and zeros elsewhere."""
    batch, tokenizer = _played(subject)
    expected = [
        reward if last else 0.0
        for text, reward in zip(PLAYED_TURNS, REWARDS, strict=True)
        for last in [False] * (len(_ids(tokenizer, text)) - 1) + [True]
    ]
    for row in range(len(batch)):
        found = batch["rewards"][row][batch.action_mask[row]].tolist()
        require(found == expected, f"the sampled tokens have the rewards {found}, expected were {expected}")
    require(not bool(batch["rewards"][~batch.action_mask].any()), "tokens of the environment have rewards")


@law(DIST, when=_plays)
def a_failed_episode_has_no_score_and_others_go_on(subject: Subject) -> None:
    """An episode whose environment raises states why, and the others are those of a batch without failures."""
    batch, _ = _played(subject, _environment(failing=True))
    require(
        "no door" in batch.failures[1] and not batch.failures[0],
        f"the second of three environments raised ValueError('no door'), and failures are {list(batch.failures)}",
    )
    whole, _ = _played(subject)
    first, other = (each.tokens[0][each.mask[0]].tolist() for each in (batch, whole))
    require(first == other, "an episode beside one that failed has other tokens")


@law(DIST, when=_plays)
def a_failure_is_not_a_reward_of_zero(subject: Subject) -> None:
    """A failed episode has no score, so that it counts in no mean and no baseline; a reward of 0 is a score."""
    from rlcore.rewards.call_inputs import UserFunction
    from rlcore.rewards.combine import Rewards, Scorer
    from rlcore.types import Prompt

    batch, tokenizer = _played(subject, _environment(failing=True))
    zero = Rewards((UserFunction("reward", "zero", lambda outputs: [0.0] * len(outputs)),))
    scored = Scorer(zero, tokenizer, (), outputs_begin_text=False, where="a law")
    totals = scored([Prompt(text, (0,)) for text in ROWS], batch).totals
    require(
        totals == [0.0, None, 0.0],
        f"of three episodes with a reward of 0 the second failed, and their scores are {totals}, not [0.0, None, 0.0]; "
        "state why it failed in `failures`",
    )


@law(DIST, when=_plays)
def no_step_follows_the_end(subject: Subject) -> None:
    """After `done`, `truncated` or a failure, an environment receives no further turn, and is closed once."""
    calls: list[list[str]] = []
    _played(subject, _noting(calls))
    found = sorted(each for each in calls if any(call.startswith("step") for call in each))
    expected = [[*(f"step {k}" for k in range(number + 1)), "close"] for number in range(len(ROWS))]
    require(found == expected, f"three episodes end with their turns 0, 1 and 2, and their calls are {found}")


@law(DIST, when=_plays)
def texts_of_an_environment_are_no_control_tokens(subject: Subject) -> None:
    """The text of a control token in an answer of the environment is tokenised as text."""
    batch, tokenizer = _played(subject, _environment(said="</s>a now you"))
    for row in range(len(batch)):
        there = batch.tokens[row][batch.mask[row] & ~batch.action_mask[row]].tolist()
        count = there.count(tokenizer.eos_token_id)
        require(not count, f"an environment that says '</s>' ends {count} turns; tokenise its texts as text")


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


class _Scripted:
    """A sampler that writes the next of `TURNS` after every prompt, with log-probs of -1."""

    def __init__(self) -> None:
        self._num_calls = 0

    def __call__(
        self, policy: Any, prompts: Sequence[Prompt], sampling: Any, *, generator: Any = None  # noqa: ARG002
    ) -> Trajectories:  # fmt: skip
        from rlcore.types import Trajectories

        ids = _ids(policy.tokenizer, PLAYED_TURNS[self._num_calls])
        self._num_calls += 1
        rows = [[*prompt.tokens, *ids] for prompt in prompts]
        masks = [[False] * len(prompt.tokens) + [True] * len(ids) for prompt in prompts]
        batch = Trajectories.stack(rows, masks, pad_id=policy.tokenizer.pad_token_id)
        return batch.with_columns(logprobs=-1.0 * batch.action_mask)


def _environment(*, failing: bool = False, said: str = "well") -> type:
    from rlcore.protocols import Step, Turn

    class Played:
        def reset(self, row: Any, *, seed: int) -> str:  # noqa: ARG002  an environment's signature
            self.fails = failing and row["number"] == 1
            return "go"

        def step(self, turn: Turn) -> Step:
            if self.fails and turn.index == 1:
                raise ValueError("no door")
            return Step(said, reward=REWARDS[turn.index], done=turn.index == len(PLAYED_TURNS) - 1)

    return Played


def _noting(calls: list[list[str]]) -> type:
    """Return an environment that notes its calls: the first row is done at once, the next is cut off, the third fails.

    Args:
        calls: receives a list for each object.
    """
    from rlcore.protocols import Step, Turn

    class Noting:
        def __init__(self) -> None:
            self.own: list[str] = []
            calls.append(self.own)

        def reset(self, row: Any, *, seed: int) -> str:  # noqa: ARG002  an environment's signature
            self.number = row["number"]
            return "go"

        def step(self, turn: Turn) -> Step:
            self.own.append(f"step {turn.index}")
            is_last = turn.index == self.number
            if is_last and self.number == len(ROWS) - 1:
                raise ValueError("no door")
            return Step("well", done=is_last and self.number == 0, truncated=is_last and self.number == 1)

        def close(self) -> None:
            self.own.append("close")

    return Noting


def _played(subject: Subject, made: type | None = None) -> tuple[Any, Any]:
    """Return the episodes that the plugin plays of an environment with the rows, and the tokenizer."""
    from rlcore.plugins.registry import all_registries
    from rlcore.settings import SamplingConfig, TrainConfig
    from rlcore.types import Episodes
    from rlcore_testing.small import make_gpt2, make_tokenizer
    from rlcore_transformers.models.causal import build_causal_lm
    from rlcore_transformers.models.model_options import CausalLMConfig

    tokenizer, config = make_tokenizer(), TrainConfig()
    tokenizer.chat_template = TEMPLATE
    policy: Any = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=tokenizer)
    play = next(resolve(p.module).play_environment for p in subject.plugins if HOOK in hooks_of(p.module))
    player = play(environment=_environment() if made is None else made, config=config)
    if player is None:
        raise LawBroken(f"{HOOK} returns None for a class of environments, so that no episode is played")
    read: Any = player.pipeline(all_registries().pipelines.get("rlcore-transformers:prompts").target())
    rows = [{"prompt": text, "number": number} for number, text in enumerate(ROWS)]
    prompts = read(rows, tokenizer, config.data, max_length=policy.max_length)
    sampler: Any = player.sampler(_Scripted())
    batch = sampler(policy, prompts, SamplingConfig(max_new_tokens=8), row_seeds=range(len(rows)))
    player.close()
    require(isinstance(batch, Episodes), f"its sampler returns {type(batch).__name__}, not rlcore.types.Episodes")
    return batch, tokenizer
