"""Laws of architectures that build a `SequenceScorer`: one score per sequence, the same in plain `transformers`.

They apply to an architecture with the attribute `scores_sequences = True`, in place of the laws of other architectures.
It is checked with GPT-2 and Llama, language models that it gives a head, or with its `example_model`.

An architecture whose head is none of `transformers` also sets `reference_score`: a function that takes the folder that
`export` wrote and the token ids of one sequence, and returns its score, as plainly as possible.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from rlcore.protocols import ArchitectureTraits, SequenceScorer
from rlcore.types import Trajectories
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.policies import CLOSE, FOLDERS, build, examples, make_dialogues, perturb, require_close, saved
from rlcore_testing.small import EOS, make_tokenizer
from rlcore_transformers.models.hub import quiet_transformers

SCORERS = "scorers"
SAME = 1e-5
"""Tolerance for one sequence's score with and without padding, and in plain `transformers`."""


@law(SCORERS)
def one_number_for_each_sequence(subject: Subject) -> None:
    """`score` returns float32[B] on the scorer's device, finite, and not the same number for every sequence."""
    for make in examples(subject):
        batch = make_dialogues()
        scores = _score(_build(subject, make()), batch)
        require(
            scores.shape == (len(batch),) and scores.dtype == torch.float32 and bool(scores.isfinite().all()),
            f"`score` should return {len(batch)} finite numbers, float32; it returns {scores}",
        )
        require(
            bool((scores != scores[0]).any()), f"different sequences should get different scores; all get {scores[0]}"
        )


@law(SCORERS)
def padding_changes_nothing(subject: Subject) -> None:
    """A sequence gets the same score alone, padded left, right or on both sides, whatever the padding's tokens.

    This holds whether or not the tokenizer pads with EOS, and for sequences that end with EOS.
    """
    for make in examples(subject):
        for pad_is_eos in (False, True):
            scorer = _build(subject, make(), tokenizer=make_tokenizer(pad_is_eos=pad_is_eos))
            alone = torch.cat([_score(scorer, each) for each in _ended(make_dialogues()).split(1)])
            for side in ("left", "right", "both"):
                for filled in (EOS, 7):
                    wide = _ended(make_dialogues(side, columns=19))
                    wide.tokens[~wide.mask] = filled
                    what = f"scores of sequences padded on {side} with token {filled} (pad is EOS: {pad_is_eos})"
                    advice = "read no token where `mask` is False, and count positions of real tokens only"
                    require_close(_score(scorer, wide), alone, what, advice, tolerance=SAME)


@law(SCORERS)
def plain_transformers_gives_the_same_scores(subject: Subject) -> None:
    """The class `export_class` of plain transformers, loading what `export` wrote, gives each sequence alone its score.

    The tokenizer in the folder pads a batch of texts such that the scores stay the same. An architecture whose head is
    none of transformers is compared with its own `reference_score` instead, one sequence at a time.
    """
    reference = ArchitectureTraits(subject.it.target()).reference_score
    for make in examples(subject):
        for pad_is_eos in (False, True):
            scorer = _build(subject, make(), tokenizer=make_tokenizer(pad_is_eos=pad_is_eos))
            perturb(scorer)
            rows = [[*scorer.tokenizer(text).input_ids, EOS] for text in ("hello there", "a", "go on!")]
            expected = _score(scorer, Trajectories.stack(rows, [[False] * len(row) for row in rows]))
            with _exported(scorer) as folder:
                if reference is None:
                    _compare_plain(scorer.export_class, folder, rows, expected, f"pad is EOS: {pad_is_eos}")
                    continue
                with torch.no_grad():
                    found = torch.tensor([float(reference(folder, row)) for row in rows])
                require_close(expected, found, "scores", "score as `reference_score` does", tolerance=SAME)


def _compare_plain(loader: str, folder: Path, rows: list[list[int]], expected: Tensor, where: str) -> None:
    with quiet_transformers():
        plain: Any = getattr(transformers, loader).from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        alone = torch.stack([plain(input_ids=torch.tensor([row])).logits.flatten()[0] for row in rows])
        padded = tokenizer.pad({"input_ids": rows}, padding_side="right", return_tensors="pt")
        together = plain(**padded).logits.flatten()
    advice = "save the head, and a config.pad_token_id that is the tokenizer's and occurs in no text"
    where = f"{type(plain).__name__}, {where}"
    require_close(alone, expected, f"scores of plain transformers ({where})", advice, tolerance=SAME)
    require_close(together, expected, f"scores of a batch in plain transformers ({where})", advice, tolerance=SAME)


