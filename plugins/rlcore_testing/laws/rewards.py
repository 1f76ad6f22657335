"""Laws of rewards, which are called through `rlcore.rewards` with the arguments that their signature names.

Required columns are filled with strings of whole numbers, which a reward can use as text or as numbers. A reward of
outputs that are no text has an attribute `example_outputs`, a function that returns twelve of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlcore.errors import RewardError
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import as_second_rank, at_another_time, call_in_new_process, undisturbed

if TYPE_CHECKING:
    from rlcore.types import Prompt

REWARDS = "rewards"
OUTPUTS = (
    "yes, thanks", "No!", "please", "42", "-7.5", " ", "a b c", "the end.\n", "e = mc²", "naïve 🙂", "no no", "ab",
)  # fmt: skip
ANSWERS = ("4", "42", "7", "0", "1", "12")
OTHERS = (*ANSWERS[4:], *ANSWERS[:4])
"""The same, of which two are in their outputs, as the right answers of a task are."""
KNOWN = ("samples", "prompts", "outputs", "messages", "output_tokens", "tokenizer")
TOLERANCE = 1e-5
"""Relative tolerance; a reward may be the output of a model in float32, which depends a little on its batch."""


@law(REWARDS)
def one_number_for_each_output(subject: Subject) -> None:
    """A reward returns for each output a finite number, one number per token, or None."""
    _scores(subject, OUTPUTS)


@law(REWARDS)
def some_output_gets_a_number(subject: Subject) -> None:
    """A reward returns a number for at least one of twelve different outputs."""
    require(
        any(value is not None for value in _scores(subject, OUTPUTS)),
        f"it returns None for each of {', '.join(map(repr, OUTPUTS))}; return numbers",
    )


@law(REWARDS)
def same_inputs_same_numbers(subject: Subject) -> None:
    """Two calls with the same inputs, the second in another year, return the same numbers: runs are reproducible.

    A call after the first, which may load a model, does not change the global random state, torch's default dtype or
    the root logger, and writes no file into the working folder.
    """
    function = _function(subject)
    first = _scores(subject, OUTPUTS, function=function)
    with undisturbed("it"):
        again = _scores(subject, OUTPUTS, function=function)
    _compare(first, again, OUTPUTS, "in a second call", "use no random numbers")
    with at_another_time():
        _compare(first, _scores(subject, OUTPUTS), OUTPUTS, "at another time", "do not read the clock")


@law(REWARDS)
def another_process_same_numbers(subject: Subject) -> None:
    """A reward returns the same numbers in a new process, where strings have other hashes, on the second of two ranks.

    That process scores the outputs beside other columns first, this one afterwards: no number is remembered by the
    output alone.
    """
    arguments = {"name": subject.it.qualified, "options": dict(subject.options)}
    others = call_in_new_process(f"{__name__}:call_reward", arguments, what=f"calling {subject.it}")
    advice = "depend on the inputs alone, not on hash(), the order of a set, RANK, or what was scored before"
    own = [_scores(subject, OUTPUTS, answers=answers) for answers in (ANSWERS, OTHERS)]
    for mine, found in zip(own, others, strict=True):
        _compare(mine, found, OUTPUTS, "in another process", advice)


@law(REWARDS)
def the_order_of_a_batch_changes_nothing(subject: Subject) -> None:
    """The number of an output does not depend on its position in the batch."""
    turned = _scores(subject, OUTPUTS, order=range(len(OUTPUTS) - 1, -1, -1))
    _compare(_scores(subject, OUTPUTS), turned[::-1], OUTPUTS, "in the reversed batch", "score each output by itself")


@law(REWARDS)
def splitting_a_batch_changes_nothing(subject: Subject) -> None:
    """An output gets the same number in a batch of one and in a larger batch."""
    single = [value for i in range(len(OUTPUTS)) for value in _scores(subject, OUTPUTS, order=[i])]
    _compare(_scores(subject, OUTPUTS), single, OUTPUTS, "in a batch of its own", "score each output by itself")


def _scores_text(subject: Subject) -> bool:
    """Return whether it scores text."""
    from rlcore.protocols import RewardTraits

    return RewardTraits(subject.it.target()).example_outputs is None


@law(REWARDS, when=_scores_text)
def an_empty_output_is_accepted(subject: Subject) -> None:
    """An empty output gets a number or None, alone and among others."""
    _scores(subject, ("",))
    _scores(subject, ("", "yes", ""))


@law(REWARDS)
def columns_it_does_not_take_change_nothing(subject: Subject) -> None:
    """Columns of the prompts that a reward does not use do not change its numbers."""
    more = {"source_of_row": "somewhere", "notes_on_row": ["a", {"b": 1}], "nothing_in_row": None}
    advice = "name the columns you need as parameters, and ignore the others"
    _compare(
        _scores(subject, OUTPUTS), _scores(subject, OUTPUTS, columns=more), OUTPUTS, "with further columns", advice
    )


def _closes(subject: Subject) -> bool:
    """Return whether it has a method `close`."""
    from rlcore.protocols import RewardTraits

    return "close" in RewardTraits(_function(subject))


@law(REWARDS, when=_closes)
def it_scores_again_after_close(subject: Subject) -> None:
    """After `close()`, also a second one, a reward returns the same numbers as before."""
    function = _function(subject)
    before = _scores(subject, OUTPUTS, function=function)
    function.close()
    function.close()
    after = _scores(subject, OUTPUTS, function=function)
    function.close()
    _compare(before, after, OUTPUTS, "after close()", "start anew when called after close()")


def call_reward(name: str, options: dict[str, Any]) -> list[list[float | None]]:
    """Score OUTPUTS beside the ANSWERS and the OTHERS; runs in `another_process_same_numbers`."""
    from rlcore.plugins.registry import all_registries

    component = all_registries().rewards.get(name)
    subject = Subject(component.dist, (), component, options)
    with as_second_rank():
        return [_scores(subject, OUTPUTS, answers=answers) for answers in (OTHERS, ANSWERS)][::-1]


def _function(subject: Subject) -> Any:
    """Return the reward function: the target, or, if the component has options, the target's return value."""
    config = subject.config()
    target: Any = subject.it.target()
    return target if config is None else target(config)


