"""Rows to train on that are rows of an evaluation too, but for case and white space.

Also in this file: the rows of a run before its first step: their lengths, those that evaluations have too, and the
first ones; the rows of a configuration, read and tokenised as its run would, with the tokenizer and without the
model.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
from transformers import PretrainedConfig

from rlcore.components import LANGUAGE_MODEL, SCORER
from rlcore.config import evolve, structure
from rlcore.errors import ConfigError, InputsError
from rlcore.logging import get_logger
from rlcore.plugins.choice import Wrapping
from rlcore.plugins.metadata import configured
from rlcore.protocols import ArchitectureTraits, RunView
from rlcore.safe_text import shorten
from rlcore.settings import DataConfig, TrainConfig
from rlcore.training import Order, Run
from rlcore.training.inputs import DATA_INPUTS, Inputs
from rlcore.training.run_components import choose, open_player, with_rows
from rlcore.types import Prompt, Sample, sequences_of
from rlcore_tools.shown_rows import Shown, lengths_line, plain_text, show_rows
from rlcore_transformers.data.rows import RowReader
from rlcore_transformers.data.streams import open_stream
from rlcore_transformers.data.tokens import decode
from rlcore_transformers.models.input_layout import ENCODER_DECODER, declared, kind_of
from rlcore_transformers.models.tokenizers import load_tokenizer

WINDOW = 24
"""Characters at the end of a prompt by which rows are compared first; at least half as many tokens are read."""
CHUNK = 10_000
"""Rows that are compared at a time."""
SHOWN = 100
"""Characters of a row that a warning shows."""
Tokens = Sequence[int]


@attrs.frozen
class Equal:
    """Rows of one source that are also in another.

    Attributes:
        rows: number of rows to train on that are equal to an evaluation row.
        prompts: number of further rows whose prompt alone is that of an evaluation row.
        of: number of all rows to train on.
        first: index of the first of them.
        other: index of the evaluation row that it is equal to.
        text: its prompt, or all of it where it has none.
    """

    rows: int
    prompts: int
    of: int
    first: int
    other: int
    text: str


def find_equal(rows: Sequence[object], held_out: Sequence[object], tokenizer: object) -> Equal | None:
    """Return which rows to train on are evaluation rows, or have a prompt of one; None if there are none.

    Texts count without special tokens, in lower case, and with one space for any white space. Their ends are compared
    first, then all of them, and of those that are equal so far the decoded texts. A prompt that all rows have does not
    count. The memory is that of digests of the evaluation rows and of rows that are equal to them.

    Args:
        rows: tokenised rows to train on, of any form.
        held_out: tokenised evaluation rows.
        tokenizer: the tokenizer, by which they are decoded.
    """
    pieces, kept, matched = _Pieces(tokenizer), list[int](), set[str]()
    ends = pieces.ends(held_out)
    known = set(ends)
    for start in range(0, len(rows), CHUNK):
        keys = pieces.ends(rows[start : start + CHUNK])
        kept += [start + k for k, key in enumerate(keys) if key in known]
        matched |= known.intersection(keys)
    others = [i for i, key in enumerate(ends) if key in matched]
    own, wholes = pieces.wholes([rows[i] for i in kept]), pieces.wholes([held_out[i] for i in others])
    shared = set(wholes).intersection(own)
    kept = [i for i, key in zip(kept, own, strict=True) if key in shared]
    others = [i for i, key in zip(others, wholes, strict=True) if key in shared]
    return _compared(rows, kept, held_out, others, tokenizer)


def _compared(
    rows: Sequence[object], kept: Sequence[int], held_out: Sequence[object], others: Sequence[int], tokenizer: object
) -> Equal | None:
    """Compare the decoded texts of the rows at some indices."""
    known_rows: dict[bytes, int] = {}
    known_prompts: dict[bytes, int] = {}
    for i, (prompt, whole, _) in _texts(held_out, others, tokenizer):
        known_rows.setdefault(_digest(whole), i)
        known_prompts.setdefault(_digest([prompt]), i)
    same: dict[int, tuple[int, str]] = {}
    prompts: dict[int, tuple[int, str]] = {}
    distinct = set[bytes]()
    for i, (prompt, whole, text) in _texts(rows, kept, tokenizer):
        distinct.add(_digest([prompt]))
        if (other := known_rows.get(_digest(whole))) is not None:
            same[i] = other, text
        elif prompt and (other := known_prompts.get(_digest([prompt]))) is not None:
            prompts[i] = other, text
    if len(distinct) == 1 and len(same) + len(prompts) == len(rows) > 1:
        prompts = {}
    for found in (same, prompts):
        for i, (other, text) in found.items():
            return Equal(len(same), len(prompts), len(rows), i, other, text)
    return None


def _prompt(row: object) -> tuple[Tokens, int]:
    """Return the tokens of a row, and how many of them are its prompt: all if it has none, or one token as one."""
    if isinstance(row, Prompt):
        return row.tokens, len(row.tokens)
    if isinstance(row, Sample):
        tokens, count = row.tokens, _num_given(row)
    else:
        samples = sequences_of(row)
        tokens, count = samples[0].tokens if samples else (), min(map(_num_given, samples), default=0)
    return tokens, count if count > 1 else len(tokens)


def _num_given(sample: Sample) -> int:
    """Return the number of tokens before the first chosen one."""
    try:
        return sample.action_mask.index(True)
    except ValueError:
        return len(sample.tokens)


def _sequences(row: object) -> list[Tokens]:
    return [row.tokens] if isinstance(row, Prompt) else [each.tokens for each in sequences_of(row)]


def _texts(
    rows: Sequence[object], indices: Sequence[int], tokenizer: Any
) -> Iterator[tuple[int, tuple[str, list[str], str]]]:
    """Yield for some rows the index, the normalised prompt and sequences, and the beginning of the prompt as it is."""
    for start in range(0, len(indices), CHUNK):
        parts = [(i, _prompt(rows[i]), _sequences(rows[i])) for i in indices[start : start + CHUNK]]
        flat = [part for _, (tokens, count), whole in parts for part in (tokens[:count], *whole)]
        texts = iter(decode(tokenizer, flat, skip_special_tokens=True))
        for i, _, whole in parts:
            prompt, *sequences = (next(texts) for _ in range(1 + len(whole)))
            yield i, (_normalised(prompt), list(map(_normalised, sequences)), shorten(prompt.strip(), SHOWN))


def _normalised(text: str) -> str:
    return " ".join(text.split()).lower()


def _digest(texts: Iterable[str]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        found.update(len(encoded).to_bytes(8, "little") + encoded)
    return found.digest()


class _Pieces:
    """The text of each token alone, in lower case and without white space; special tokens have none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def ends(self, rows: Sequence[object]) -> list[str]:
        """Return the last characters of the prompt of each row."""
        prompts, size = list(map(_prompt, rows)), WINDOW // 2
        found = self._texts([tokens[count - size if count > size else 0 : count] for tokens, count in prompts])
        while short := [i for i, text in enumerate(found) if len(text) < WINDOW and size < prompts[i][1]]:
            size *= 2
            longer = [tokens[max(count - size, 0) : count] for tokens, count in (prompts[i] for i in short)]
            for i, text in zip(short, self._texts(longer), strict=True):
                found[i] = text
        return [text[-WINDOW:] for text in found]

    def wholes(self, rows: Sequence[object]) -> list[bytes]:
        """Return a digest of the prompt of each row."""
        found: list[bytes] = []
        for start in range(0, len(rows), CHUNK):
            prompts = map(_prompt, rows[start : start + CHUNK])
            found += [_digest([text]) for text in self._texts([tokens[:count] for tokens, count in prompts])]
        return found

    def _texts(self, rows: Sequence[Tokens]) -> list[str]:
        seen: set[int] = set()
        seen.update(*rows)
        new = sorted(seen - self._known.keys())
        texts = decode(self._tokenizer, [[token] for token in new], skip_special_tokens=True)
        self._known |= {token: "".join(text.split()).lower() for token, text in zip(new, texts, strict=True)}
        piece = self._known.__getitem__
        return ["".join(map(piece, row)) for row in rows]


