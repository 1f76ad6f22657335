"""How far a policy moves, and whether steps are so small that it cannot arrive within the budget.

approx_kl, the KL of the policy before a round to that after it, is quadratic in the step: if all N rounds moved in the
same direction, the KL at the end would be N² times that of one round, which is the most that can be reached. It is
quadratic in the learning rate too; the change of a loss is linear in it.

Also in this file: watches the size of steps while a run goes on, and warns once if it cannot arrive within its
budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rlcore.logging import get_logger
from rlcore_report.health import judged_run as causes
from rlcore_report.health.judged_run import (
    ENOUGH,
    LARGEST_FACTOR,
    JudgedRun,
    Verdict,
    change_by,
    first_values,
    initial,
    median,
    noise,
)
from rlcore_report.metric_groups import Series

if TYPE_CHECKING:
    from rlcore.protocols import RunView

APPROX_KLS = ("policy/approx_kl", "policy/approx_kl_trained")
SAME_WEIGHTS = 1e-12
"""approx_kl below this is rounding: of a round that is learned from in one step, it compares equal weights."""
LEAST_REACH = 0.01
"""KL to the start, in nats a token, below which nothing is learned."""
LEAST_CHANGE = 0.01
"""Share of its first value by which a loss must change within the budget."""
LEAST_RESPONSE_REACH = 1.0
"""The same in nats a response: enough to turn an answer into another one, however long it is."""
LEAST_ROUNDS = 10
WARMING = 1.01
"""Factor by which the learning rate may exceed that of the middle of the steps so far; above it, it is warming up."""
EVALUATED = ("eval/loss", "eval/loss/total", "eval/loss/awac")
READ = frozenset({
    *APPROX_KLS, *EVALUATED, "eval/reward/mean", "kl/mean", "loss/total", "loss/policy", "lr", "policy/entropy",
    "response/length_mean", "reward/mean", "reward/max", "reward/std", "rft/kept", "distill/agreement",
})  # fmt: skip
"""The metrics that these rules read."""
EQUAL_GROUPS = 0.9
"""Share of groups without spread from which on there is nothing to learn from, whatever the learning rate is."""
SAME_OUTPUTS = 0.01
"""Share of the spread of rewards by which evaluations differ at most of which hardly an output has changed."""


def step_too_small(run: JudgedRun) -> Verdict | None:
    """Judge whether the run can arrive within its budget, by what its updates change; from ten steps on.

    Nothing is said of a run that only time limits, nor while the learning rate rises from 0.
    """
    if run.last_step < LEAST_ROUNDS or run.is_timed or _has_no_signal(run) or _is_warming_up(run):
        return None
    for judge in (_by_loss, _by_kl, _by_reward, _by_evaluations):
        found = judge(run)
        if found is not None:
            is_small, is_measured, evidence = found
            if is_small:
                return _verdict(run, evidence, is_measured=is_measured)
            return Verdict("Size of steps", "good", evidence)
    return None


def _verdict(run: JudgedRun, evidence: str, *, is_measured: bool) -> Verdict:
    """Return the verdict; a learning rate is advised only where the change of a step is measured and not noise."""
    if not is_measured:
        return Verdict(
            "Steps are too small", "bad", evidence,
            "Noise hides what the steps change, so no trend supports another rate: try three times the learning "
            "rate for a few steps, or make more steps. If the model already fits the data, nothing is left to learn.",
            causes.TOO_SMALL, 1,
        )  # fmt: skip
    return Verdict(
        "Steps are too small", "bad", evidence,
        "The run cannot arrive within its budget: raise the learning rate by ten and look again, or make many more "
        "steps. If the model already fits the data, nothing is left to learn.",
        causes.TOO_SMALL, 1, "trainer.optimizer.lr", run.rate(LARGEST_FACTOR),
    )  # fmt: skip


def _has_no_signal(run: JudgedRun) -> bool:
    """Return whether rewards are all equal, in all or within groups, or rates 0, which other rules name."""
    spread, rate = run.series("reward/std", count=1), run.series("lr", count=1)
    equal = run.series("group/zero_spread_fraction", count=1)
    if equal is not None and median(equal.late) >= EQUAL_GROUPS:
        return True
    return (spread is not None and not spread.known.max() > 0 and not run.is_supervised) or (
        rate is not None and (rate.known == 0).mean() > 0.1
    )


def _is_warming_up(run: JudgedRun) -> bool:
    """Return whether the learning rate is well above that of the middle of the steps so far."""
    rate = run.series("lr", count=1)
    return rate is not None and bool(rate.known[-1] > WARMING * rate.known[len(rate.known) // 2])


def _kl_of_round(run: JudgedRun) -> float | None:
    """Return the median KL of a round, in nats a token; None if it is unknown."""
    kl = run.series(*APPROX_KLS)
    if kl is None or median(kl.known) < SAME_WEIGHTS:
        return None
    return median(kl.known)


def movement(run: JudgedRun) -> float | None:
    """Return how far the policy has moved so far, in nats a token: its KL to the reference, or an upper bound of it."""
    kl, length = run.series("kl/mean"), run.series("response/length_mean", count=1)
    if kl is not None:
        return abs(median(kl.late)) / max(1.0, median(length.known) if length is not None else 1.0)
    of_round = _kl_of_round(run)
    return None if of_round is None else of_round * run.last_step**2


def _by_kl(run: JudgedRun) -> tuple[bool, bool, str] | None:
    of_round = _kl_of_round(run)
    if of_round is None:
        return None
    reach = of_round * run.total_steps**2
    evidence = f"approx_kl is {of_round:.2g} nats a token and round: {run.total_steps} rounds reach {reach:.2g} at most"
    length, measured = run.series("response/length_mean", count=1), run.series("kl/mean")
    of_response = reach * (max(1.0, median(length.known)) if length is not None else 1.0)
    if measured is not None:
        of_response = max(of_response, median(measured.late))
    return reach < LEAST_REACH and of_response < LEAST_RESPONSE_REACH and not _arrives(run), True, evidence


def _arrives(run: JudgedRun) -> bool:
    """Return whether the reward rises by a quarter of what is to be gained, as surely as two standard errors."""
    reward, highest = run.series("reward/mean"), run.series("reward/max")
    if reward is None or highest is None:
        return False
    line, error = change_by(reward, run.total_steps)
    return line > 2 * error and line > (median(highest.known) - float(np.median(reward.known[:ENOUGH]))) / 4


def _by_reward(run: JudgedRun) -> tuple[bool, bool, str] | None:
    """Extrapolate the reward, if no metric says how far the policy moves, and if the policy stays where it is."""
    reward, highest = run.series("reward/mean"), run.series("reward/max")
    if reward is None or highest is None or run.is_supervised or run.is_solved:
        return None
    if len(reward.known) < 2 * LEAST_ROUNDS:
        return None
    line, error = change_by(reward, run.total_steps)
    gap = median(highest.known) - float(np.median(reward.known[:ENOUGH]))
    most = line + 2 * error
    still = _stillness(run)
    if still is None:
        return None
    is_still, by = still
    kl = movement(run) if "kl/mean" in run.metrics else 0.0
    is_small = gap > 0 and most < gap / 2 and line < gap / 4 and is_still and (kl or 0.0) < LEAST_REACH
    return (
        is_small,
        line > 2 * error,
        (
            f"the line through reward/mean rises by {line:.2g} in {run.total_steps} rounds, and at most by {most:.2g}, "
            f"of {gap:.2g} to the best responses; {by}"
        ),
    )


def _stillness(run: JudgedRun) -> tuple[bool, str] | None:
    """Return whether the policy stays where it is, by its entropy or by evaluations; None if no metric shows it."""
    entropy, moves = run.series("policy/entropy"), evaluations_move(run)
    if entropy is not None and not moves:
        turn, blur = change_by(entropy, run.total_steps)
        is_still = abs(turn) - 2 * blur < 0.1 * initial(entropy)
        return is_still, f"the entropy is {median(entropy.late):.3g} at the end"
    if moves is not None:
        return not moves, "evaluations, which sample with the same random numbers, " + (
            "give other rewards" if moves else "give the same reward"
        )
    return None


def evaluations_move(run: JudgedRun) -> bool | None:
    """Return whether rewards of evaluations differ by a tenth of what is to be gained; None if there are none.

    All evaluations sample with the same random numbers: another reward means another policy, even if it is no better.
    """
    found, reward, highest = (
        run.series("eval/reward/mean", count=2),
        run.series("reward/mean"),
        run.metrics.get("reward/max"),
    )
    if found is None or reward is None or highest is None or not len(highest.known):
        return None
    return bool(np.ptp(found.known) > 0.1 * (median(highest.known) - median(reward.known[:ENOUGH])))


def _by_evaluations(run: JudgedRun) -> tuple[bool, bool, str] | None:
    """Compare the evaluations of a distillation on prompts, whose loss is that of other outputs in each step."""
    found, spread = run.series("eval/reward/mean", count=2), run.series("reward/std")
    if found is None or spread is None or "distill/agreement" not in run.metrics or not spread.late.max() > 0:
        return None
    if int(found.steps[-1] - found.steps[0]) < LEAST_ROUNDS:
        return None
    change = float(np.ptp(found.known))
    evidence = f"evaluations, which sample with the same random numbers, differ by {change:.2g} in eval/reward/mean"
    return change <= SAME_OUTPUTS * float(spread.known[0]), False, evidence


def _by_loss(run: JudgedRun) -> tuple[bool, bool, str] | None:
    loss = run.series("loss/total", count=LEAST_ROUNDS)
    if loss is None or not run.is_supervised or "rft/kept" in run.metrics:
        return None
    first, found = initial(loss), _of_evaluation(run)
    if not first > 1e-3 or (found is None and "distill/agreement" in run.metrics):
        return None
    line, error = change_by(loss, run.total_steps)
    name, change, doubt = found if found is not None else ("loss/total", line, 2 * error)
    learns_rows = abs(line) > LEAST_CHANGE * first + 3 * error
    share = (abs(change) + doubt) / first
    evidence = f"{name} changes by {change:.2g} in {run.total_steps} steps, {share:.2%} of its first value at most"
    return share < LEAST_CHANGE and not learns_rows, abs(change) > doubt, evidence


def _of_evaluation(run: JudgedRun) -> tuple[str, float, float] | None:
    """Return the name of the evaluation's loss, its change by the end, and no doubt: the rows are always the same."""
    for name in EVALUATED:
        series = run.series(name, count=2)
        if series is not None and int(series.steps[-1] - series.steps[0]) >= LEAST_ROUNDS:
            known = series.known
            scale = run.total_steps / int(series.steps[-1] - series.steps[0])
            widest = known[int(np.abs(known - known[0]).argmax())] - known[0]
            return name, float(widest) * scale, noise(first_values(series))
    return None


