"""The sampler of an asynchronous run: it returns rounds that were begun in earlier steps.

Also in this file: rounds that are sampled ahead: what was asked for, under which weights, and what has arrived; the
trainer of an asynchronous run: it submits rounds between steps and keeps them in its state.
"""

from __future__ import annotations

import inspect
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import attrs
import torch

from rlcore.errors import ConfigError, RLCoreError
from rlcore.logging import get_logger
from rlcore.plugins.registry import registries
from rlcore.profiling import phase
from rlcore.protocols import Policy, SamplerTraits, TrainerTraits
from rlcore.sampling import takes
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore.types import Metrics, Prompt, Row, State, Trajectories
from rlcore_engines.asynchronous.protocols import AsynchronousSampler, ForeseeingTrainer
from rlcore_engines.asynchronous.threads import ThreadedSampler

if TYPE_CHECKING:
    from rlcore.training import Run

Key = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Token ids of the prompts, and the seeds of the rows."""


def key_of(prompts: Sequence[Prompt], seeds: Sequence[int]) -> Key:
    """Return what a round is found by: equal prompts with equal seeds are the same round."""
    return tuple(tuple(prompt.tokens) for prompt in prompts), tuple(int(seed) for seed in seeds)


@attrs.define(eq=False)
class Ahead:
    """A round that was submitted, or that a checkpoint contained.

    Attributes:
        key: what it is found by.
        version: the number of steps after which the weights were those that sample it.
        fetch: waits for its rows and returns them; only called once it returns.
    """

    key: Key
    version: int
    fetch: Callable[[], Trajectories]
    _rows: Trajectories | None = None

    @property
    def rows(self) -> Trajectories:
        """Return the rows, waiting for them if they have not arrived; they have a column `versions`, long[B]."""
        if self._rows is None:
            rows = self.fetch()
            versions = torch.full((len(rows),), self.version, device=rows.tokens.device)
            self._rows = rows.with_columns(versions=versions)
        return self._rows

    def record(self) -> dict[str, Any]:
        """Return the round as plain values and tensors, for a checkpoint; waits for the rows."""
        prompts, seeds = self.key
        return {
            "prompts": [list(tokens) for tokens in prompts], "seeds": list(seeds), "version": self.version,
            "rows": attrs.asdict(self.rows.to("cpu"), recurse=False),
        }  # fmt: skip


class Restored:
    """The rounds of a checkpoint, by the rows of all processes.

    Args:
        records: what `Ahead.record` returned on every process.
    """

    def __init__(self, records: Sequence[Row] = ()) -> None:
        self._whole: dict[Key, Ahead] = {}
        self._rows: dict[tuple[tuple[int, ...], int], tuple[Trajectories, int]] = {}
        for record in records:
            key = tuple(map(tuple, record["prompts"])), tuple(record["seeds"])
            rows = Trajectories(**record["rows"])
            self._whole[key] = Ahead(key, record["version"], partial(_given, rows))
            for number, place in enumerate(zip(*key, strict=True)):
                self._rows[place] = rows, number

    def find(self, key: Key, device: torch.device) -> Ahead | None:
        """Return a round; None if the checkpoint did not have all of its rows.

        Rows that other processes sampled before are found too, in a run of another number of processes.
        """
        places = list(zip(*key, strict=True))
        if not all(place in self._rows for place in places):
            return None
        if key in self._whole:
            found = self._whole[key]
            return Ahead(key, found.version, lambda: found.fetch().to(device))
        parts = [part.rows(torch.tensor([number])) for part, number in map(self._rows.__getitem__, places)]
        version = int(parts[0]["versions"][0])
        return Ahead(key, version, lambda: Trajectories.concat(parts).to(device))


def _given(rows: Trajectories) -> Trajectories:
    return rows


TOKEN_VERSIONS = "token_versions"  # noqa: S105  (a column, not a password)
"""Column of a sampler that continues responses with new weights: which weights sampled each token."""
log = get_logger("asynchronous")


class AheadSampler:
    """Returns the rows of rounds that were submitted before; whatever else is asked for is sampled at once.

    A round is found by its prompts and the seeds of its rows, so that a trainer receives the rows that it would have
    received, but from weights that are up to `run.asynchronous` steps old. Attributes are those of the sampler inside.

    Args:
        sampler: the sampler of the run.
        name: its name, for errors.
        config: the configuration of the run, as the hook received it.
    """

    exact_logprobs = False
    """Its log-probs are those of earlier weights."""
    lags = True
    """Tells trainers that other log-probs than the policy's are no sign of a defect."""

    def __init__(self, sampler: Any, name: str, config: TrainConfig) -> None:
        self.__wrapped__, self._name, self.config = sampler, name, config
        self.__signature__ = inspect.signature(sampler)
        is_able = isinstance(sampler, AsynchronousSampler)
        self._engine: Any = sampler if is_able else ThreadedSampler(sampler)
        self._own_thread = None if is_able else cast("ThreadedSampler", self._engine)
        self._one_version = SamplerTraits(sampler).one_version
        self.run: Any = None
        self._ahead: list[Ahead] = []
        self._restored = Restored()
        self._ages: list[int] = []
        self._renewed: list[float] = []
        self._steps: dict[int, int] = {}
        self._idle_s = 0.0

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def open(self, run: Run) -> None:
        """Check that the run can be asynchronous, and prepare the sampler inside.

        Raises:
            ConfigError: it cannot; the message says why.
        """
        self.run = run
        check(run, self.__wrapped__, self._name)
        SamplerTraits(self.__wrapped__).open(run)

    def close(self) -> None:
        """Forget what has not been collected, and close the sampler inside."""
        self._ahead = []
        if self._own_thread is not None:
            self._own_thread.close()
        SamplerTraits(self.__wrapped__).close()

    def __call__(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, **options: Any
    ) -> Trajectories:
        """Return the rows of these prompts and seeds if they were submitted, and sample them now otherwise."""
        ahead = self._find(key_of(prompts, options["row_seeds"])) if "row_seeds" in options and self._ahead else None
        if ahead is None or sampling is not self.run.config.gen:
            if self._one_version:
                self.drain()
            return self._in_steps(self._engine(policy, prompts, sampling, **options))
        rows = self._wait(ahead)
        self._ahead.remove(ahead)
        self._ages.append(self.run.step - ahead.version)
        if TOKEN_VERSIONS in rows:
            later = rows[TOKEN_VERSIONS][rows.action_mask] > ahead.version
            self._renewed.append(later.float().mean().item() if later.numel() else 0.0)
        if options.get("on_batch") is not None:
            options["on_batch"](list(range(len(rows))), rows)
        return rows

    def begin_step(self, rounds: Sequence[tuple[Sequence[Prompt], int]]) -> None:
        """Submit those of the next rounds that are not under way yet.

        Args:
            rounds: those of this step and of the next `run.asynchronous` ones, as `run.rollout` receives them.
        """
        own = [(self.run.sampling.dealt(prompts, group=group), group) for prompts, group in rounds]
        wanted = {key: prompts for key, (prompts, _) in zip(self._keys(own), own, strict=True) if prompts}
        self._ahead = [each for each in self._ahead if each.key in wanted]
        policy = self.run.models.policy
        self._steps.setdefault(policy.version, self.run.step)
        for key, prompts in wanted.items():
            if self._find(key) is None:
                self._ahead.append(self._restored.find(key, policy.device) or self._submit(policy, key, prompts))
        self._restored = Restored()
        self._ages, self._renewed, self._idle_s = [], [], 0.0

    def end_step(self) -> Metrics:
        """Wait for what was submitted if the sampler's workers have one version of the weights; return the metrics.

        Returns:
            `time/idle_s`, the seconds of the step in which this process waited for rows, and, if it received any,
            `age/mean` and `age/max`, how many steps old the weights were that began to sample them; with a sampler
            that continues responses with new weights also `age/renewed_frac`, the share of tokens which later weights
            sampled than those that began their round.
        """
        self._steps.setdefault(self.run.models.policy.version, self.run.step + 1)  # of an evaluation after this step
        if self._one_version:
            self.drain()
            self.run.ranks.wait()
        ages = {"age/mean": sum(self._ages) / len(self._ages), "age/max": float(max(self._ages))} if self._ages else {}
        if self._renewed:
            ages["age/renewed_frac"] = sum(self._renewed) / len(self._renewed)
        return {"time/idle_s": self._idle_s, **ages}

    def drain(self) -> None:
        """Wait for every row that was submitted."""
        for each in self._ahead:
            self._wait(each)

    def state_dict(self) -> State:
        """Return the rounds that were submitted, of all processes, once their rows have arrived; collective."""
        records = []
        for each in self._ahead:
            try:
                self._wait(each)
                records.append(each.record())
            except RLCoreError as error:  # raised again where the trainer asks for the round
                log.warning(
                    "a round is missing in the checkpoint; a resumed run samples it anew", error=str(error)[:300]
                )
        return {"rounds": self.run.ranks.gather(records)}

    def load_state_dict(self, state: State) -> None:
        """Restore the rounds that `state_dict` returned."""
        self._ahead, self._restored = [], Restored(state["rounds"])

    def _find(self, key: Key) -> Ahead | None:
        return next((each for each in self._ahead if each.key == key), None)

    def _wait(self, ahead: Ahead) -> Trajectories:
        begun = time.perf_counter()
        with phase("awaiting"):
            rows = ahead.rows
        self._idle_s += time.perf_counter() - begun
        return rows

    def _keys(self, rounds: Sequence[tuple[Sequence[Prompt], int]]) -> list[Key]:
        """Return what the rounds will be found by: their seeds are those that the run draws next."""
        sampling = self.run.sampling
        state = sampling.generator.get_state()
        keys = [key_of(prompts, sampling.row_seeds(len(prompts), group=group)) for prompts, group in rounds]
        sampling.generator.set_state(state)
        return keys

    def _submit(self, policy: Policy, key: Key, prompts: Sequence[Prompt]) -> Ahead:
        sampling, seeds = self.run.sampling, list(key[1])
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(seeds[0]), "row_seeds": seeds}
        if sampling.logit_mask is not None:
            options["logit_mask"] = sampling.logit_mask
        with torch.no_grad():
            handle = self._engine.submit(policy, prompts, self.run.config.gen, **options)
        return Ahead(key, self.run.step, partial(self._collect, handle))

    def _collect(self, handle: Any) -> Trajectories:
        return self._in_steps(self._engine.collect(handle))

    def _in_steps(self, rows: Trajectories) -> Trajectories:
        """Return rows whose `token_versions` are numbers of steps, in place of versions of the policy.

        Weights in the middle of a step, which a round sampled at once may have, count as those at its beginning.
        """
        if TOKEN_VERSIONS not in rows:
            return rows
        steps = self._steps or {0: self.run.step}  # an evaluation before the first step
        versions, mask, known = rows[TOKEN_VERSIONS], rows.action_mask, sorted(steps)
        places = [max(0, bisect_right(known, version) - 1) for version in versions[mask].tolist()]
        found = torch.tensor([steps[known[place]] for place in places], device=versions.device)
        return rows.with_columns(**{TOKEN_VERSIONS: torch.zeros_like(versions).masked_scatter(mask, found)})