def warnings_of(
    rows: Mapping[str, Sequence[object]], held_out: Mapping[str, Sequence[object]], tokenizer: object
) -> Iterator[str]:
    """Yield a warning for each source of rows to train on that has rows of an evaluation.

    Args:
        rows: rows to train on by the name of their option.
        held_out: evaluation rows by the name of their option.
        tokenizer: the tokenizer.
    """
    for name, each in rows.items():
        for other, evaluated in held_out.items():
            found = find_equal(each, evaluated, tokenizer)
            if found is None:
                continue
            counts = [
                f"{found.rows} of {found.of} rows are rows of {other} too" if found.rows else "",
                f"{found.prompts} {'more ' if found.rows else f'of {found.of} rows '}have a prompt of {other}"
                if found.prompts else "",
            ]  # fmt: skip
            yield (
                f"{name}: {', and '.join(filter(None, counts))}, but for case and white space, so that evaluations "
                f"measure in part what is trained on. The first is {name}[{found.first}], equal to "
                f"{other}[{found.other}]: {found.text}. Remove such rows from {name}, or evaluate other rows"
            )


NUM_ROWS = 3
FILE = "report/first rows.txt"
HELD_OUT = "eval_"
"""How the names of options of evaluation rows begin."""

log = get_logger("data")


