"""The law about options of a trainer that are changed when a run is resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from rlcore.checkpoints.identity import ACCEPTED
from rlcore.config import load_yaml
from rlcore.errors import RLCoreError
from rlcore_testing.law import LawBroken, Subject, law
from rlcore_testing.rig.compare_runs import difference, steps, weights
from rlcore_testing.rig.recorder import numeric_options, other_values, with_option
from rlcore_testing.rig.runs import Tiny, run

BEFORE, IN_ALL, LONG = 2, 4, 10
"""Steps before the run is resumed with another option; in all; and in all if the option has changed none of them."""
RESUMED = {"checkpoint": {"at_end": True}, "run": {"resume": "auto", "accept_changes": ["trainer"]}}


def _has_options(subject: Subject) -> bool:
    """Return whether it has options."""
    return subject.config() is not None


@law("trainers", when=_has_options)
def an_accepted_change_has_its_effect(subject: Subject) -> None:
    """A run that is resumed with another value of an option, accepted by `run.accept_changes`, trains with that value.

    An option that changes a run from its beginning also changes the resumed run, or the change is refused with the name
    of the option. This is checked of each option that is a number or a choice.
    """
    with TemporaryDirectory() as root:
        changes = Changes(subject, root)
        for path in changes.options:
            changes.check(path)


class Changes:
    """Runs of a trainer that are resumed, each with another value of one option.

    Attributes:
        options: other values of each option that is a number or a choice.
        silent: options that also change nothing in a run from its beginning.
        refused: options whose change is refused → the reason.
    """

    def __init__(self, subject: Subject, root: str) -> None:
        self.base = Tiny.of(
            subject, root, name="base", steps=BEFORE, model="gpt2", sections={"checkpoint": {"at_end": True}}
        )
        cls, options = type(subject.config()), self.base.options
        self.options = {
            path: other_values(cls, options, path, tp, value)
            for path, tp, value in numeric_options(subject.config())
        }  # fmt: skip
        self.silent: list[str] = []
        self.refused: dict[str, str] = {}
        self._number, self._controls = 0, dict[int, Tiny]()
        run(self.base)

    def check(self, path: str) -> None:
        """Check that a resumed run differs if an option has another value, unless no run does.

        Raises:
            LawBroken: the option is ignored, or the run fails with an error that does not name the option.
        """
        ignored: list[object] = []
        for num_steps in (IN_ALL, LONG):
            values, ignored = ignored or self.options[path], []
            for value in values:
                outcome = self._outcome(path, value, num_steps)
                if outcome in {"differs", "refused"}:
                    return
                if outcome == "ignored":
                    ignored.append(value)
            if not ignored:
                self.silent.append(path)
                return
        raise LawBroken(
            f"expected a run that is resumed with trainer.{path} = {ignored[0]!r} to train with it, as a run that has "
            "it from the beginning does; it trains as before. In load_state_dict, restore what the run has learned or "
            "counted, and leave what the options set; or refuse the change with a CheckpointError"
        )

    def _outcome(self, path: str, value: object, num_steps: int) -> str:
        """Return what another value does: differs, refused, ignored, silent, or invalid from the beginning too."""
        control, options = self._control(num_steps), with_option(self.base.options, path, value)
        resumed = attrs.evolve(self._copied(), steps=num_steps, options=options)
        error = _error_of(resumed)
        if error is None and _has_other_weights(control, resumed):
            self._check_recorded(resumed, path)
            return "differs"
        whole = attrs.evolve(self.base, name=f"whole-{self._number}", steps=num_steps, options=options)
        if _error_of(whole) is not None:
            return "invalid"
        if error is not None:
            if path.rpartition(".")[2] not in str(error):
                raise LawBroken(
                    f"expected the refusal of another trainer.{path} in a resumed run to name it; the error is: {error}"
                )
            self.refused[path] = str(error)
            return "refused"
        if _has_other_weights(control, whole):
            return "ignored"
        if _has_other_metrics(control, resumed):
            return "differs"
        return "ignored" if _has_other_metrics(control, whole) else "silent"

    def _control(self, num_steps: int) -> Tiny:
        """Return the run that is resumed without a change."""
        if num_steps not in self._controls:
            self._controls[num_steps] = attrs.evolve(self._copied(), steps=num_steps)
            run(self._controls[num_steps])
        return self._controls[num_steps]

    def _copied(self) -> Tiny:
        """Return a resumed run in a copy of the folder of the first steps."""
        self._number += 1
        copy = attrs.evolve(self.base, name=f"resumed-{self._number}", sections=RESUMED)
        shutil.copytree(self.base.dir, copy.dir)
        return copy

    def _check_recorded(self, resumed: Tiny, path: str) -> None:
        """Raise LawBroken unless config.yaml and the checkpoint have the value with which the run goes on."""
        expected: Any = load_yaml(resumed.dir / "config.yaml")["trainer"]
        for name in path.split("."):
            expected = expected[name]
        (folder,) = (resumed.dir / "checkpoints").glob(f"*{resumed.steps}")
        manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
        now = [each["now"] for each in manifest[ACCEPTED] if f"trainer.{path}".startswith(each["name"])]
        if expected not in now or manifest["identity"][f"trainer.{path}"] != expected:
            raise LawBroken(
                f"expected the checkpoint to record the accepted trainer.{path} = {expected!r}; it has {now}"
            )


def _error_of(tiny: Tiny) -> RLCoreError | None:
    try:
        run(tiny)
    except RLCoreError as error:
        return error
    return None


def _has_other_weights(one: Tiny, other: Tiny) -> bool:
    return bool(difference(weights(one.dir), weights(other.dir), "weights"))


def _has_other_metrics(one: Tiny, other: Tiny) -> bool:
    return bool(difference(steps(one)[BEFORE:], steps(other)[BEFORE:], "step"))
