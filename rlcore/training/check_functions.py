"""Check the calls of reward and metric functions before a model is loaded, with the first rows and example answers."""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlcore.components import LANGUAGE_MODEL, SCORER, kind_built
from rlcore.data.user_code import parameters_of
from rlcore.errors import RewardError
from rlcore.logging import get_logger
from rlcore.protocols import PreviewPipeline
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.calls import Call
from rlcore.rewards.chosen_rewards import resolve
from rlcore.rewards.values import read_metrics, read_rewards
from rlcore.safe_text import shorten
from rlcore.settings import TrainConfig
from rlcore.training.inputs import Inputs
from rlcore.training.run_components import Chosen
from rlcore.types import Prompt

log = get_logger("check_functions")

ANSWERS = ("This is an example answer.", "This is another one: 42.")
"""The outputs that functions receive."""
_PLAIN = type(None), bool, int, float, complex, str, bytes, frozenset, type, types.BuiltinFunctionType
_PURE = (
    "ast", "collections", "difflib", "functools", "itertools", "json", "math", "numpy", "operator", "re", "statistics",
    "string", "torch", "typing",
)  # fmt: skip
"""Modules whose functions change nothing outside; others may write, send or signal."""


def check_functions(settings: TrainConfig, inputs: Inputs, chosen: Chosen) -> None:
    """Check the signature of each function against the columns, and call those that keep no state with two rows.

    Checked are functions of the user's own, for prompts of which the pipeline has a preview. They are called if
    `run.check_functions` is set and they can be called once more without a change to the run: functions that neither
    change nor read an object that may keep state (a list, an instance), and that need no tokenizer.

    Raises:
        RewardError: a function requires an argument that does not exist, or returned an invalid value. One that raises
            is a warning: it may need a larger batch, or outputs of a form that the policy keeps.
        DataError: a file of prompts cannot be read, or a function cannot be found.
    """
    if kind_built(chosen.architecture.component.target()) not in (LANGUAGE_MODEL, SCORER):
        return  # outputs that are no text
    if inputs.environment is not None:
        return  # functions may take arguments that only an episode has
    pipeline = chosen.prompts.unwrapped() if chosen.rewards or inputs.metric_fn is not None else None
    if not isinstance(pipeline, PreviewPipeline):
        return
    timeout_s = settings.run.reward_timeout_s
    rewards = [each for each in chosen.rewards if each.choice is None]
    functions = [UserFunction("reward", each.name, each.load(), each.weight, timeout_s) for each in rewards]
    metrics = []
    if inputs.metric_fn is not None:
        name, load = resolve(inputs.metric_fn, "metric_fn")
        metrics = [UserFunction("metric", name, load(), timeout_s=timeout_s)]
    evaluated = settings.eval.every or settings.eval.at_start or settings.eval.at_end
    first = "samples" if getattr(chosen.trainer.component.target(), "scores_samples", False) else "prompts"
    for what in (first, "eval_prompts") if evaluated else (first,):
        source = getattr(inputs, what)
        rows = pipeline.preview(source, settings.data, what=f"data.{what}") if functions or metrics else None
        evaluates = what == "eval_prompts" or (inputs.eval_prompts is None and what == "prompts")
        for function in [*functions, *(metrics if evaluates else ())]:
            if rows is not None:
                _check(function, rows, what, is_called=settings.run.check_functions)


def _check(function: UserFunction, rows: tuple[list[Prompt], bool], what: str, *, is_called: bool) -> None:
    prompts, is_text = rows
    outputs = list(ANSWERS[: len(prompts)])
    tokens = [[0] * len(output.split()) for output in outputs]
    where = f"before the run, with {what}"
    inputs = CallInputs.of(prompts, outputs, None, where, output_tokens=tokens)
    inputs.arguments_of(function)
    unknown = ["tokenizer", *(() if is_text else ("samples", "prompts"))]
    if not (is_called and keeps_no_state(function.call)) or _names(function.call, unknown):
        return
    try:
        (result,) = Call.of([function], inputs).wait()
        if function.kind == "reward":
            read_rewards(result, function, inputs, inputs.num_actions)
        else:
            read_metrics(result, function, inputs)
    except RewardError as error:
        args, named = inputs.arguments_of(function)
        shown = [shorten(each, 80) for each in args] + [f"{key}={shorten(each, 80)}" for key, each in named.items()]
        text = (
            f"{error}\n  called as {function.name}({', '.join(shown)})\n  The outputs are placeholders; the columns "
            "are those of the first rows. This call comes before the model is loaded, since such an output would end "
            "the run later; run.check_functions=false leaves it out"
        )
        if error.__cause__ is None:
            raise RewardError(text) from None
        log.warning(text)  # the function may be right for a batch of another size, and for what the policy writes


def keeps_no_state(function: Any) -> bool:
    """Return whether a call changes nothing that a later call depends on, as far as the function's code shows.

    It is true for a plain function that assigns to nothing outside, and that refers only to constants, modules, classes
    and other such functions. Objects with methods, lists and iterators may keep state, and count as doing so.
    """
    return _is_plain(function, set())


def _is_plain(value: Any, seen: set[int]) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _PURE
    if isinstance(value, _PLAIN) or id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, tuple):
        return all(_is_plain(part, seen) for part in value)
    if isinstance(value, functools.partial):
        return all(_is_plain(part, seen) for part in (value.func, *value.args, *value.keywords.values()))
    if not isinstance(value, types.FunctionType):
        return type(value).__module__ in ("re", "pathlib", "typing")
    if {"open", "input", "exec", "eval"} & {*value.__code__.co_names}:
        return False
    return _assigns_nothing(value) and all(_is_plain(each, seen) for each in _referenced(value))


def _assigns_nothing(function: types.FunctionType) -> bool:
    outside = set(function.__code__.co_freevars)
    return not any(
        step.opname in ("STORE_GLOBAL", "STORE_ATTR", "DELETE_GLOBAL")
        or (step.opname == "STORE_DEREF" and step.argval in outside)
        for code in _codes(function.__code__)
        for step in dis.get_instructions(code)
    )


def _referenced(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values from outside that a function refers to: globals, those of enclosing functions, defaults.

    Globals of rlcore's packages, which adapt functions of other libraries, change no result.
    """
    for code in () if str(function.__module__).startswith("rlcore") else _codes(function.__code__):
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Return whether a function takes one of the arguments, by name, by position, or from its `**` parameter."""
    parameters = list((parameters_of(function) or {}).values())
    if any(each.name in arguments for each in parameters):
        return True
    known = {"outputs", "messages", "completions", "completion_ids", "output_tokens"}
    first = parameters[0] if parameters else None
    if (
        "samples" in arguments
        and first is not None
        and (first.kind is first.POSITIONAL_ONLY or (first.default is first.empty and first.name not in known))
    ):
        return first.kind is not first.VAR_KEYWORD
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return code is not None and any(name in each.co_consts for each in _codes(code) for name in arguments)
