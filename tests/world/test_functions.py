"""Reward and metric functions in the shapes of other libraries, with rewards that were worked out by hand.

Each of them is written for this file; from the libraries come only names and kinds of arguments and of results. What a
function is given follows from its whole signature.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from rlcore.errors import DataError, RewardError, UnknownReward
from rlcore.rewards import Rewards
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.values import Call, call_metric
from rlcore.settings import DataConfig
from rlcore.training.build import keeps_no_state
from rlcore.types import Prompt
from rlcore_testing.small import make_tokenizer
from rlcore_tools.trl_functions import trl_reward
from rlcore_transformers.data.pipelines import PROMPTS

SYSTEM = {"role": "system", "content": "Answer in tags."}
QUESTIONS = ("2 + 3 ?", "4 + 4 ?", "7 - 1 ?")
RIGHT = {"answer": ("5", "8", "6")}
TAGGED = (
    "<think>\ntwo and three\n</think>\n<answer>\n5\n</answer>",
    "<think>\nfour\n</think>\n<answer>\n9\n</answer>",
    "6",
)
STORIES = ("a cat sat", "aaaa", "")


@attrs.frozen
class Case:
    """A function of the user, and what it is to return.

    Attributes:
        name: the library, and the kind of the function.
        function: the function.
        rewards: one for each sample, or a part of the message with which it is refused.
        outputs: what the policy wrote.
        columns: further columns of the prompts.
        is_chat: whether prompts are conversations, of a system message and a question.
        ids: the sampled tokens of each output; by default as many as it has characters.
    """

    name: str
    function: Callable[..., Any]
    rewards: Sequence[float | None] | str
    outputs: Sequence[str] = TAGGED
    columns: Mapping[str, Sequence[Any]] = attrs.field(factory=dict)
    is_chat: bool = True
    ids: Sequence[Sequence[int]] | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts of the outputs."""
        found = []
        for i, question in enumerate(QUESTIONS[: len(self.outputs)]):
            messages = [SYSTEM, {"role": "user", "content": question}]
            text = f"<s>{SYSTEM['content']}<u>{question}<a>" if self.is_chat else question
            columns = {name: values[i] for name, values in self.columns.items()}
            found.append(Prompt(text, (1,), columns, messages if self.is_chat else None))
        return found

    @property
    def tokens(self) -> list[list[int]]:
        """The sampled tokens of the outputs."""
        return [list(row) for row in self.ids or [[3] * len(output) for output in self.outputs]]


# The shapes of TRL: `completions`, in a conversation a list with one message, and columns by name.


def near_length(completions: list[str], **kwargs: Any) -> list[float]:
    return [-abs(5 - len(completion)) for completion in completions]


def distinct_letters(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(set(completion))) for completion in completions]


def says_answer(completions: list[list[dict[str, str]]], answer: list[str], **kwargs: Any) -> list[float]:
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if right in content else 0.0 for content, right in zip(contents, answer, strict=True)]


def only_of_task(completions: Any, task: list[str], **kwargs: Any) -> list[float | None]:
    return [1.0 if kind == "maths" else None for kind in task]