def _rewards(subject: Subject, *others: Any, function: Any = None) -> Any:
    from rlcore.rewards.call_inputs import UserFunction
    from rlcore.rewards.combine import Rewards

    named = [
        (subject.it.name, function or _function(subject)),
        *((f"other {i}", each) for i, each in enumerate(others)),
    ]
    return Rewards(tuple(UserFunction("reward", name, call) for name, call in named))


def _scores(
    subject: Subject,
    outputs: Sequence[str],
    *,
    order: Sequence[int] | None = None,
    columns: dict[str, Any] | None = None,
    answers: Sequence[str] = ANSWERS,
    function: Any = None,
) -> list[float | None]:
    """Return the reward's number for each output, or for those at `order`; `function` was built before.

    The columns that the reward requires have the `answers`.

    For a reward of other outputs than text, its own examples stand for `outputs`.
    """
    from rlcore.protocols import RewardTraits
    from rlcore_testing.small import make_tokenizer

    order = range(len(outputs)) if order is None else order
    prompts, texts = _prompts(subject, order, columns or {}, answers), [outputs[i] for i in order]
    examples, rewards = RewardTraits(subject.it.target()).example_outputs, _rewards(subject, function=function)
    try:
        if examples is not None:
            batch = rewards.score(prompts, {name: _at(values, order) for name, values in examples().items()})
        else:
            tokens = [[*map(ord, output), 0] for output in texts]
            batch = rewards(prompts, texts, tokenizer=make_tokenizer(), output_tokens=tokens)
    except RewardError as error:
        raise LawBroken(str(error)) from error
    numbers: list[float | None] = batch.by_name[subject.it.name]
    return numbers


def _at(values: Any, order: Sequence[int]) -> Any:
    """Return the elements of a list, or the rows of a tensor, at `order`."""
    return [values[i] for i in order] if isinstance(values, list) else values[list(order)]


def _prompts(subject: Subject, order: Sequence[int], columns: dict[str, Any], answers: Sequence[str]) -> list[Prompt]:
    """Return a prompt for each number, with the columns that the reward requires."""
    from rlcore.types import Prompt

    needed = _columns(_function(subject))
    return [
        Prompt(f"prompt {i}: ", (1, 2, i), {**{name: answers[i % len(answers)] for name in needed}, **columns})
        for i in order
    ]


def _columns(function: Any) -> list[str]:
    """Return the required columns of a function; a first parameter with any other name receives the samples."""
    from rlcore.protocols import RewardTraits

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return []
    named = [each for each in parameters if each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}]
    examples = RewardTraits(function).example_outputs
    known = KNOWN if examples is None else (*KNOWN, *examples())
    needed = [each for each in named if each.default is each.empty and each.name not in known]
    own_name = needed[:1] == named[:1] and needed and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
    return [each.name for each in (needed[1:] if own_name else needed)]


def _compare(
    first: Sequence[float | None], then: Sequence[float | None], outputs: Sequence[str], when: str, advice: str
) -> None:
    for output, one, other in zip(outputs, first, then, strict=True):
        same = (
            one is other
            if None in {one, other}
            else math.isclose(one or 0, other or 0, rel_tol=TOLERANCE, abs_tol=1e-7)
        )
        require(same, f"output {output!r} gets {one}, but {when} {other}; {advice}")
