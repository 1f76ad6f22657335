"""A taskset of verifiers, as a package of somebody else's: sums, with a reward, a metric and a failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace) -> float:
        if trace.last_reply == "raise":
            raise ArithmeticError("no such sum")
        return float(trace.last_reply.strip() == str(self.data.answer))

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    count: int = 12
    system: str | None = None
    modulus: int = 1000
    view: str = ""


class Sums(vf.Taskset[SumTask, SumsConfig]):
    @property
    def bounded(self) -> bool:
        return self.config.count < 10**9

    def __iter__(self) -> Iterator[SumTask]:
        if self.config.view == "reversed":
            return iter(list(super().__iter__())[::-1])
        return (task for task in super().__iter__() if self.config.view != "even" or task.data.answer % 4 == 0)

    def load(self) -> Iterable[SumTask]:
        for i in (place % self.config.modulus for place in range(self.config.count)):
            yield SumTask(
                SumData(prompt=f"{i} plus {i} is", answer=2 * i, system_prompt=self.config.system), self.config.task
            )


__all__ = ["Sums"]