@law(SCORERS)
def every_trainable_parameter_gets_a_gradient(subject: Subject) -> None:
    """Backward through `score` reaches every parameter that requires a gradient; under `no_grad` there is no graph."""
    for make in examples(subject):
        scorer, batch = _build(subject, make()), make_dialogues("both")
        perturb(scorer)
        graph = _score(scorer, batch).requires_grad
        require(not graph, "under torch.no_grad() `score` should record no graph; it does")
        scorer.module.train()
        (scorer.score(batch) * torch.linspace(0.5, 1.5, len(batch))).sum().backward()
        named = [(name, each) for name, each in scorer.module.named_parameters() if each.requires_grad]
        without = [name for name, each in named if each.grad is None or not bool(each.grad.any())]
        require(
            not without, f"every trainable parameter should get a gradient; {', '.join(without[:5])} got none; use it "
            "in `score`, or set requires_grad to False",
        )  # fmt: skip


@law(SCORERS)
def score_goes_through_forward(subject: Subject) -> None:
    """`score` calls the module passed to `use_forward`, inside its autocast."""
    for make in examples(subject):
        scorer, calls = _build(subject, make()), list[str]()
        module = scorer.module

        def forward(*arguments: Any, module: Any = module, calls: list[str] = calls, **named: Any) -> Any:
            calls.append("forward")
            return module(*arguments, **named)

        def autocast(calls: list[str] = calls) -> Any:
            calls.append("autocast")
            return nullcontext()

        scorer.use_forward(forward, autocast=autocast)
        _score(scorer, make_dialogues())
        require(
            calls == ["autocast", "forward"],
            f"`score` should enter the autocast of use_forward and then call its module; it called {calls}",
        )


@law(SCORERS)
def loading_restores_everything(subject: Subject) -> None:
    """A scorer that loads another's saved folder, in place, gives the same scores; `version` rises."""
    batch = make_dialogues("both")
    for make in examples(subject):
        scorer = _build(subject, make())
        perturb(scorer)
        other = _build(subject, make())
        ids, before = [id(each) for each in other.module.parameters()], other.version
        with saved(scorer) as folder:
            other.load_pretrained(folder)
        advice = "save every parameter, the head included, and load them"
        require_close(
            _score(other, batch), _score(scorer, batch), "scores after load_pretrained", advice, tolerance=CLOSE
        )
        require(
            ids == [id(each) for each in other.module.parameters()],
            "parameters should stay the same objects in load_pretrained, because an optimizer may hold them",
        )
        require(other.version > before, f"version should rise with load_pretrained; it stays {before}; add 1 in it")


@law(SCORERS)
def an_exported_folder_can_be_trained_again(subject: Subject) -> None:
    """A scorer built from an exported folder, with the folder's tokenizer, gives the same scores."""
    batch = _ended(make_dialogues())
    for make in examples(subject):
        scorer = _build(subject, make())
        perturb(scorer)
        with _exported(scorer) as folder:
            again = _build(subject, str(folder), tokenizer=FOLDERS)
        advice = "load the head from the folder, and take its padding token"
        require_close(
            _score(again, batch), _score(scorer, batch), "scores of a scorer built from its export", advice,
            tolerance=SAME,
        )  # fmt: skip


@law(SCORERS)
def moving_moves_everything(subject: Subject) -> None:
    """`to` moves every parameter, and `device` is the new device."""
    for make in examples(subject):
        scorer = _build(subject, make())
        scorer.to(torch.device("meta"))
        left = [name for name, parameter in scorer.module.named_parameters() if not parameter.is_meta]
        require(
            not left and scorer.device.type == "meta",
            f"everything should move; {', '.join(left[:3]) or 'device'} did not; move it in `to`",
        )


def _build(subject: Subject, spec: object, *, tokenizer: object = None) -> SequenceScorer:
    built: Any = build(subject, spec, tokenizer=tokenizer)
    return built  # type: ignore[no-any-return]


def _ended(batch: Trajectories) -> Trajectories:
    """Replace the last token of each sequence by EOS."""
    places = torch.arange(batch.tokens.shape[1])
    last = (places * batch.mask).amax(1, keepdim=True) == places
    return Trajectories(batch.tokens.masked_fill(last, EOS), batch.mask, batch.action_mask, batch.ended)


@torch.no_grad()
def _score(scorer: SequenceScorer, batch: Trajectories) -> Tensor:
    return scorer.score(batch)


@contextmanager
def _exported(scorer: SequenceScorer) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as parent:
        scorer.export(Path(parent) / "model")
        yield Path(parent) / "model"
