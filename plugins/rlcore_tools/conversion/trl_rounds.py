"""Arguments of TRL that count: sequences of a step, steps, and how often something happens."""

from __future__ import annotations

import math
from typing import Any

from rlcore_tools.conversion.conversion import Conversion

ONE_PROCESS = "batch sizes are those of one process: multiply them by the number of processes, which --processes N does"


def convert_batch(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the number of sequences of an optimizer step, and of a round of sampling."""
    size, parts = given.pop("per_device_train_batch_size"), given.pop("gradient_accumulation_steps")
    given["processes"] = processes = given.pop("num_processes", None) or 1
    if processes > 1:
        conversion.put("run.processes", processes)
        conversion.notes.append(f"batch sizes are those of {processes} processes together")
    else:
        conversion.notes.append(ONE_PROCESS)
    rounds = 1
    if conversion.has("trainer.num_generations") and conversion.has("trainer.rollouts"):
        rounds = _convert_generations(conversion, given, size, parts)
    else:
        conversion.put("trainer.batch_size", size * parts * processes)
    if conversion.has("trainer.rollouts") and conversion.has("trainer.batch_size"):
        rounds = given.pop("num_mini_batches", 1)
        conversion.put("trainer.rollouts", size * parts * rounds * processes)
        if (episodes := given.pop("total_episodes", None)) is not None:
            conversion.put("run.steps", math.ceil(episodes / (size * parts * rounds * processes)))
            given.pop("num_train_epochs")
        rounds *= given.get("num_ppo_epochs") or 1
    if parts > 1:
        conversion.put("trainer.micro_batch_size", size)
    given["updates"] = rounds


def _convert_generations(conversion: Conversion, given: dict[str, Any], size: int, parts: int) -> int:
    """Convert what TRL samples at once, and learns from `num_iterations` times; return a round's optimizer steps.

    TRL samples `pieces` micro-batches at once, makes `pieces * passes` backward passes over them, and an optimizer step
    after every `parts` of these.
    """
    processes, pieces = given["processes"], given.pop("steps_per_generation", None)
    whole, size = given.pop("generation_batch_size", None), size * processes  # TRL's whole is that of all processes
    whole = whole or size * (pieces or parts)
    pieces, passes = whole // size, given.pop("num_iterations", None) or 1
    minibatches, iterations, is_exact = max(pieces // parts, 1), passes, pieces % parts == 0
    if not pieces or whole % size:
        on = f", on {processes} processes" if processes > 1 else ""
        conversion.leave(
            "generation_batch_size", whole, f"it is no multiple of per_device_train_batch_size, {size // processes}{on}"
        )
    elif parts % pieces == 0:  # an optimizer step takes several samplings, or several passes over one
        repeats = parts // pieces
        whole *= max(repeats // passes, 1)
        iterations = max(passes // repeats, 1)
        is_exact = repeats % passes == 0 or passes % repeats == 0
    if pieces and not is_exact:
        how = f"steps of {parts} micro-batches do not divide {passes} passes over {pieces}; whole steps are written"
        conversion.leave("steps_per_generation", pieces, how)
    conversion.put("trainer.rollouts", whole)
    if isinstance(group := given.get("num_generations"), int) and whole % group:
        conversion.notes.append(
            f"trainer.rollouts: {whole} is no multiple of num_generations = {group}, so the file is for several "
            "processes: --processes N multiplies by their number"
        )
    conversion.put("trainer.minibatches", minibatches)
    if passes > 1:
        conversion.put("trainer.iterations", iterations)
    return minibatches * iterations


def convert_length(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the number of steps, and when evaluations are made and checkpoints written."""
    rounds, steps, epochs = (
        given.pop("updates"),
        given.pop("max_steps", None) or -1,
        given.pop("num_train_epochs", None),
    )
    if steps > 0:
        conversion.put("run.steps", math.ceil(steps / rounds))
    elif epochs is not None:
        conversion.put("run.epochs", epochs)
    for name in ("warmup_ratio", "warmup_steps"):
        _warmup(conversion, name, given.pop(name, None) or 0, steps)
    for ours, name in (("eval", "eval"), ("checkpoint", "save")):
        _cadence(
            conversion, (ours, name), given.pop(f"{name}_strategy", None), given.pop(f"{name}_steps", None), rounds
        )
    if rounds > 1:
        conversion.notes.append(f"steps are rounds of {rounds} optimizer steps; counts of steps are divided by it")


def _warmup(conversion: Conversion, name: str, value: float, steps: int) -> None:
    if 0 < value < 1 and steps <= 0:
        conversion.leave(name, value, "set trainer.optimizer.warmup_steps to this share of all optimizer steps")
    elif value:
        conversion.put("trainer.optimizer.warmup_steps", math.ceil(value * steps) if value < 1 else int(value))


def _cadence(conversion: Conversion, names: tuple[str, str], strategy: Any, every: float | None, rounds: int) -> None:
    """Convert when evaluations are made, or checkpoints written: `names` are those of the section, here and in TRL."""
    section, theirs = names
    if str(strategy) == "no":
        conversion.put(f"{section}.at_end", False)
    elif str(strategy) == "epoch":
        conversion.leave(f"{theirs}_strategy", strategy, f"set {section}.every to the number of steps of an epoch")
    elif every and every < 1:
        conversion.leave(f"{theirs}_steps", every, f"set {section}.every to this share of all steps")
    elif every:
        conversion.put(f"{section}.every", math.ceil(every / rounds))
    elif strategy is not None:
        conversion.leave(f"{theirs}_strategy", strategy, f"set {section}.every by hand")
