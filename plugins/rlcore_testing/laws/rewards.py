"""Laws of rewards, which are called through `rlcore.rewards` with the arguments that their signature names.

Required columns are filled with strings of whole numbers, which a reward can use as text or as numbers. A reward of
outputs that are no text has an attribute `example_outputs`, a function that returns twelve of them.

Also in this file: laws of architectures that build a `SequenceScorer`: one score per sequence, the same in plain
`transformers`.
"""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor

from rlcore.errors import RewardError
from rlcore.protocols import SequenceScorer
from rlcore.types import Trajectories
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.policies import CLOSE, FOLDERS, build, examples, make_dialogues, perturb, require_close, saved
from rlcore_testing.small import EOS, make_tokenizer
from rlcore_transformers.models.hub import quiet_transformers

if TYPE_CHECKING:
    from rlcore.types import Prompt

REWARDS = "rewards"
OUTPUTS = (
    "yes, thanks", "No!", "please", "42", "-7.5", " ", "a b c", "the end.\n", "e = mc²", "naïve 🙂", "no no", "ab",
)  # fmt: skip
ANSWERS = ("4", "42", "7", "0", "1", "12")
KNOWN = ("samples", "prompts", "outputs", "messages", "output_tokens", "tokenizer")
TOLERANCE = 1e-5
"""Relative tolerance; a reward may be the output of a model in float32, which depends a little on its batch."""


@law(REWARDS)
def one_number_for_each_output(subject: Subject) -> None:
    """A reward returns for each output a finite number, one number per token, or None."""
    _scores(subject, OUTPUTS)


@law(REWARDS)
def some_output_gets_a_number(subject: Subject) -> None:
    """A reward returns a number for at least one of twelve different outputs."""
    require(
        any(value is not None for value in _scores(subject, OUTPUTS)),
        f"it returns None for each of {', '.join(map(repr, OUTPUTS))}; return numbers",
    )


@law(REWARDS)
def same_inputs_same_numbers(subject: Subject) -> None:
    """Two calls with the same inputs return the same numbers; otherwise runs are not reproducible."""
    _compare(_scores(subject, OUTPUTS), _scores(subject, OUTPUTS), OUTPUTS, "in a second call", "use no random numbers")


@law(REWARDS)
def another_process_same_numbers(subject: Subject) -> None:
    """A reward returns the same numbers in a new process, where strings have other hashes."""
    arguments = {"name": subject.it.qualified, "options": dict(subject.options)}
    other = call_in_new_process(f"{__name__}:call_reward", arguments, what=f"calling {subject.it}")
    advice = "depend on the inputs alone, not on hash() or the order of a set"
    _compare(_scores(subject, OUTPUTS), other, OUTPUTS, "in another process", advice)


@law(REWARDS)
def the_order_of_a_batch_changes_nothing(subject: Subject) -> None:
    """The number of an output does not depend on its position in the batch."""
    turned = _scores(subject, OUTPUTS, order=range(len(OUTPUTS) - 1, -1, -1))
    _compare(_scores(subject, OUTPUTS), turned[::-1], OUTPUTS, "in the reversed batch", "score each output by itself")


@law(REWARDS)
def splitting_a_batch_changes_nothing(subject: Subject) -> None:
    """An output gets the same number in a batch of one and in a larger batch."""
    single = [value for i in range(len(OUTPUTS)) for value in _scores(subject, OUTPUTS, order=[i])]
    _compare(_scores(subject, OUTPUTS), single, OUTPUTS, "in a batch of its own", "score each output by itself")


def _scores_text(subject: Subject) -> bool:
    """Return whether it scores text."""
    return not hasattr(subject.it.target(), "example_outputs")


@law(REWARDS, when=_scores_text)
def an_empty_output_is_accepted(subject: Subject) -> None:
    """An empty output gets a number or None, alone and among others."""
    _scores(subject, ("",))
    _scores(subject, ("", "yes", ""))


@law(REWARDS)
def columns_it_does_not_take_change_nothing(subject: Subject) -> None:
    """Columns of the prompts that a reward does not use do not change its numbers."""
    more = {"source_of_row": "somewhere", "notes_on_row": ["a", {"b": 1}], "nothing_in_row": None}
    advice = "name the columns you need as parameters, and ignore the others"
    _compare(
        _scores(subject, OUTPUTS), _scores(subject, OUTPUTS, columns=more), OUTPUTS, "with further columns", advice
    )