def check(run: Any, sampler: Any, name: str) -> None:
    """Check that rounds of a run can be sampled ahead, before its model is built.

    Raises:
        ConfigError: they cannot.
    """
    asked = f"run.asynchronous = {run.config.run.asynchronous}"
    trainer = run.config.trainer.get("name")
    target: object = registries().trainers.get(trainer).target()
    if not isinstance(target, type) or not issubclass(target, ForeseeingTrainer):
        raise ConfigError(
            f"{asked}: trainer '{trainer}' has no method upcoming(steps), with which it tells its next prompts and "
            "that it may learn from samples of earlier weights: leave run.asynchronous at 0, or choose ppo, grpo or rft"
        )
    if not takes(sampler, "row_seeds"):
        raise ConfigError(
            f"{asked}: sampler '{name}' has no parameter row_seeds, so that what it samples depends on the order of "
            "calls: leave run.asynchronous at 0, or choose another sampler"
        )
    if run.data.inputs.environment is not None:
        raise ConfigError(
            f"{asked}: episodes of data.environment are played turn by turn with the present weights; leave "
            "run.asynchronous at 0"
        )
    if run.config.run.shard != "none":
        raise ConfigError(
            f"{asked}: needs the whole model on every process, and run.shard = {run.config.run.shard!r} divides it: "
            "set one of them to its default"
        )
    if run.config.trainer.get("is_correction") == "off" and not TrainerTraits(target).off_policy:
        log.warning(
            "samples of earlier weights are not corrected: set trainer.is_correction=token_truncate", trainer=trainer
        )


