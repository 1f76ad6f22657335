"""Tasks of verifiers: loaded, and scored without a harness. It imports the standard library and `verifiers` only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

MISSING = (
    "the package 'verifiers' is not installed in this Python ({python}): run pip install 'verifiers>=0.4,<0.5', or "
    "name a Python that has it in data.episodes.python, with data.episodes.isolate: process"
)


def load_tasks(options: Mapping[str, Any]) -> Any:
    """Return a taskset, which is iterated over its tasks.

    Args:
        options: those of `rlcore_verifiers.config.VerifiersConfig`, as plain values.

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
