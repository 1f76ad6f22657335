"""Tasks of verifiers. It imports the standard library and `verifiers` only, so that any Python runs it.

Also in this file: tasks of verifiers: loaded, and scored without a harness. It imports the standard library and
`verifiers` only.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore.types import Options, Row

MISSING = (
    "the package 'verifiers' is not installed in this Python ({python}): run pip install 'verifiers>=0.4,<0.5', or "
    "name a Python that has it in data.episodes.python, with data.episodes.isolate: process"
)


def load_tasks(options: Options) -> Any:
    """Return a taskset, which is iterated over its tasks.

    Args:
        options: those of `rlcore_environments.verifiers.config.VerifiersConfig`, as plain values.

    Raises:
        ImportError: `verifiers` is not installed, or another version of it.
        ValueError: the tasks need tools, a container or an environment of their own.
    """
    try:
        from verifiers.v1.utils import loaders
    except ImportError as error:
        raise ImportError(MISSING.format(python=sys.executable)) from error
    name = options["taskset"]
    given = loaders.taskset_config_type(name).model_validate({**options["options"], "id": name})
    taskset = loaders.load_taskset(given)
    kind, env = type(taskset).task_type(), loaders.environment_class(name).__name__
    asked = {
        "tools": bool(taskset.toolsets(given) or kind.toolsets(given.task)),
        "a container": kind.NEEDS_CONTAINER,
        f"the environment {env}": env != "SingleAgentEnv",
    }
    if needs := [what for what, is_needed in asked.items() if is_needed]:
        raise ValueError(
            f"tasks of {name!r} need {' and '.join(needs)}; only tasks of a single answer can be trained on"
        )
    return taskset


def prompt_of(data: Any) -> list[Any]:
    """Return the messages of a task's data."""
    from verifiers.v1 import SystemMessage, UserMessage

    prompt = [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or ())
    return [*([SystemMessage(content=data.system_prompt)] if data.system_prompt else []), *prompt]


async def scored(task: Any, turn: Any) -> Any:
    """Return the trace of an answer, with its rewards and metrics."""
    from verifiers import v1 as vf
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.runtimes import provision_runtime
    from verifiers.v1.state import state_cls

    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    trace = vf.Trace(task=about, state=state_cls(type(task))(), agent=vf.AgentInfo(config=vf.AgentConfig()))
    async with provision_runtime(vf.SubprocessConfig()) as runtime:
        await task.setup(trace, runtime)
        message = vf.AssistantMessage(content=turn.text)
        end = "length" if turn.truncated else "stop"
        prepare_turn(trace, prompt_of(task.data)).commit(
            vf.Response(id="answer", created=0, model="policy", message=message, finish_reason=end)
        )
        await task.finalize(trace, runtime)
        await task.score(trace, runtime)
    return trace


class Verifiers:
    """A factory of episodes with the tasks of a taskset (`rlcore.protocols.EnvironmentFactory`).

    Args:
        options: those of `rlcore_environments.verifiers.config.VerifiersConfig`, as plain values.
    """

    max_turns = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._tasks, self._ordered = dict[tuple[str, Any], Any](), list[Any]()
        self._taskset: Any = None
        self._unread: Iterator[Any] = iter(())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.options,)

    def make(self) -> TaskAnswer:
        """Return the environment of one episode."""
        return TaskAnswer(self)

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split: the first tasks are those of `eval`, and the next ones those of `train`.

        Tasks to train on with the prompt of one to evaluate on are left out.

        Raises:
            ValueError: the taskset has no task to train on.
        """
        count = self.options["eval_rows"]
        most = count + self.options["train_rows"]
        while len(self._ordered) < most and self._read(most):
            pass
        held_out, rest = self._ordered[:count], self._ordered[count:most]
        if split == "train":
            seen = {_question(task) for task in held_out}
            if not rest:
                raise ValueError(f"the taskset {self.options['taskset']!r} has {count} tasks or fewer; lower eval_rows")
            if not (rest := [task for task in rest if _question(task) not in seen]):
                raise ValueError("every task to train on has the prompt of one to evaluate on; lower eval_rows")
        return [{"task": each.data.idx, "key": each.key} for each in (rest if split == "train" else held_out)] or None

    def task(self, row: Row) -> Any:
        """Return the task with the row's `key`, or else with its index, wherever the taskset has it.

        Raises:
            LookupError: there is none.
        """
        name, value = ("key", row["key"]) if row.get("key") else ("index", int(row["task"]))
        most = max(self.options["eval_rows"] + self.options["train_rows"], value + 1 if name == "index" else 0)
        while (name, value) not in self._tasks and self._read(most):
            pass
        if (name, value) not in self._tasks:
            raise LookupError(
                f"the taskset {self.options['taskset']!r} has no task with the {name} {value!r}; if it returns other "
                "tasks each time it is loaded, give its shuffle a seed"
            )
        return self._tasks[name, value]

    def _read(self, most: int) -> bool:
        """Read another task, and return whether there was one; an endless taskset has so many."""
        if self._taskset is None:
            self._taskset = load_tasks(self.options)
            self._unread = iter(self._taskset)
        if not self._taskset.bounded and len(self._ordered) >= most:
            return False
        if (task := next(self._unread, None)) is not None:
            self._tasks["index", task.data.idx] = self._tasks["key", task.key] = task
            self._ordered.append(task)
        return task is not None


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
        self._task = self._factory.task(row)
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


def _question(task: Any) -> str:
    return repr([(each.role, each.content) for each in prompt_of(task.data)])


def _text(message: Any) -> str:
    if not isinstance(message.content, str):
        raise TypeError(f"the prompt has a message that is no text: {message.content!r:.200}")
    return message.content
