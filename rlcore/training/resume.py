"""Save and restore a run: the contents of a checkpoint, and the final model in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rlcore.checkpoints.checkpoint import Checkpoint, Checkpoints, save_beside
from rlcore.checkpoints.identity import ACCEPTED, compare_plugins
from rlcore.checkpoints.manifest import FILE_NAME, read_manifest, write_manifest
from rlcore.checkpoints.run_folder import RunDir
from rlcore.checkpoints.state import capture_rng, divided_tensors, load_state, named_parts, restore_rng, save_state
from rlcore.errors import CheckpointError, ConfigError, Diverged, PluginError
from rlcore.logging import get_logger
from rlcore.plugins.observers import find_parallel_files
from rlcore.profiling import timed
from rlcore.protocols import Divisible, StagedFiles, Trainer
from rlcore.safe_text import shorten
from rlcore.settings import to_record
from rlcore.sharding import local_weights, streaming
from rlcore.training.evaluate import UNSCORED, eval_samplings, find_score, ranking
from rlcore.training.run import Run
from rlcore.types import Metrics

log = get_logger("resume")


class Saver:
    """Writes checkpoints of one run, on all ranks together, and restores from them.

    Args:
        run: the run.
        plugins: versions of the dists that take part.
        record: further fields of every manifest (`rlcore.checkpoints.identity`).

    Attributes:
        saved_at: step of the last checkpoint, -1 before the first.
        evaluated_at: step of the last evaluation, -1 before the first.
        score: value of the metric that ranks checkpoints, at that evaluation.
        rng: states of all random generators at the trainer's last yield.
    """

    def __init__(self, run: Run, plugins: dict[str, str], record: Mapping[str, Any]) -> None:
        self.run, self.plugins, self.record = run, plugins, record
        self.saved_at, self.evaluated_at = -1, -1
        self.score: float | None = None
        self.note_random_state()
        keep = run.config.checkpoint
        if keep.keep_best and not run.config.eval.every:
            raise ConfigError(
                f"checkpoint.keep_best = {keep.keep_best}: needs evaluations to rank checkpoints; set eval.every"
            )
        self._by_rows = any(updater.sharding.divides_rows for updater in run.updaters)
        in_parts = keep.format == "dcp" and self._by_rows
        self._parallel = find_parallel_files("checkpoint.format") if in_parts else None
        if keep.format == "dcp" and not in_parts:
            log.warning("checkpoint.format=dcp has no effect without run.shard=fsdp", shard=run.config.run.shard)
        self.checkpoints: Checkpoints | None = None
        if run.ranks.is_main:
            self.checkpoints = Checkpoints(run.dir / "checkpoints", keep.keep_last, keep.keep_best, ranking(keep)[1])
            self.checkpoints.remove_unfinished()
        if self._parallel:
            self._parallel.check_shared(run.dir, run.ranks)

    def note_random_state(self) -> None:
        """Record the states of the random generators, for the trainer's next step."""
        self.rng: dict[str, object] = capture_rng({"run": self.run.sampling.generator})

    def restore_random_state(self) -> None:
        """Reset the random generators to the last yield, whatever loggers, observers and evaluations drew since."""
        restore_rng(self.rng, {"run": self.run.sampling.generator}, rank=self.run.ranks.rank)

    def note_evaluation(self, metrics: Metrics) -> None:
        """Record the value of the metric that ranks checkpoints.

        Raises:
            ConfigError: `checkpoint.keep_best` is set and the evaluation yields no such metric, also not where rows
                have a score.
        """
        config = self.run.config
        keep, suffixes = config.checkpoint, [suffix for suffix, _ in eval_samplings(config.gen, config.eval.gen)]
        metric, mode = ranking(keep)
        self.evaluated_at, self.score = self.run.step, find_score(metrics, metric, suffixes, mode)
        is_unscored = metric.startswith("eval/reward/") and any(UNSCORED in name for name in metrics)
        if keep.keep_best and self.score is None and not is_unscored:
            raise ConfigError(
                f"checkpoint.metric = {metric!r}: the evaluation yields no such metric; it yields "
                f"{', '.join(sorted(metrics))}"
            )

    @timed("checkpoint")
    def checkpoint(self, trainer: Trainer) -> Path:
        """Write a checkpoint of the current step and return its folder.

        Every process calls this; rank 0 writes, and the others stream it the tensors of which they keep a part.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are unchanged.
            Diverged: a weight is not finite.
            PluginError: the trainer's `state_dict` returned no dict.
        """
        run = self.run
        run.ranks.note(f"the checkpoint of step {run.step}")
        self._check_finite(trainer)
        rng, own, policy = run.ranks.gather_to_main([self.rng]), trainer.state_dict(), trainer.policy()
        if not isinstance(own, dict):
            raise PluginError(
                f"trainer '{run.config.trainer.get('name')}': state_dict() returned {own!r:.80}; return a dict; "
                "`load_state_dict` receives it when the run is resumed"
            )
        state = {
            "trainer": own, "step": run.step, "elapsed_s": run.progress.elapsed_s, "metrics": run.metrics,
            "evaluated_at": self.evaluated_at, "score": self.score,
        }  # fmt: skip
        staged = self._stage(trainer, state)
        streamed = [] if staged and staged.has_state else divided_tensors(own)

        def fill(folder: Path) -> None:
            policy.save_pretrained(folder / "model")
            save_state(
                folder / "trainer.safetensors", state, whole=None if staged and staged.has_state else stream.take
            )
            if staged:
                staged.move(folder)
            save_state(folder / "rng.safetensors", {"ranks": rng})
            RunDir(run.dir).sync_logs()

        omitted = staged is not None and staged.has_weights
        with streaming(policy, streamed, here=run.ranks.is_main, omit_weights=omitted) as stream:
            written = run.ranks.on_main(lambda: stream.finishing(lambda: self._write(fill, staged)))
        if isinstance(written, CheckpointError):
            raise written
        self.saved_at = run.step
        return written

    def _write(self, fill: Callable[[Path], None], staged: StagedFiles | None) -> Path | CheckpointError:
        """Write the folder of a checkpoint on rank 0; an error is returned, to be raised on every rank."""
        run, entries = self.run, staged.entries if staged else None
        assert self.checkpoints is not None  # noqa: S101  for the type checker: this is rank 0
        try:
            manifest = {
                "config": to_record(run.config), "plugins": self.plugins, "world": run.ranks.world, **self.record,
                "start": start_checksum(run.dir),
            }  # fmt: skip
            score = self.score if self.evaluated_at == run.step else None
            return self.checkpoints.write(run.step, fill, manifest=manifest, score=score, entries=entries)
        except CheckpointError as error:
            return error
        finally:
            if staged:
                staged.remove()

    def _stage(self, trainer: Trainer, state: dict[str, object]) -> StagedFiles | None:
        """Write what each process keeps of weights and moments, if the processes write it in parallel."""
        if not self._parallel:
            return None
        run, policy = self.run, trainer.policy()
        weights = policy.divided_weights() if isinstance(policy, Divisible) else {}
        folder = run.dir / "checkpoints" / f".tmp-{run.step:08d}-parts"
        return self._parallel.stage(folder, run.ranks, weights=weights, state=named_parts(state))

    def restore(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        """Restore the trainer, the policy, the step and the random generators from `checkpoint`.

        Raises:
            CheckpointError: it does not fit the run; the message names the changes that `run.accept_changes` accepted.
        """
        try:
            self._restore(trainer, checkpoint)
        except CheckpointError as error:
            accepted = [each for each in self.record.get(ACCEPTED, ()) if each["step"] == checkpoint.step]
            if not accepted:
                raise
            changes = ", ".join(
                f"{each['name']} was {shorten(each['was'])}, is {shorten(each['now'])}" for each in accepted
            )
            raise type(error)(f"{error}. Of run.accept_changes, the run has changed: {changes}") from error

    def _restore(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        run, folder = self.run, checkpoint.path
        for line in compare_plugins(checkpoint.manifest):
            log.warning(line)
        trainer.policy().load_pretrained(folder / "model")
        state = load_state(folder / "trainer.safetensors", by_rows=self._by_rows)
        trainer.load_state_dict(state["trainer"])
        progress = run.progress
        progress.step, progress.elapsed_before_s, progress.metrics = state["step"], state["elapsed_s"], state["metrics"]
        self.evaluated_at, self.score = state["evaluated_at"], state["score"]
        if folder.resolve().parent == (run.dir / "checkpoints").resolve():
            self.saved_at = run.step
            if self.checkpoints is not None:
                self.checkpoints.trust(checkpoint)
        self.rng = self._random_state(load_state(folder / "rng.safetensors")["ranks"])
        log.info("resumed", step=run.step, checkpoint=str(folder))

    def _random_state(self, states: list[dict[str, object]]) -> dict[str, Any]:
        """Return this rank's state of those in a checkpoint.

        The run's generator is in the same state on all ranks. The global generators of a rank that the run did not have
        before are seeded as at the beginning of a run, which the manifest records (`record_processes`).
        """
        rank, first = self.run.ranks.rank, states[0]
        return states[rank] if rank < len(states) else {**self.rng, "generators": first["generators"]}

    def _check_finite(self, trainer: Trainer) -> None:
        """Raise if a weight is not finite, so that it never replaces a good model."""
        parts = {name: part.isfinite().all() for name, part in local_weights(trainer.policy())}
        finite = torch.stack([*parts.values()]).tolist() if parts else []  # one read from a device, not one per weight
        broken = [name for name, is_finite in zip(parts, finite, strict=True) if not is_finite]
        if found := self.run.ranks.gather(broken):
            raise Diverged(
                f"step {self.run.step}: weights of {found[0]} are not finite: training has diverged, and they are "
                f"not saved; the last checkpoint is of step {max(self.saved_at, 0)}"
            )

    @timed("checkpoint")
    def final(self, trainer: Trainer) -> None:
        """Write the trained model, what observers add to it, and a manifest to `model/` in the run's folder.

        An earlier one is replaced when it is complete.

        Raises:
            CheckpointError: it could not be written.
            Diverged: a weight is not finite.
        """
        self.run.ranks.note(f"the trained model after step {self.run.step}")
        self._check_finite(trainer)

        def save(folder: Path) -> None:
            trainer.policy().export(folder)
            self.run.observers.on_export(self.run, folder)
            write_manifest(folder, step=self.run.step, score=None, further={})

        ranks, place = self.run.ranks, self.run.dir / "model"
        with streaming(trainer.policy(), here=ranks.is_main, merged=True) as stream:
            ranks.on_main(lambda: stream.finishing(lambda: save_beside(save, place)))


def start_checksum(folder: Path) -> str | None:
    """Return the checksum of the model before training in the run's folder; None if the run saved none.

    Raises:
        CheckpointError: its manifest cannot be read.
    """
    start = RunDir(folder).start
    return str(read_manifest(start)["sha256"]) if (start / FILE_NAME).exists() else None