def record_first_rows(run: RunView) -> None:
    """Log the lengths of a run on texts and which of its rows evaluations have too; write both to its report.

    The first rows are written there too, and logged at the level debug.
    """
    if not isinstance(run, Run) or run.models.kind not in ("policy", "scorer"):
        return
    sources, tokenizer = _sources(run), run.learner.tokenizer
    shown = [
        show_rows(
            name, rows, None, tokenizer, run.data.options, context=run.learner.max_length,
            num_rows=0 if name.startswith(HELD_OUT) else NUM_ROWS,
        )
        for name, rows in sources.items()
    ]  # fmt: skip
    held_out = {name: rows for name, rows in sources.items() if name.startswith(HELD_OUT)}
    trained = {name: rows for name, rows in sources.items() if name not in held_out}
    notes = list[str]()
    for each in shown:
        is_only = [*trained] == [each.name]
        left_out = _left_out(run, each.lengths.rows) if is_only else ""
        noun = "row" if each.lengths.rows == 1 else "rows"
        line = f"{each.name}: {each.lengths.rows} {noun}{left_out}; {lengths_line(each.lengths)}"
        (log.debug if each.name in held_out else log.info)(line)
    if run.data.inputs.samples is not None and run.data.sample_stream is not None:
        notes.append("samples: are streamed; neither their lengths nor rows that evaluations have too are counted")
        log.info(notes[-1])
    if not isinstance(tokenizer, RowReader):  # with images, equal texts may be different rows
        for warning in warnings_of(trained, held_out, tokenizer):
            notes.append(warning)
            log.warning(warning)
    if not (shown or notes):
        return
    text, file = "\n".join([*notes, *([""] if notes else []), plain_text(shown)]), run.dir / FILE
    get_logger("preview").debug("first rows\n" + text)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _sources(run: Run) -> dict[str, Sequence[Any]]:
    """Return the rows of a run that are read whole, by the names of their options."""
    data, given = run.data, run.data.inputs
    found: dict[str, Sequence[object]] = {}
    if given.samples is not None and data.sample_stream is None:
        found["samples"] = run.samples
    if given.prompts is not None and run.models.has_policy:
        found["prompts"] = run.prompts
    if given.eval_samples is not None:
        found["eval_samples"] = data.eval_samples
    if given.eval_prompts is not None and run.models.has_policy:
        found["eval_prompts"] = data.eval_prompts
    return found


def _left_out(run: Run, count: int) -> str:
    """Return how many of the rows the trainer leaves out, if it takes them in one order."""
    orders = [each for each in run.data.orders if isinstance(each, Order)]
    if len(orders) != 1 or orders[0].count >= count:
        return ""
    return f", of which the trainer leaves out {count - orders[0].count}"