KEY = "asynchronous"
"""Key of the rounds in a trainer's state."""


class AheadTrainer:
    """Calls a trainer (`rlcore.protocols.Trainer`), and before each of its steps submits the rounds that follow.

    Attributes are those of the trainer inside.

    Args:
        trainer: a `ForeseeingTrainer`.
        sampler: the sampler of its run.
    """

    def __init__(self, trainer: Any, sampler: AheadSampler) -> None:
        self.__wrapped__, self._sampler, self._run = trainer, sampler, sampler.run

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def steps(self) -> Iterator[Metrics]:
        """Yield the trainer's metrics with those of the age of its samples."""
        inner = self.__wrapped__.steps()
        while True:
            self._sampler.begin_step(self.__wrapped__.upcoming(self._reach()))
            try:
                metrics = next(inner)
            except StopIteration:
                return
            yield metrics | self._sampler.end_step()

    def _reach(self) -> int:
        """Return the number of steps whose rounds are submitted by now, the next one included.

        A run that ends with a checkpoint may be resumed for more steps, whose rounds it has then sampled as if it had
        not ended.
        """
        reach: int = self._run.config.run.asynchronous + 1
        if self._run.total_steps is None or self._run.config.checkpoint.at_end:
            return reach
        left: int = self._run.total_steps - self._run.step
        return max(1, min(reach, left))

    def state_dict(self) -> State:
        """Return the trainer's state and the rounds that were submitted; waits for them."""
        state = self.__wrapped__.state_dict()
        return {**state, KEY: self._sampler.state_dict()} if isinstance(state, dict) else state

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned, or one of a run that was not asynchronous."""
        state = dict(state)
        rounds = state.pop(KEY, None)
        self.__wrapped__.load_state_dict(state)
        if rounds is not None:
            self._sampler.load_state_dict(rounds)
