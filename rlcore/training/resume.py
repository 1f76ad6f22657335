"""Put a run on disk and bring it back: what a checkpoint holds, and what the run's folder ends with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlcore.checkpoints.checkpoint import Checkpoint, Checkpoints
from rlcore.checkpoints.manifest import sync_folder
from rlcore.checkpoints.provenance import compare_plugins
from rlcore.checkpoints.rng import capture_rng, restore_rng
from rlcore.checkpoints.state import load_state, save_state
from rlcore.config import unstructure
from rlcore.errors import CheckpointError, ConfigError, Diverged
from rlcore.logging import get_logger
from rlcore.profiling import timed
from rlcore.protocols import Trainer
from rlcore.training.check_trainer import check_state
from rlcore.training.eval_grid import eval_samplings, find_score
from rlcore.training.run import Run
from rlcore.types import Metrics

log = get_logger("resume")


class Saver:
    """Write checkpoints of one run, all ranks together, and restore from them.

    Attributes:
        saved_at: step of the last checkpoint, -1 before the first.
        evaluated_at: step of the last evaluation, -1 before the first.
        score: what that evaluation said of the metric that tells the best.
        rng: state of all random generators when the trainer last yielded.
    """

    def __init__(self, run: Run, plugins: dict[str, str]) -> None:
        self.run, self.plugins = run, plugins
        self.saved_at, self.evaluated_at = -1, -1
        self.score: float | None = None
        self.note_random_state()
        keep = run.config.checkpoint
        if keep.keep_best and not run.config.eval.every:
            raise ConfigError(
                f"checkpoint.keep_best = {keep.keep_best}: no evaluation tells which are best; set eval.every"
            )
        self.checkpoints: Checkpoints | None = None
        if run.ranks.is_main:
            self.checkpoints = Checkpoints(run.dir / "checkpoints", keep.keep_last, keep.keep_best, keep.mode)

    def note_random_state(self) -> None:
        """Remember the random numbers the trainer goes on with, whatever is drawn before it does."""
        self.rng: dict[str, Any] = capture_rng({"run": self.run.generator})

    def give_random_state_back(self) -> None:
        """Undo what loggers, observers, evaluations and the user's metrics drew since the last yield."""
        restore_rng(self.rng, {"run": self.run.generator})

    def note_evaluation(self, metrics: Metrics) -> None:
        """Remember the metric that tells good checkpoints from better ones.

        Raises:
            ConfigError: the best are to be kept by a metric that the evaluation does not yield.
        """
        config = self.run.config
        keep, suffixes = config.checkpoint, [suffix for suffix, _ in eval_samplings(config.gen, config.eval.gen)]
        self.evaluated_at, self.score = self.run.step, find_score(metrics, keep.metric, suffixes, keep.mode)
        if keep.keep_best and self.score is None:
            raise ConfigError(
                f"checkpoint.metric = {keep.metric!r}: the evaluation yields no such metric; it yields "
                f"{', '.join(sorted(metrics))}"
            )

    @timed("checkpoint")
    def checkpoint(self, trainer: Trainer) -> Path:
        """Write a checkpoint of the present step; return its folder.

        Raises:
            CheckpointError: it could not be written; the earlier ones are untouched.
            Diverged: a weight is not a finite number.
        """
        run = self.run
        self._check_finite(trainer)
        rng = run.ranks.gather([self.rng])
        own = trainer.state_dict()
        check_state(str(run.config.trainer.get("name")), own)
        state = {
            "trainer": own, "step": run.step, "elapsed_s": run.elapsed_s, "metrics": run.metrics,
            "evaluated_at": self.evaluated_at, "score": self.score,
        }  # fmt: skip
        manifest = {"config": unstructure(run.config), "plugins": self.plugins, "world": run.ranks.world}
        score = self.score if self.evaluated_at == run.step else None

        def fill(folder: Path) -> None:
            trainer.policy().save_pretrained(folder / "model")
            save_state(folder / "trainer.safetensors", state)
            save_state(folder / "rng.safetensors", {"ranks": rng})

        def write() -> Path | CheckpointError:
            assert self.checkpoints is not None  # noqa: S101  for the type checker: this is rank 0
            try:
                return self.checkpoints.write(run.step, fill, manifest=manifest, score=score)
            except CheckpointError as error:
                return error

        outcome = run.ranks.on_main(write)
        if isinstance(outcome, CheckpointError):
            raise outcome
        self.saved_at = run.step
        return outcome

    def restore(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        """Take up the run where `checkpoint` left it."""
        run, folder = self.run, checkpoint.path
        for line in compare_plugins(checkpoint.manifest):
            log.warning(line)
        trainer.policy().load_pretrained(folder / "model")
        state = load_state(folder / "trainer.safetensors")
        trainer.load_state_dict(state["trainer"])
        run.step, run.elapsed_before_s, run.metrics = state["step"], state["elapsed_s"], state["metrics"]
        self.evaluated_at, self.score = state["evaluated_at"], state["score"]
        if folder.resolve().parent == (run.dir / "checkpoints").resolve():
            self.saved_at = run.step
        states: list[Any] = load_state(folder / "rng.safetensors")["ranks"]
        if len(states) == run.ranks.world:
            self.rng = states[run.ranks.rank]
        else:
            run.generator.manual_seed(run.generator.initial_seed() * 1_000_003 + run.step)
            self.note_random_state()
            log.warning("another number of processes: random numbers start anew", then=len(states), now=run.ranks.world)
        log.info("resumed", step=run.step, checkpoint=str(folder))

    def _check_finite(self, trainer: Trainer) -> None:
        """Keep weights that are no numbers from replacing what was good."""
        for name, weight in trainer.policy().module.named_parameters():
            if not bool(weight.detach().isfinite().all()):
                raise Diverged(
                    f"step {self.run.step}: {name} holds weights that are not finite: training has diverged, and they "
                    f"are not saved; the last checkpoint is of step {max(self.saved_at, 0)}"
                )

    @timed("checkpoint")
    def final(self, trainer: Trainer) -> None:
        """Write the trained model to `model/` in the run's folder, replacing an earlier one only when it is whole.

        Raises:
            CheckpointError: it could not be written.
            Diverged: a weight is not a finite number.
        """
        self._check_finite(trainer)
        self.run.ranks.on_main(lambda: save_beside(trainer.policy().export, self.run.dir / "model"))


def save_beside(save: Any, place: Path) -> None:
    """Have `save(folder)` fill a folder beside `place`, and give it that name once it is whole.

    Raises:
        CheckpointError: it could not be written; what was at `place` before is untouched.
    """
    beside, old = place.with_name(f".tmp-{place.name}"), place.with_name(f".old-{place.name}")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        save(beside)
        sync_folder(beside)
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        beside.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(f"{place}: the model could not be written: {error}; free some space") from error
