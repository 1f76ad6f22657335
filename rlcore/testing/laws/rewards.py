"""Laws about rewards, asked as rlcore asks them: with what their signature takes, through `rlcore.rewards`.

A column that a reward cannot do without is made up: texts of whole numbers, which can be read either way.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlcore.errors import RewardError
from rlcore.testing.law import LawBroken, Subject, law, require
from rlcore.testing.rig.isolate import call_anew

if TYPE_CHECKING:
    from rlcore.types import Prompt

REWARDS = "rewards"
OUTPUTS = (
    "yes, thanks", "No!", "please", "42", "-7.5", " ", "a b c", "the end.\n", "e = mc²", "naïve 🙂", "no no", "ab",
)  # fmt: skip
ANSWERS = ("4", "42", "7", "0", "1", "12")
KNOWN = ("samples", "prompts", "outputs", "output_tokens", "tokenizer")
TOLERANCE = 1e-6


@law(REWARDS)
def one_number_for_each_output(subject: Subject) -> None:
    """A reward gives each output a finite number, one for each of its tokens, or None for no opinion."""
    _ask(subject, OUTPUTS)


@law(REWARDS)
def some_output_gets_a_number(subject: Subject) -> None:
    """A reward has an opinion on some of twelve different outputs."""
    require(
        any(value is not None for value in _ask(subject, OUTPUTS)),
        f"it gives None for each of {', '.join(map(repr, OUTPUTS))}; return numbers",
    )


@law(REWARDS)
def same_inputs_same_numbers(subject: Subject) -> None:
    """Asked twice, a reward says the same: without that, no run can be repeated."""
    _compare(_ask(subject, OUTPUTS), _ask(subject, OUTPUTS), OUTPUTS, "asked again", "draw nothing at random")


@law(REWARDS)
def another_process_same_numbers(subject: Subject) -> None:
    """Asked in a process started anew, where text has other hashes, a reward says the same."""
    arguments = {"name": subject.it.qualified, "options": dict(subject.options)}
    anew = call_anew(f"{__name__}:ask_anew", arguments, what=f"asking {subject.it}")
    advice = "depend on the inputs alone, not on hash() or the order of a set"
    _compare(_ask(subject, OUTPUTS), anew, OUTPUTS, "in another process", advice)


@law(REWARDS)
def the_order_of_a_batch_changes_nothing(subject: Subject) -> None:
    """An output gets the same number wherever in a batch it stands."""
    turned = _ask(subject, OUTPUTS, order=range(len(OUTPUTS) - 1, -1, -1))
    _compare(_ask(subject, OUTPUTS), turned[::-1], OUTPUTS, "in a batch turned round", "judge each output by itself")


@law(REWARDS)
def splitting_a_batch_changes_nothing(subject: Subject) -> None:
    """An output gets the same number in a batch of one as among others."""
    single = [value for i in range(len(OUTPUTS)) for value in _ask(subject, OUTPUTS, order=[i])]
    _compare(_ask(subject, OUTPUTS), single, OUTPUTS, "in a batch of its own", "judge each output by itself")


@law(REWARDS)
def an_empty_output_is_accepted(subject: Subject) -> None:
    """A policy may stop at once: an empty output gets a number or None, alone and among others."""
    _ask(subject, ("",))
    _ask(subject, ("", "yes", ""))


@law(REWARDS)
def columns_it_does_not_take_change_nothing(subject: Subject) -> None:
    """Prompts may have columns that are nothing to a reward."""
    more = {"source_of_row": "somewhere", "notes_on_row": ["a", {"b": 1}], "nothing_in_row": None}
    advice = "take the columns you need by name, and leave the others alone"
    _compare(_ask(subject, OUTPUTS), _ask(subject, OUTPUTS, columns=more), OUTPUTS, "beside other columns", advice)


@law(REWARDS)
def what_it_is_given_stays_as_it_was(subject: Subject) -> None:
    """A reward changes none of the lists and columns it is given: other rewards are given the same."""
    more = {"notes_on_row": ["a", {"b": 1}]}
    seen: dict[str, Any] = {}

    def spy(**given: Any) -> list[float]:
        seen.update(given)
        return [0.0] * len(given["outputs"])

    prompts, tokens = _prompts(subject, range(len(OUTPUTS)), more), [list(map(ord, each)) for each in OUTPUTS]
    before: list[Any] = copy.deepcopy([[prompt.columns for prompt in prompts], tokens])
    _rewards(subject, spy)(prompts, OUTPUTS, tokenizer=None, output_tokens=tokens)
    after = [[prompt.columns for prompt in prompts], seen["output_tokens"]]
    for what, was, now in zip(("the columns", "output_tokens"), before, after, strict=True):
        require(now == was, f"it changes {what}: {_first_change(was, now)}; work on a copy")


def ask_anew(name: str, options: dict[str, Any]) -> list[float | None]:
    """Ask the reward called `name`, in the process of a law."""
    from rlcore.plugins.registry import all_registries

    component = all_registries().rewards.get(name)
    return _ask(Subject(component.dist, (), component, options), OUTPUTS)


def _made(subject: Subject) -> Any:
    """Return the function: the target itself, or what it returns for its options where it has any."""
    config = subject.config()
    target: Any = subject.it.target()
    return target if config is None else target(config)


def _rewards(subject: Subject, *others: Any) -> Any:
    from rlcore.rewards.calls import UserFunction
    from rlcore.rewards.combine import Rewards

    named = [(subject.it.name, _made(subject)), *((f"other {i}", each) for i, each in enumerate(others))]
    return Rewards(tuple(UserFunction("reward", name, call) for name, call in named))


def _ask(
    subject: Subject,
    outputs: Sequence[str],
    *,
    order: Sequence[int] | None = None,
    columns: dict[str, Any] | None = None,
) -> list[float | None]:
    """Ask about outputs, or about those that `order` names, and return a number for each."""
    from rlcore.testing.small import make_tokenizer

    order = range(len(outputs)) if order is None else order
    prompts, chosen = _prompts(subject, order, columns or {}), [outputs[i] for i in order]
    try:
        batch = _rewards(subject)(
            prompts, chosen, tokenizer=make_tokenizer(), output_tokens=[[*map(ord, output), 0] for output in chosen]
        )
    except RewardError as error:
        raise LawBroken(str(error)) from error
    found: list[float | None] = batch.by_name[subject.it.name]
    return found


def _prompts(subject: Subject, order: Sequence[int], columns: dict[str, Any]) -> list[Prompt]:
    """Make a prompt for each number, with the columns the reward cannot do without."""
    from rlcore.types import Prompt

    needed = _columns(_made(subject))
    return [
        Prompt(f"prompt {i}: ", (1, 2, i), {**{name: ANSWERS[i % len(ANSWERS)] for name in needed}, **columns})
        for i in order
    ]


def _columns(function: Any) -> list[str]:
    """Name the columns a function needs; a first parameter with a name of its own gets the samples."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return []
    named = [each for each in parameters if each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}]
    needed = [each for each in named if each.default is each.empty and each.name not in KNOWN]
    own_name = needed[:1] == named[:1] and needed and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
    return [each.name for each in (needed[1:] if own_name else needed)]


def _compare(
    first: Sequence[float | None], then: Sequence[float | None], outputs: Sequence[str], when: str, advice: str
) -> None:
    for output, one, other in zip(outputs, first, then, strict=True):
        same = (
            one is other
            if None in {one, other}
            else math.isclose(one or 0, other or 0, rel_tol=TOLERANCE, abs_tol=1e-9)
        )
        require(same, f"output {output!r} gets {one}, and {when} {other}; {advice}")


def _first_change(was: Any, now: Any) -> str:
    return next((f"{one!r} became {other!r}" for one, other in zip(was, now, strict=False) if one != other), "")