def _closes(subject: Subject) -> bool:
    """Return whether it has a method `close`."""
    return callable(getattr(_function(subject), "close", None))


@law(REWARDS, when=_closes)
def it_scores_again_after_close(subject: Subject) -> None:
    """After `close()`, also a second one, a reward returns the same numbers as before."""
    function = _function(subject)
    before = _scores(subject, OUTPUTS, function=function)
    function.close()
    function.close()
    after = _scores(subject, OUTPUTS, function=function)
    function.close()
    _compare(before, after, OUTPUTS, "after close()", "start anew when called after close()")


def call_reward(name: str, options: dict[str, Any]) -> list[float | None]:
    """Score OUTPUTS with the reward `name`; runs in the process of `another_process_same_numbers`."""
    from rlcore.plugins.registry import all_registries

    component = all_registries().rewards.get(name)
    return _scores(Subject(component.dist, (), component, options), OUTPUTS)


def _function(subject: Subject) -> Any:
    """Return the reward function: the target, or, if the component has options, the target's return value."""
    config = subject.config()
    target: Any = subject.it.target()
    return target if config is None else target(config)


def _rewards(subject: Subject, *others: Any, function: Any = None) -> Any:
    from rlcore.rewards.call_inputs import UserFunction
    from rlcore.rewards.combine import Rewards

    named = [
        (subject.it.name, function or _function(subject)),
        *((f"other {i}", each) for i, each in enumerate(others)),
    ]
    return Rewards(tuple(UserFunction("reward", name, call) for name, call in named))


def _scores(
    subject: Subject,
    outputs: Sequence[str],
    *,
    order: Sequence[int] | None = None,
    columns: dict[str, Any] | None = None,
    function: Any = None,
) -> list[float | None]:
    """Return the reward's number for each output, or for those at `order`; `function` was built before.

    For a reward of other outputs than text, its own examples stand for `outputs`.
    """
    from rlcore_testing.small import make_tokenizer

    order = range(len(outputs)) if order is None else order
    prompts, texts = _prompts(subject, order, columns or {}), [outputs[i] for i in order]
    examples, rewards = getattr(subject.it.target(), "example_outputs", None), _rewards(subject, function=function)
    try:
        if examples is not None:
            batch = rewards.score(prompts, {name: _at(values, order) for name, values in examples().items()})
        else:
            tokens = [[*map(ord, output), 0] for output in texts]
            batch = rewards(prompts, texts, tokenizer=make_tokenizer(), output_tokens=tokens)
    except RewardError as error:
        raise LawBroken(str(error)) from error
    numbers: list[float | None] = batch.by_name[subject.it.name]
    return numbers


def _at(values: Any, order: Sequence[int]) -> Any:
    """Return the elements of a list, or the rows of a tensor, at `order`."""
    return [values[i] for i in order] if isinstance(values, list) else values[list(order)]


def _prompts(subject: Subject, order: Sequence[int], columns: dict[str, Any]) -> list[Prompt]:
    """Return a prompt for each number, with the columns that the reward requires."""
    from rlcore.types import Prompt

    needed = _columns(_function(subject))
    return [
        Prompt(f"prompt {i}: ", (1, 2, i), {**{name: ANSWERS[i % len(ANSWERS)] for name in needed}, **columns})
        for i in order
    ]


def _columns(function: Any) -> list[str]:
    """Return the required columns of a function; a first parameter with any other name receives the samples."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return []
    named = [each for each in parameters if each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}]
    examples = getattr(function, "example_outputs", None)
    known = KNOWN if examples is None else (*KNOWN, *examples())
    needed = [each for each in named if each.default is each.empty and each.name not in known]
    own_name = needed[:1] == named[:1] and needed and needed[0].kind is needed[0].POSITIONAL_OR_KEYWORD
    return [each.name for each in (needed[1:] if own_name else needed)]


def _compare(
    first: Sequence[float | None], then: Sequence[float | None], outputs: Sequence[str], when: str, advice: str
) -> None:
    for output, one, other in zip(outputs, first, then, strict=True):
        same = (
            one is other
            if None in {one, other}
            else math.isclose(one or 0, other or 0, rel_tol=TOLERANCE, abs_tol=1e-7)
        )
        require(same, f"output {output!r} gets {one}, but {when} {other}; {advice}")


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
    reference = getattr(subject.it.target(), "reference_score", None)
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


def _build(subject: Subject, spec: Any, *, tokenizer: Any = None) -> SequenceScorer:
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