async def awaited_length(completions: Any, **kwargs: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


def repeats_question(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
    asked = [prompt[-1]["content"].split()[0] for prompt in prompts]
    assert all(prompt[0] == SYSTEM and len(prompt) == 2 for prompt in prompts)
    return [float(word in each[0]["content"]) for word, each in zip(asked, completions, strict=True)]


def plain_prompts(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    assert all(isinstance(each, str) for each in (*prompts, *completions))
    return [float(prompt + completion == f"{prompt}6") for prompt, completion in zip(prompts, completions, strict=True)]


def ids_alone(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [float(sum(ids)) for ids in completion_ids]


def ids_beside(prompts: Any, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [float(len(ids)) + len(prompt) for prompt, ids in zip(prompts, completion_ids, strict=True)]


def ids_with_default(completions: Any, completion_ids: list[list[int]] | None = None) -> list[float]:
    return [float(ids[-1]) for ids in completion_ids or [[-1]] * len(completions)]


def logs_if_it_may(
    completions: Any, answer: list[str], log_extra: Any = None, log_metric: Any = None, **kwargs: Any
) -> list[float]:
    if log_extra:
        log_extra("answer", list(answer))
    if log_metric:
        log_metric("length", 3.0)
    return [float(completion[0]["content"] == right) for completion, right in zip(completions, answer, strict=True)]


def logs_from_kwargs(completions: Any, **kwargs: Any) -> list[float]:
    kwargs["log_metric"]("length", 3.0)
    return [0.5] * len(completions)


def follows_steps_if_it_may(completions: Any, trainer_state: Any = None, **kwargs: Any) -> list[float]:
    return [0.25 if trainer_state is None else trainer_state.global_step for _ in completions]


def follows_steps(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
    return [trainer_state.global_step for _ in completions]


def follows_steps_alone(trainer_state: Any, **kwargs: Any) -> list[float]:
    return [trainer_state.global_step]


def looks_into_environments(completions: Any, environments: Any, **kwargs: Any) -> list[float]:
    return [environment.reward for environment in environments]


def needs_log_metric(completions: Any, log_metric: Any) -> list[float]:
    return [0.0] * len(completions)


def weighted(completions: Any, weight: float = 1.0, **kwargs: Any) -> list[float]:
    return [weight * ("<think>" in completion[0]["content"]) for completion in completions]


class TagReward:
    """An object with options."""

    def __init__(self, tag: str) -> None:
        self.tag, self.__name__ = tag, f"has_{tag}"

    def __call__(self, completions: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor([float(f"</{self.tag}>" in completion[0]["content"]) for completion in completions])


class Shop:
    """Functions that belong to an object."""

    bonus = 2.0

    def priced(self, completions: list[str], price: list[float]) -> list[float]:
        return [self.bonus * value for value in price]


# The shapes of open-r1: factories that return closures, `solution` as the column, and token ids for lengths.


def tag_format(completions: Any, **kwargs: Any) -> list[float]:
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content, re.DOTALL | re.MULTILINE) else 0.0 for content in contents]


def tag_counts(completions: Any, **kwargs: Any) -> list[float]:
    tags = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
    return [sum(0.25 for tag in tags if completion[0]["content"].count(tag) == 1) for completion in completions]


def accuracy(completions: Any, solution: list[str], **kwargs: Any) -> list[float | None]:
    found = [re.search(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [
        None if not right else float(number is not None and number[0] == right)
        for number, right in zip(found, solution, strict=True)
    ]


def steps_of_reasoning(completions: Any, **kwargs: Any) -> list[float]:
    pattern = re.compile(r"(Step \d+:|^\d+\.|First,|Then,)", re.MULTILINE)
    return [min(1.0, len(pattern.findall(completion[0]["content"])) / 3) for completion in completions]


def make_cosine(shortest: float, longest: float, most: int) -> Callable[..., list[float]]:
    def cosine(completions: Any, solution: list[str], **kwargs: Any) -> list[float]:
        found = []
        for completion, right in zip(completions, solution, strict=True):
            content = completion[0]["content"]
            share = math.cos(len(content) / most * math.pi)
            low, high = (longest, shortest) if right in content else (-shortest, -longest)
            found.append(low + 0.5 * (high - low) * (1.0 + share))
        return found

    return cosine


def make_repetition_penalty(size: int, worst: float) -> Callable[..., list[float]]:
    def penalty(completions: Any, **kwargs: Any) -> list[float]:
        found = []
        for completion in completions:
            words = completion[0]["content"].lower().split()
            grams = list(zip(*[words[k:] for k in range(size)], strict=False))
            found.append(worst * (1 - len(set(grams)) / len(grams)) if grams else 0.0)
        return found

    return penalty


def make_overlong(most: int, soft: int) -> Callable[..., list[float]]:
    def overlong(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        rewards = []
        for ids in completion_ids:
            over = len(ids) - (most - soft)
            rewards.append(0.0 if over <= 0 else -1.0 if len(ids) > most else -over / soft)
        return rewards

    return overlong


def compared_lengths(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float]:
    lengths = [len(completion[0]["content"]) for completion in completions]
    low, high = min(lengths), max(lengths)
    return [0.5 - (length - low) / (high - low) for length in lengths]


def code_block(completions: Any, language: list[str] | None = None, **kwargs: Any) -> list[float]:
    wanted = language or ["python"] * len(completions)
    return [
        float(f"```{name}\n" in completion[0]["content"]) for name, completion in zip(wanted, completions, strict=True)
    ]


def of_token_grams(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    found = []
    for ids in completion_ids:
        pairs = list(itertools.pairwise(ids))
        found.append(-float(sum(count - 1 for count in Counter(pairs).values())))
    return found


# The shapes of notebooks: module-level patterns, counters that print, `prompts[0][-1]`, and all arguments by position.

FORMAT = re.compile(r"<answer>\s*(.+?)\s*</answer>", re.DOTALL)
PRINTED = [0]


def exact_format(completions: Any, **kwargs: Any) -> list[float]:
    return [3.0 if FORMAT.search(completion[0]["content"]) is not None else 0.0 for completion in completions]


def rough_format(completions: Any, **kwargs: Any) -> list[float]:
    scores = []
    for completion in completions:
        text = completion[0]["content"]
        scores.append(sum(0.5 if text.count(tag) == 1 else -1.0 for tag in ("<think>", "</think>")))
    return scores


def checked_answer(prompts: Any, completions: Any, answer: list[str], **kwargs: Any) -> list[float]:
    assert prompts[0][-1]["content"] == QUESTIONS[0]
    responses = [completion[0]["content"] for completion in completions]
    guesses = [found.group(1) if (found := FORMAT.search(response)) else None for response in responses]
    scores = []
    for guess, right in zip(guesses, answer, strict=True):
        scores.append(
            0.0 if guess is None else 3.0 if guess == right else 0.5 if abs(int(guess) - int(right)) == 1 else -1
        )
    return scores


def printing_numbers(prompts: Any, completions: Any, answer: list[str], **kwargs: Any) -> list[float]:
    if PRINTED[0] % 5 == 0:
        print("question:", prompts[0][-1]["content"], "answer:", answer[0])
    PRINTED[0] += 1
    digits = ["".join(re.findall(r"\d", completion[0]["content"])) for completion in completions]
    return [1.5 if found == right else -0.5 for found, right in zip(digits, answer, strict=True)]


def is_integer(completions: Any, **kwargs: Any) -> list[float]:
    return [0.5 if completion[0]["content"].strip().isdigit() else 0.0 for completion in completions]


def counted_tags(completions: Any, **kwargs: Any) -> list[float]:
    def count(text: str) -> float:
        score = 0.125 * (text.count("<think>\n") == 1) + 0.125 * (text.count("\n</think>\n") == 1)
        return score - 0.001 * len(text.rsplit("\n</answer>", maxsplit=1)[-1]) if "\n</answer>" in text else score

    return [count(completion[0]["content"]) for completion in completions]


# The shapes of trlX: `samples`, `prompts`, `outputs` as texts, the tokenizer, columns, and dense rewards.


def of_samples(samples: list[str], **kwargs: Any) -> list[float]:
    return [float(sample.count("a")) for sample in samples]


def of_outputs(samples: list[str], prompts: list[str], outputs: list[str], **kwargs: Any) -> list[float]:
    assert [prompt + output for prompt, output in zip(prompts, outputs, strict=True)] == samples
    return [float(len(output)) for output in outputs]


def beside_original(samples: list[str], outputs: list[str], original_output: list[str], **kwargs: Any) -> list[float]:
    return [float(len(output) - len(other)) for output, other in zip(outputs, original_output, strict=True)]


def dense(samples: list[str], outputs: list[str], tokenizer: Any, **kwargs: Any) -> list[list[float]]:
    assert tokenizer.eos_token is not None
    return [[0.0] * (len(output) - 1) + [1.0] for output in outputs]


def of_arrays(samples: list[str], prompts: list[str], outputs: list[str]) -> Any:
    return np.array([len(output) for output in outputs], dtype=np.float32)


# The shapes of OpenRLHF: `queries` are prompts and responses, `labels` a column, and the result is a tensor.


def of_queries(queries: list[str], prompts: list[str], labels: list[str]) -> torch.Tensor:
    answers = [query[len(prompt) :] for query, prompt in zip(queries, prompts, strict=True)]
    return torch.tensor([float(answer == label) for answer, label in zip(answers, labels, strict=True)])


def as_mapping(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    scores = torch.tensor([1.0] * len(queries))
    return {"rewards": scores, "scores": scores, "extra_logs": {"dummy": scores}}


# The shapes of verl: one sample a call, `solution_str` and `ground_truth`; or a list of each.


def one_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(ground_truth in solution_str)


def one_score_of_two(solution_str: str, ground_truth: str) -> float:
    return float(ground_truth in solution_str)


def batch_of_scores(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    return [1.0] * len(data_sources)


def wrapped_score(outputs: list[str], data_source: list[str], ground_truth: list[str]) -> list[float]:
    return [one_score(*row) for row in zip(data_source, outputs, ground_truth, strict=True)]


# Modules, wrappers and partial functions.


class OfOutputs(torch.nn.Module):
    """A module of torch that scores outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, outputs: list[str]) -> torch.Tensor:
        return self.scale * torch.tensor([float(len(output)) for output in outputs])


class OfCompletions(torch.nn.Module):
    """A module of torch in the form of TRL."""

    def forward(self, completions: Any, answer: list[str]) -> torch.Tensor:
        rows = zip(completions, answer, strict=True)
        return torch.tensor([float(completion[0]["content"] == right) for completion, right in rows])


class OfTexts(torch.nn.Module):
    """A module of torch whose argument has a name of its own, and an option."""

    def forward(self, texts: list[str], offset: float = 0.0) -> torch.Tensor:
        return torch.tensor([len(text) + offset for text in texts])


def doubled(function: Callable[..., list[float]]) -> Callable[..., list[float]]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> list[float]:
        return [2 * value for value in function(*args, **kwargs)]

    return call


@doubled
def twice_the_length(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def scaled(completions: Any, *, weight: float, answer: list[str]) -> list[float]:
    return [weight * (completion[0]["content"] == right) for completion, right in zip(completions, answer, strict=True)]


def by_factor(factor: float, completions: list[str], **kwargs: Any) -> list[float]:
    return [factor * len(completion) for completion in completions]


def passed_on(function: Callable[..., list[float]]) -> Callable[..., list[float]]:
    def call(*args: Any, **kwargs: Any) -> list[float]:  # without functools.wraps
        return function(*args, **kwargs)

    return call


def from_kwargs(prompts: Any, **kwargs: Any) -> list[float]:
    return [float(right == "5") for right in kwargs["solution"]]


def only_before_slash(completions: list[str], /, **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def ordered(samples: list[str], prompts: list[str], outputs: list[str], /) -> list[float]:
    return [float(len(output)) for output in outputs]


def of_texts(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(completion.startswith("<think>")) for completion in completions]


def parses_once(outputs: list[str], tests: list[dict[str, Any]], scores: list[Any]) -> list[float]:
    for i, test in enumerate(tests):
        test["cases"] = test["cases"].split()  # which fails if it was done before
        scores[i] += 1.0
    return [float(len(test["cases"]) + score[0]) for test, score in zip(tests, scores, strict=True)]


# The shapes of verifiers, ms-swift and EasyR1: one sample a call, objects of registered classes.


def of_rubric(prompt: Any, completion: Any, answer: str, state: Any) -> float:
    return float(answer in completion)


def of_parser(parser: Any, completion: Any, answer: str) -> float:
    return float(parser.parse(completion) == answer)


def of_one_prediction(predict_str: str, ground_truth: str) -> float:
    return float(predict_str == ground_truth)


def of_predictions(predictions: list[str]) -> list[float]:
    return [float(len(prediction)) for prediction in predictions]


class Accuracy:
    """A class of rewards as plugins of ms-swift define them."""

    def __call__(self, completions: list[str], solution: list[str], **kwargs: Any) -> list[float]:
        return [float(right in completion) for completion, right in zip(completions, solution, strict=True)]


SOLUTIONS: dict[str, Any] = {"solution": ("5", "8", "")}
STORY: dict[str, Any] = {"outputs": STORIES, "is_chat": False}
VERL: dict[str, Any] = {"data_source": ("gsm8k",) * 3, "ground_truth": ("5", "8", "6")}
IDS = ([3] * 4, [3] * 9, [3] * 12)
WORDS = ("one two one two one two", "one two three", "one")
CODE = ("```python\nx\n```", "```cpp\nx\n```", "x")
NO_TEXT = "has an unknown parameter 'solution_str'; did you mean 'outputs'"
ALL_SAMPLES = ".* A call is for all samples of a batch: each argument is a list, and so is the result \\(3\\)"
NO_STATE = r"takes TRL's 'trainer_state', which does not exist here: an observer is told of every step"

CASES = [
    Case("trl, length", near_length, [-4, -1, -5], **STORY),  # 9, 4 and 0 characters
    Case("trl, letters", distinct_letters, [5, 1, 0], **STORY),  # a, space, c, t, s
    Case("trl, column", says_answer, [1, 0, 1], columns=RIGHT),
    Case("trl, none", only_of_task, [1, None, 1], columns={"task": ("maths", "code", "maths")}),
    Case("trl, coroutine", awaited_length, [51, 42, 1]),
    Case("trl, prompts", repeats_question, [0, 0, 0]),
    Case("trl, prompts that are there", repeats_question, [1, 1, 0], ("2 is", "4 is", "8 is")),
    Case("trl, texts", plain_prompts, [0, 0, 1], is_chat=False),
    Case("trl, ids alone", ids_alone, [12, 27, 36], ids=IDS),
    Case("trl, ids beside prompts", ids_beside, [6, 11, 14], ids=IDS),  # two messages each
    Case("trl, ids with a default", ids_with_default, [7, 8, 9], ids=([1, 7], [8], [2, 9])),
    Case("trl, log functions", logs_if_it_may, [0, 0, 1], columns=RIGHT),
    Case("trl, log functions in kwargs", logs_from_kwargs, [0.5, 0.5, 0.5]),
    Case("trl, state with a default", follows_steps_if_it_may, [0.25, 0.25, 0.25]),
    Case("trl, state", follows_steps, NO_STATE),
    Case("trl, state alone", follows_steps_alone, NO_STATE),
    Case("trl, environments", looks_into_environments, "takes TRL's 'environments', .*the arguments info, turns"),
    Case("trl, log function", needs_log_metric, "takes TRL's 'log_metric', .*the mean of a further reward"),
    Case("trl, partial", functools.partial(weighted, weight=5.0), [5, 5, 0]),
    Case("trl, partial, adapted", trl_reward(functools.partial(weighted, weight=5.0)), [5, 5, 0]),
    Case("trl, partial and column", functools.partial(weighted, weight=5.0), [5, 5, 0], columns={"weight": (7, 7, 7)}),
    Case("trl, partial and column, adapted", trl_reward(functools.partial(weighted, weight=5.0)), [5, 5, 0],
         columns={"weight": (7, 7, 7)}),
    Case("trl, default", weighted, [1, 1, 0]),
    Case("trl, object", TagReward("answer"), [1, 1, 0]),
    Case("trl, method", Shop().priced, [6, 2, 0], columns={"price": (3.0, 1.0, 0.0)}),
    Case("open-r1, format", tag_format, [1, 1, 0]),
    Case("open-r1, tags", tag_counts, [1, 1, 0]),
    Case("open-r1, accuracy", accuracy, [1, 0, None], columns=SOLUTIONS),
    Case("open-r1, steps", steps_of_reasoning, [1, 1 / 3, 0], ("First, a\nThen, b\n3. c", "Step 1: a", "a")),
    # Of 50 characters, 10 and 20: cos(pi / 5) and cos(2 pi / 5); right from 1 to 0.5, wrong from -1 to -0.5
    Case("open-r1, cosine", make_cosine(1.0, 0.5, 50), [0.75 + 0.25 * 0.80901699, -0.75 + 0.25 * 0.30901699],
         ("5" * 10, "9" * 20), SOLUTIONS),
    Case("open-r1, repetition", make_repetition_penalty(2, -1.0), [-0.6, 0, 0], WORDS),  # 2 of 5 pairs are distinct
    Case("open-r1, overlong", make_overlong(10, 4), [0, -0.75, -1], ids=IDS),  # 4, 9 and 12 tokens
    Case("open-r1, compared lengths", compared_lengths, [-0.5, 0, 0.5], ("aaaaa", "aaa", "a"), SOLUTIONS),
    Case("open-r1, optional column", code_block, [1, 0, 0], CODE),
    Case("open-r1, optional column that is there", code_block, [1, 1, 0], CODE, {"language": ("python", "cpp", "c")}),
    Case("open-r1, token n-grams", of_token_grams, [-1, 0, -2], ids=([1, 2, 1, 2], [1, 2, 3], [4, 4, 4, 4])),
    Case("notebook, exact format", exact_format, [3, 3, 0]),
    Case("notebook, rough format", rough_format, [1, 1, -2]),
    Case("notebook, answer", checked_answer, [3, 0.5, 0], columns=RIGHT),
    Case("notebook, numbers", printing_numbers, [1.5, -0.5, 1.5], columns=RIGHT),
    Case("notebook, integers", is_integer, [0, 0, 0.5]),
    Case("notebook, counted tags", counted_tags, [0.25, 0.247, 0], (TAGGED[0], TAGGED[1] + "abc", "6")),
    Case("trlx, samples", of_samples, [3, 4, 0], **STORY),
    Case("trlx, outputs", of_outputs, [9, 4, 0], **STORY),
    Case("trlx, column", beside_original, [8, 2, -3], columns={"original_output": ("x", "yy", "zzz")}, **STORY),
    Case("trlx, dense", dense, [1, 1, 1], ("abc", "a", "ab"), is_chat=False),
    Case("trlx, arrays", of_arrays, [9, 4, 0], **STORY),
    Case("trlx, lambda", lambda samples, **kwargs: [len(each) for each in samples], [16, 11, 7], **STORY),
    Case("openrlhf, tensor", of_queries, [1, 0, 1], STORIES, {"labels": ("a cat sat", "b", "")}, is_chat=False),
    Case("openrlhf, mapping", as_mapping, "return 3 numbers", columns={"labels": ("a", "b", "c")}),
    Case("verl, one sample", one_score, NO_TEXT, columns=VERL),
    Case("verl, two arguments", one_score_of_two, NO_TEXT, columns=VERL),
    Case("verl, lists", batch_of_scores, "unknown parameter 'data_sources'", columns={}),
    Case("verl, wrapped", wrapped_score, [1, 0, 1], columns=VERL),
    Case("module of outputs", OfOutputs(), [18, 8, 0], **STORY),
    Case("module in the form of trl", OfCompletions(), [0, 0, 1], columns=RIGHT),
    Case("module with a name of its own", OfTexts(), [16, 11, 7], **STORY),
    Case("partial module", functools.partial(OfTexts(), offset=1.0), [17, 12, 8], **STORY),
    Case("adapted module", trl_reward(OfCompletions()), [0, 0, 1], columns=RIGHT),
    Case("decorated", twice_the_length, [18, 8, 0], **STORY),
    Case("open-r1, wrapped partial", functools.update_wrapper(functools.partial(weighted, weight=5.0), weighted),
         [5, 5, 0]),
    Case("wrapped partial by position", functools.update_wrapper(functools.partial(by_factor, 2.0), by_factor),
         [18, 8, 0], **STORY),
    Case("partial of a wrapped partial", functools.partial(
        functools.update_wrapper(functools.partial(scaled, weight=3.0), scaled), weight=4.0), [0, 0, 4], columns=RIGHT),
    Case("decorated without its signature", passed_on(near_length),
         "names no argument, so it was called with samples, prompts, outputs, .*: functools.wraps gives"),
    Case("key that is no column", from_kwargs, "KeyError: 'solution' at .*; it was called with .*outputs.*answer",
         columns=RIGHT),
    Case("trl, column that is not there", accuracy,
         "unknown parameter 'solution'; known parameters: .*prompts, answer, completions", columns=RIGHT),
    Case("trl, before a slash", only_before_slash,
         "positional-only parameter 'completions', and these receive samples"),
    Case("trl, messages of texts", exact_format, "string indices must be .*; the prompts are texts, so completions are",
         is_chat=False),
    Case("trl, texts of messages", of_texts, "'list' object has .*; the prompts are conversations, so a completion is"),
    Case("by position", ordered, [9, 4, 0], **STORY),
    Case("verifiers, rubric", of_rubric, "unknown parameter 'prompt'; did you mean 'prompts'.*" + ALL_SAMPLES),
    Case("verifiers, parser", of_parser, "unknown parameter 'parser'; known parameters: ", columns=RIGHT),
    Case("easyr1, one sample", of_one_prediction,
         "unknown parameter 'predict_str'; did you mean 'outputs'.*" + ALL_SAMPLES, columns=VERL),
    Case("outputs by another name", of_predictions, "unknown parameter 'predictions'; did you mean 'outputs'"),
    Case("ms-swift, object", Accuracy(), [1, 0, 1], STORIES, {"solution": ("cat", "b", "")}, is_chat=False),
    Case("partial with keywords", functools.partial(scaled, weight=3.0), [0, 0, 3], columns=RIGHT),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_function_of_another_library_gives_the_rewards_of_its_author(case: Case) -> None:
    rewards, prompts = Rewards.build(case.function), case.prompts

    def score() -> Any:
        return rewards(prompts, list(case.outputs), tokenizer=make_tokenizer(), output_tokens=case.tokens)

    if isinstance(case.rewards, str):
        with pytest.raises(RewardError, match=case.rewards):
            score()
        return
    (found,) = score().by_name.values()
    assert found == pytest.approx(list(case.rewards))


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (Accuracy, "is a class, and a call of it makes an object; give an object of it, .* such as Accuracy()"),
        ("someone/model-8b", "a reward model of the hub is {fn: reward_model, path: someone/model-8b}"),
    ],
)
def test_a_class_and_a_model_of_the_hub_are_refused_with_the_form_to_give(reward: Any, said: str) -> None:
    with pytest.raises((DataError, UnknownReward), match=said):
        Rewards.build(reward)


def test_a_function_that_changes_its_arguments_receives_the_columns_as_they_are_in_the_next_step() -> None:
    columns: dict[str, Any] = {"tests": {"cases": "a b"}, "scores": np.array([1.0])}
    prompts = [Prompt(question, (1,), columns) for question in QUESTIONS[:2]]
    rewards = Rewards.build([parses_once, parses_once])
    for _ in range(2):
        found = rewards(prompts, ["x", "y"], tokenizer=make_tokenizer(), output_tokens=[[3], [4]])
        assert found.by_name == {"parses_once": [4.0, 4.0], "parses_once_2": [4.0, 4.0]}
    assert columns["tests"] == {"cases": "a b"}
    assert columns["scores"].tolist() == [1.0]


PREVIEWED: list[tuple[Any, dict[str, Any]]] = [
    ("2 + 3 ?", {"as_messages": True}),
    ({"prompt": "2 + 3 ?"}, {"as_messages": True}),
    ({"problem": "2 + 3 ?"}, {"as_messages": True, "prompt_column": "problem", "system_prompt": "Be brief."}),
    ({"prompt": [{"role": "user", "content": "2 + 3 ?"}]}, {"system_prompt": "Be brief."}),
    ({"prompt": [{"role": "user", "content": "2 + 3 ?"}], "system": "Be brief."}, {}),
    ({"prompt": json.dumps([{"role": "user", "content": "2 + 3 ?"}])}, {"as_messages": True}),
    ({"conversations": [{"from": "human", "value": "2 + 3 ?"}]}, {}),
    ({"messages": [{"role": "user", "content": "2 + 3 ?"}]}, {"prompt_column": "messages"}),
    ("2 + 3 ?", {}),
]


@pytest.mark.parametrize(("row", "options"), PREVIEWED, ids=str)
def test_the_check_before_a_run_calls_functions_with_the_messages_of_the_run(row: Any, options: dict[str, Any]) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    data = DataConfig(**options)
    found = PROMPTS.preview([row], data, what="prompts")
    assert found is not None
    (previewed,), (prompt,) = found[0], PROMPTS([row], tokenizer, data, max_length=500)
    assert previewed.messages == prompt.messages
    assert previewed.columns == prompt.columns


def test_a_function_without_a_module_is_checked_too() -> None:
    made: dict[str, Any] = {"__builtins__": __builtins__}
    exec("def score(outputs):\n    return [1.0 for _ in outputs]", made)  # as of a notebook's or a template's text
    assert made["score"].__module__ is None
    assert keeps_no_state(made["score"])


def trl_metric(completions: Any, answer: list[str], **kwargs: Any) -> dict[str, list[float]]:
    return {"right": [float(each[0]["content"] == right) for each, right in zip(completions, answer, strict=True)]}


def ids_metric(completion_ids: list[list[int]], **kwargs: Any) -> dict[str, list[float]]:
    return {"tokens": [float(len(ids)) for ids in completion_ids]}


def own_ids_metric(output_tokens: list[list[int]]) -> dict[str, list[float]]:
    return {"last": [float(ids[-1]) for ids in output_tokens]}


def trlx_metric(samples: list[str], prompts: list[str], outputs: list[str], **kwargs: Any) -> dict[str, list[float]]:
    return {"length": [float(len(output)) for output in outputs]}


METRICS = [
    ("trl", trl_metric, {"right": [0, 0, 1]}),
    ("trl, ids", ids_metric, {"tokens": [4, 9, 12]}),
    ("ids", own_ids_metric, {"last": [3, 3, 3]}),
    ("trlx", trlx_metric, {"length": [51, 42, 1]}),
    ("module", torch.nn.Identity(), "returned"),
    ("trl, state", follows_steps, NO_STATE),
]


@pytest.mark.parametrize(("name", "function", "metrics"), METRICS, ids=[name for name, *_ in METRICS])
def test_a_metric_function_of_another_library_gives_its_metrics(name: str, function: Any, metrics: Any) -> None:
    case = Case(name, function, [], columns=RIGHT, ids=IDS)

    def measure() -> Any:
        return call_metric(function, case.prompts, list(case.outputs), make_tokenizer(), output_tokens=case.tokens)

    if isinstance(metrics, str):
        with pytest.raises(RewardError, match=metrics):
            measure()
        return
    assert measure() == metrics


def test_functions_of_the_table_are_of_seven_libraries() -> None:
    assert len(CASES) >= 40
    assert {"trl", "open-r1", "notebook", "trlx", "openrlhf", "verl", "verifiers"} <= {
        case.name.split(",")[0] for case in CASES
    }


TALK = [
    {"role": "system", "content": "Use tools."},
    {"role": "assistant", "content": "Hello."},  # which the policy did not write
    {"role": "user", "content": "17 * 23 ?"},
]
CALLS = [{"name": "multiply", "arguments": {"a": 17, "b": 23}}, {"error": "the call is no JSON"}]
TURNS = [
    {"role": "assistant", "content": "<tool_call>...</tool_call>", "tool_calls": CALLS},
    {"role": "tool", "content": "391", "name": "multiply"},
    {"role": "tool", "content": "error: the call is no JSON"},
    {"role": "assistant", "content": "It is 391."},
]
IN_TRL = [
    {
        "role": "assistant",
        "content": "<tool_call>...</tool_call>",
        "tool_calls": [{"type": "function", "function": {"name": "multiply", "arguments": {"a": 17, "b": 23}}}],
    },
    *TURNS[1:],
]
EPISODES: dict[str, Any] = {
    "messages": [[*TALK, *TURNS]], "prompt_messages": [TALK], "turns": [["<tool_call>...</tool_call>", "It is 391."]],
    "info": [{"end": "done", "tool_errors": 1}], "environment_rewards": [[0.0, 2.0]], "transcript": [TURNS],
}  # fmt: skip


def last_answers(completions: Any, answer: list[str], **kwargs: Any) -> list[float]:
    return [float(right in completion[-1]["content"]) for completion, right in zip(completions, answer, strict=True)]


def uses_tools(completions: Any, **kwargs: Any) -> list[float]:
    return [float(sum(len(message.get("tool_calls", ())) for message in completion)) for completion in completions]


def names_of_tools(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
    assert prompts == [TALK]
    assert completions == [IN_TRL]
    calls = [call["function"]["name"] for message in completions[0] for call in message.get("tool_calls", ())]
    return [float(calls == ["multiply"])]


def few_tool_messages(completions: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
    assert completion_ids == [[5, 6, 7]]  # what the policy sampled
    return [-float(sum(message["role"] == "tool" for message in completion)) for completion in completions]


def in_place_of_environments(completions: Any, info: Any, environment_rewards: Any, **kwargs: Any) -> list[float]:
    return [about["tool_errors"] + sum(rewards) for about, rewards in zip(info, environment_rewards, strict=True)]


def of_ours(messages: Any, prompt_messages: Any, turns: Any) -> list[float]:
    assert messages == [[*TALK, *TURNS]]
    return [float(len(messages[0]) - len(prompt_messages[0])) + len(turns[0])]


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        (last_answers, 1.0), (uses_tools, 1.0), (names_of_tools, 1.0), (few_tool_messages, -2.0),
        (in_place_of_environments, 3.0), (trl_reward(uses_tools), 1.0), (of_ours, 6.0),
    ],
)  # fmt: skip
def test_a_function_of_trl_receives_the_messages_of_an_episode_after_its_prompt(function: Any, reward: float) -> None:
    prompts = [Prompt("asked", (1,), {"answer": "391"}, TALK)]
    inputs = CallInputs.of(prompts, ["whole"], None, "", output_tokens=[[5, 6, 7]], further=EPISODES)
    (found,) = Call.of([UserFunction("reward", "reward", function)], inputs).wait()
    assert list(found) == [reward]