EPISODE = "example episode"
STREAMED = 1000
"""Rows of a stream that are read for their lengths."""


def read_data(values: Mapping[str, object], where: str, *, num_rows: int) -> list[Shown]:
    """Return the first rows and the lengths of each source of rows of a configuration.

    Args:
        values: a configuration as read from YAML.
        where: its name, for errors.
        num_rows: number of rows to show of each source.

    Raises:
        RLCoreError: the configuration or its data cannot be used.
    """
    settings = structure(TrainConfig, values, where=where)
    with configured(settings.plugins.disable, settings.plugins.only):
        return _read(settings, where, num_rows)


def _read(settings: TrainConfig, where: str, num_rows: int) -> list[Shown]:
    named = {name: getattr(settings.data, name) for name in DATA_INPUTS}
    inputs = Inputs(model=settings.model.get("path"), tokenizer=settings.model.get("tokenizer"), **named)
    if inputs.model is None:
        raise InputsError(f"{where}: model.path is missing: name a hub id or a folder, whose tokenizer is used")
    given = [name for name in ("samples", "prompts", "eval_samples", "eval_prompts") if named[name] is not None]
    if not given and inputs.environment is None:
        raise InputsError(f"{where}: has no rows to show: set data.samples or data.prompts")
    chosen = choose(settings, inputs, where, Wrapping(config=settings))
    architecture = ArchitectureTraits(chosen.architecture.component.target())
    if (kind := architecture.kind) not in (LANGUAGE_MODEL, SCORER):
        raise ConfigError(f"{where}: this run trains {kind}; rlcore preview shows the rows of models of text")
    read = architecture.read_tokenizer or load_tokenizer  # such as that of a processor
    tokenizer = read(inputs.model, inputs.tokenizer, chosen.architecture.options)
    config = _model_config(inputs.model, settings.model.get("revision"))
    is_split = config is not None and kind_of(config) is ENCODER_DECODER
    context = 0 if config is None or is_split else _context_length(config)
    data = settings.data
    if data.outputs_begin_text is None:
        data = evolve(data, outputs_begin_text=is_split)
    found, player = [], None
    if inputs.environment is not None:
        player = open_player(chosen.environment, inputs, settings)
        completed = with_rows(inputs, player)
        named |= {name: getattr(completed, name) for name in ("prompts", "eval_prompts")}
        given = [name for name in ("samples", "prompts", "eval_samples", "eval_prompts") if named[name] is not None]
    for name in given:
        build: Any = (chosen.samples if name.endswith("samples") else chosen.prompts).build()
        if player is not None and name.endswith("prompts"):
            build = player.pipeline(build)
        source = _taken(named[name], data, settings.run.seed) if name == "samples" else named[name]
        rows: Sequence[Any] = build(source, tokenizer, data, max_length=context, what=name)
        found.append(show_rows(name, rows, source, tokenizer, data, context=context, num_rows=num_rows))
        if player is not None and name == "prompts":
            episode, transcript = player.example(rows[0], tokenizer)
            lengths = show_rows(EPISODE, [episode], None, tokenizer, data, context=context)
            (shown,) = lengths.rows
            said = {f"{i} {each['role']}": each["content"] for i, each in enumerate(transcript)}
            one = attrs.evolve(shown, values={**shown.values, **said})
            found.append(attrs.evolve(lengths, rows=[one]))
    if player is not None:
        player.close()
    return found


def _taken(source: object, data: DataConfig, seed: int) -> object:
    """Return a source, or the first rows of a stream."""
    stream = open_stream(source, data, seed=seed)
    return source if stream is None else list(islice(iter(stream), STREAMED))


def _model_config(model: object, revision: object) -> PretrainedConfig | None:
    if isinstance(model, str | os.PathLike):
        return declared(model, revision if isinstance(revision, str) else None)
    return model if isinstance(model, PretrainedConfig) else getattr(model, "config", None)


def _context_length(config: PretrainedConfig) -> int:
    return int(getattr(config.get_text_config(), "max_position_embeddings", 0) or 0)
