"""Benchmark case: sampling through rlcore against transformers' `generate`, in real tokens per CPU second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore_tools.bench.duel import Duel

TITLE = "Sampling, real tokens a CPU second, against transformers' generate"
Shape = tuple[str, int, int, tuple[int, int], int, str]
"""Family, vocabulary, sequences, shortest and longest prompt, samples per prompt, lengths."""
MIDDLE: Shape = ("gpt2", 5000, 128, (1, 64), 1, "natural")
GROUPS: Shape = ("gpt2", 5000, 128, (160, 160), 8, "natural")
BOUNDED: Shape = ("gpt2", 5000, 256, (1, 64), 1, "natural")
"""More prompts than the batch size."""
GOALS = {MIDDLE: 3.0, GROUPS: 4.0}
OTHERS: dict[int, tuple[Any, ...]] = {
    0: ("llama",), 1: (23, 32000), 2: (1, 32), 3: ((1, 1), (1, 200)), 5: ("fixed",),
}  # fmt: skip
"""Alternative values of each entry of the middle shape, varied one at a time."""


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the two workloads with goals; unless `quick`, also the first one with one parameter changed at a time."""
    shapes: list[Any] = [MIDDLE, GROUPS]
    repeats = 1 if quick else 3
    if not quick:
        shapes += [(*MIDDLE[:i], other, *MIDDLE[i + 1 :]) for i, others in OTHERS.items() for other in others]
        shapes += [("llama", *GROUPS[1:])]
    return [*(_duel(shape, repeats=repeats) for shape in shapes), _duel(BOUNDED, repeats=repeats, at_once=32)]


def _duel(shape: Shape, *, repeats: int, at_once: int = 0) -> Duel:
    family, vocabulary, batch, (shortest, longest), samples, lengths = shape
    work = ["--family", family, "--vocabulary", str(vocabulary), "--batch", str(batch), "--samples", str(samples)]
    work += ["--prompts", str(shortest), str(longest), "--lengths", lengths, "--repeats", str(repeats)]
    work += ["--at-once", str(at_once)]
    spread = str(longest) if shortest == longest else f"{shortest} to {longest}"
    return Duel(
        f"{family}, V {vocabulary}, batch {batch}{f', {at_once} at once' if at_once else ''}, prompts of {spread}, "
        f"G {samples}, {lengths} lengths",
        ours=["sampling_speed.py", "rlcore", *work],
        theirs=["sampling_speed.py", "generate", *work, *(["--return-sequences"] if samples > 1 else [])],
        figure="tokens_per_s",
        better="more",
        goal=GOALS.get(shape),
    )
