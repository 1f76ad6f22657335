"""Tasks of verifiers. It imports the standard library and `verifiers` only, so that any Python runs it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from rlcore_verifiers.tasks import load_tasks, prompt_of, scored


class Verifiers:
    """A factory of episodes with the tasks of a taskset (`rlcore.protocols.EnvironmentFactory`).

    Args:
        options: those of `rlcore_verifiers.config.VerifiersConfig`, as plain values.
    """

    max_turns = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options, self._tasks = dict(options), dict[int, Any]()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    def make(self) -> TaskAnswer:
        """Return the environment of one episode."""
        return TaskAnswer(self)

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split, each with the index of a task: first those of `eval`, then those of `train`.

        Raises:
            ValueError: the taskset has no task to train on.
        """
        first, last = 0, self.options["eval_rows"]
        if split == "train":
            first, last = last, last + self.options["train_rows"]
        found = list(itertools.islice(load_tasks(self.options), first, last))
        self._tasks |= {task.data.idx: task for task in found}
        if split == "train" and not found:
            raise ValueError(f"the taskset {self.options['taskset']!r} has {first} tasks or fewer; lower eval_rows")
        return [{"task": task.data.idx} for task in found] or None

    def task(self, index: int) -> Any:
        """Return a task by its index."""
        if index not in self._tasks:
            self._tasks |= {
                task.data.idx: task for task in itertools.islice(load_tasks(self.options), index, index + 1)
            }
        return self._tasks[index]


class TaskAnswer:
    """One episode: a task, and the answer to it (`rlcore.protocols.Environment`).

    Args:
        factory: the factory that made it.
    """

    def __init__(self, factory: Verifiers) -> None:
        self._factory = factory
        self._task: Any = None

    async def reset(self, row: Mapping[str, Any], *, seed: int) -> list[dict[str, Any]]:  # noqa: ARG002  a task has none
        """Return the task's system prompt and prompt."""
        self._task = self._factory.task(int(row["task"]))
        return [{"role": each.role, "content": _text(each)} for each in prompt_of(self._task.data)]

    async def step(self, turn: Any) -> dict[str, Any]:
        """Score the answer with the task's rewards; metrics of the task are reported too."""
        trace = await asyncio.wait_for(scored(self._task, turn), self._factory.options["timeout_s"])
        rewards = {name: None if each is None else float(each.value) for name, each in trace.rewards.items()}
        if not rewards or None in rewards.values():
            raise RuntimeError(f"the task gave no reward: {rewards!r}")
        info = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        info["success"] = trace.reward >= self._factory.options["success_reward"]
        return {"reward": rewards, "done": True, "info": info}


def _text(message: Any) -> str:
    if not isinstance(message.content, str):
        raise TypeError(f"the prompt has a message that is no text: {message.content!r:.200}")
    return message.content