CHECKS = tuple(LEAST_ROUNDS * 2**i for i in range(8))
"""Steps since the start of the process at which the run is judged; the last one ends the watch."""


class StepSizeWatch:
    """Collects what `step_too_small` reads, and judges it after 10, 20, 40 ... steps, until it finds something.

    Args:
        total_steps: steps of the whole run; None if only time limits it, and then nothing is judged.
    """

    def __init__(self, total_steps: int | None) -> None:
        self.total_steps, self.num_steps = total_steps, 0
        self.is_done, self.is_recorded = total_steps is None, False
        self._points: dict[str, list[tuple[int, float]]] = {}

    def step(self, step: int, metrics: Mapping[str, float]) -> Verdict | None:
        """Add the metrics of a step; return the verdict if steps are found to be too small now, for the first time."""
        if self.is_done:
            return None
        self.num_steps += 1
        self.add(step, metrics)
        if self.num_steps not in CHECKS:
            return None
        found = step_too_small(JudgedRun(self._series(), planned=self.total_steps or 0))
        is_small = found is not None and found.level != "good"
        self.is_done = is_small or self.num_steps == CHECKS[-1]
        if self.is_done:
            self._points.clear()
        return found if is_small else None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics, such as those of an evaluation, without judging."""
        if not self.is_done:
            for name in metrics.keys() & READ:
                self._points.setdefault(name, []).append((step, float(metrics[name])))

    def _series(self) -> dict[str, Series]:
        found = {}
        for name, points in self._points.items():
            steps, values = zip(*points, strict=True)
            found[name] = Series(np.array(steps, dtype=np.int64), np.array(values, dtype=float))
        return found


def warn(run: RunView, verdict: Verdict) -> None:
    """Log a verdict, with the option to change."""
    get_logger("report").warning(
        "steps are too small to arrive within the run", evidence=verdict.evidence,
        set=f"{verdict.option}={verdict.value}" if verdict.option else "more steps", step=run.step,
    )  # fmt: skip
