"""Laws of pipelines of prompts and of demonstrations; the type of the entries shows which of the two a pipeline is.

Pipelines are checked with rows in the forms that the built-in pipelines accept: strings, pairs of prompt and output,
and mappings `{prompt, output}`. A pipeline that accepts none of these sets the attribute `example_rows` to ten or more
rows that it accepts.
"""

from __future__ import annotations

import copy
import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlcore.components import describe_error
from rlcore.config import structure
from rlcore.errors import DataError
from rlcore_testing.law import LawBroken, Subject, law, require
from rlcore_testing.rig.isolate import at_another_time, undisturbed

PIPELINES = "pipelines"
MAX_LENGTH = 64
PAIRS = (
    ("ab", "cd"), ("a", "b"), ("what is this?", "it is a long answer."), ("naïve 🙂", "ü"), ("two\nlines", "of text"),
    ("ab", "cd"), (" begins", "with a space"), ("UPPER", "lower"), ("x" * 20, "y"), ("b", "z" * 20),
)  # fmt: skip
FURTHER = "further_key"
"""Key of a row that no pipeline reads."""
PROMPTED: tuple[Sequence[Any], ...] = (
    [["ab", "cd"], ["xyz", "cd"]],
    [{"prompt": "ab", "output": "cd"}, {"prompt": "xyz", "output": "cd"}],
)
"""Rows with the same output to different prompts."""
FORMS: tuple[Sequence[Any], ...] = (
    [prompt for prompt, _ in PAIRS],
    [list(pair) for pair in PAIRS],
    [{"prompt": prompt, "output": output} for prompt, output in PAIRS],
    [prompt + output for prompt, output in PAIRS],
)


@law(PIPELINES)
def it_reads_rows(subject: Subject) -> None:
    """A pipeline accepts rows of a known form or its `example_rows`, and returns one entry for each row."""
    rows = _rows(subject)
    made = _run(subject, rows)
    require(len(made) == len(rows), f"{len(rows)} rows give {len(made)} entries; return one entry for each row")


@law(PIPELINES)
def entries_are_complete(subject: Subject) -> None:
    """A prompt has text, tokens and columns.

    A demonstration, and each sequence of a row of another form, has tokens and an `action_mask` of the same length,
    which is False for the first token and True for some other. In a row of a prompt and an output, no token of the
    prompt is True.
    """
    from rlcore.types import Prompt

    for i, entry in _sequences(_run(subject, _rows(subject))):
        require(len(entry.tokens) > 0, f"entry {i} has no tokens; raise a DataError that names the row")
        if isinstance(entry, Prompt):
            require(type(entry.text) is str, f"entry {i} has the text {entry.text!r}; return the prompt as a str")
            named = all(isinstance(key, str) for key in entry.columns)
            require(named, f"entry {i} has columns {entry.columns!r}; use names of type str")
            continue
        mask, size = entry.action_mask, len(entry.tokens)
        require(
            len(mask) == size, f"entry {i} has {size} tokens and a mask of {len(mask)}; return one mask entry per token"
        )
        require(
            all(type(part) is bool for part in mask), f"entry {i} has the mask {mask!r}; use Python's True and False"
        )
        require(not mask[0], f"entry {i} marks its first token, which no logits predict; set it to False")
        require(any(mask), f"entry {i} marks no token, so it has no loss; raise a DataError that names the row")
    for rows in PROMPTED:
        made = _attempt(subject, rows)
        chosen = [_chosen(entry) for entry in made] if isinstance(made, list) else []
        require(
            chosen[1:] == chosen[:-1],
            f"the rows {rows} have the same output, but not the same tokens that are marked: {chosen}; mark the output "
            "alone",
        )


@law(PIPELINES)
def tokens_are_ints(subject: Subject) -> None:
    """Tokens are a tuple of Python ints, valid ids of the tokenizer; tensors and numpy numbers are not accepted."""
    from rlcore_testing.small import VOCABULARY

    for i, entry in _sequences(_run(subject, _rows(subject))):
        kinds = sorted({type(token).__name__ for token in entry.tokens} - {"int"})
        require(not kinds, f"entry {i} has tokens of type {', '.join(kinds)}; return ints, as tensor.tolist() does")
        require(
            isinstance(entry.tokens, tuple), f"entry {i} has its tokens in a {type(entry.tokens).__name__}; use a tuple"
        )
        wrong = [token for token in entry.tokens if not 0 <= token < VOCABULARY]
        require(not wrong, f"entry {i} has the ids {wrong}; the tokenizer's last id is {VOCABULARY - 1}; use its ids")


@law(PIPELINES)
def rows_keep_their_order(subject: Subject) -> None:
    """Entry i belongs to row i: reversing the rows reverses the entries, and equal rows give equal entries."""
    rows = _rows(subject)
    _compare(_run(subject, rows), _run(subject, rows[::-1])[::-1], "with reversed rows", "keep the order of the rows")


@law(PIPELINES)
def rows_do_not_depend_on_each_other(subject: Subject) -> None:
    """A row gives the same entry alone and among shorter and longer rows: entries are not padded or dropped."""
    rows = _rows(subject)
    alone = [entry for row in rows for entry in _run(subject, [row])]
    _compare(_run(subject, rows), alone, "alone", "do not pad entries, and do not merge or drop rows")


@law(PIPELINES)
def same_rows_same_entries(subject: Subject) -> None:
    """The same rows give the same entries in every call, also in another year."""
    rows = _rows(subject)
    first = _run(subject, rows)
    _compare(first, _run(subject, rows), "the second time", "use no random numbers")
    with at_another_time():
        _compare(first, _run(subject, rows), "at another time", "do not read the clock")


@law(PIPELINES)
def the_source_is_not_changed(subject: Subject) -> None:
    """A pipeline does not change its rows, nor the tokenizer, which the policy and others use too.

    It does not change the global random state, torch's default dtype or the root logger, and writes no file into the
    working folder.
    """
    from rlcore_testing.rig.policies import tokenizer_settings
    from rlcore_testing.small import make_tokenizer

    rows = _rows(subject)
    given, tokenizer = copy.deepcopy(rows), make_tokenizer()
    before = tokenizer_settings(tokenizer)
    with undisturbed("it"):
        _call(subject, given, tokenizer=tokenizer)
    require(list(given) == list(rows), f"it changes a row to {_first_change(rows, given)}; work on a copy")
    changed = [f"{name} to {now!r}" for name, now in tokenizer_settings(tokenizer).items() if now != before[name]]
    require(not changed, f"it changes the tokenizer's {', '.join(changed)}; pass such options to its call, or copy it")


@law(PIPELINES)
def columns_are_kept(subject: Subject) -> None:
    """If a pipeline reads prompts from mappings, the other keys of a row are columns of its prompt."""
    from rlcore.types import Prompt

    rows = [{"prompt": prompt, "answer": i, "notes_on_row": [output]} for i, (prompt, output) in enumerate(PAIRS)]
    made = _attempt(subject, rows)
    if not isinstance(made, list) or not all(isinstance(entry, Prompt) for entry in made):
        return  # it does not accept such rows, or makes demonstrations, which have no columns
    for row, entry in zip(rows, made, strict=False):
        expected = {key: value for key, value in row.items() if key != "prompt"}
        columns = {key: entry.columns.get(key) for key in expected}
        require(columns == expected, f"the row {row} has the columns {columns}; reward functions need {expected}")


@law(PIPELINES)
def further_keys_change_nothing(subject: Subject) -> None:
    """A row with a further key, or with one whose value is null, has the same tokens, or is refused by that key's name.

    A key that a pipeline does not read must not become part of a text, and one that it would read in another row must
    not be lost unnoticed: a refusal is a DataError that names it.
    """
    rows = _mappings(subject)
    if rows is None:
        return
    expected = _tokens(_run(subject, rows))
    for value, what in (("further text", "with a further key"), (None, "with a key whose value is null")):
        made = _attempt(subject, [{**row, FURTHER: value} for row in rows])
        if isinstance(made, Exception):
            advice = f"leave the key out, or raise a DataError that names {FURTHER!r}"
            require(isinstance(made, DataError) and FURTHER in str(made), f"{what} rows raise {made!r}; {advice}")
            continue
        _compare(expected, _tokens(made), what, "read the keys of a row by their names, and leave out all others")


@law(PIPELINES)
def files_have_the_tokens_of_their_rows(subject: Subject) -> None:
    """Rows of a file or a data set have the tokens of the same rows in a list, or are refused by the source's name.

    The files are JSON Lines, CSV and Parquet, in which a key that one row has is null in the others, and cells of CSV
    are texts. `rlcore_transformers.data.rows.load_rows` reads all of them.
    """
    rows = _mappings(subject)
    if rows is None:
        return
    expected = _tokens(_run(subject, rows))
    with tempfile.TemporaryDirectory() as folder:
        for what, source in _sources(rows, Path(folder)).items():
            try:
                made = _call(subject, source, what="eval_prompts")
            except Exception as error:  # noqa: BLE001  a plugin's pipeline may raise anything
                named = isinstance(error, DataError) and str(error).startswith("eval_prompts")
                advice = "read them with `load_rows`, or raise rlcore.errors.DataError, beginning with `what`"
                require(named, f"{what} raises {describe_error(error)}; {advice}")
                continue
            _compare(expected, _tokens(made), f"from {what}", "read files with `load_rows` of rlcore_transformers")


@law(PIPELINES)
def long_rows_are_truncated_or_refused(subject: Subject) -> None:
    """No entry is longer than `max_length`: a longer row is truncated or raises a DataError."""
    rows = _rows(subject)
    longest = max(len(entry.tokens) for _, entry in _sequences(_run(subject, rows)))
    bound = max(2, longest // 2)
    made = _attempt(subject, rows, max_length=bound)
    if isinstance(made, list):
        over = max(len(entry.tokens) for _, entry in _sequences(made))
        require(
            over <= bound, f"an entry has {over} tokens with max_length = {bound}; truncate it, or raise a DataError"
        )
    else:
        advice = "raise rlcore.errors.DataError that names the row"
        require(isinstance(made, DataError), f"a row longer than max_length raises {describe_error(made)}; {advice}")


@law(PIPELINES)
def an_empty_source_is_refused_clearly(subject: Subject) -> None:
    """A source without rows raises a DataError that names the source."""
    made = _attempt(subject, [], what="eval_prompts")
    advice = "raise rlcore.errors.DataError, beginning with `what`"
    require(not isinstance(made, list), f"an empty source gives {made!r}; {advice}")
    if isinstance(made, Exception):
        require(isinstance(made, DataError), f"an empty source raises {describe_error(made)}; {advice}")
        require(
            "eval_prompts" in str(made), f"the error for an empty source, '{made}', does not name the source; {advice}"
        )


@law(PIPELINES)
def padding_with_eos_changes_nothing(subject: Subject) -> None:
    """A tokenizer whose padding token is EOS gives the same entries as one with a separate padding token."""
    rows = _rows(subject)
    padded = _run(subject, rows, pad_is_eos=True)
    _compare(_run(subject, rows), padded, "with a tokenizer that pads with EOS", "do not identify padding by its id")


def _pipeline(subject: Subject) -> Callable[..., Any]:
    """Return the pipeline: the target, or, if the component has options, the target's return value."""
    config = subject.config()
    target: Callable[..., Any] = subject.it.target()
    return target if config is None else target(config)


def _mappings(subject: Subject) -> Sequence[Mapping[str, Any]] | None:
    """Return rows that are mappings and that the pipeline accepts, or None if there are none."""
    from rlcore.protocols import PipelineTraits

    shown = PipelineTraits(subject.it.target()).example_rows
    for rows in FORMS if shown is None else (shown,):
        if all(isinstance(row, Mapping) for row in rows) and isinstance(_attempt(subject, rows), list):
            return rows
    return None


def _sources(rows: Sequence[Mapping[str, object]], folder: Path) -> dict[str, Any]:
    """Return files and data sets of rows, by what they are."""
    from datasets import Dataset

    names = list(dict.fromkeys(key for row in rows for key in row))
    lines, table, cells = (folder / f"rows.{ending}" for ending in ("jsonl", "parquet", "csv"))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with cells.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    found: dict[str, object] = {"a .jsonl file": str(lines), "a .csv file": str(cells)}
    try:
        made = Dataset.from_list([{name: row.get(name) for name in names} for row in rows])
    except (ValueError, TypeError):  # rows whose values have no common type in Arrow
        return found
    _write_parquet(made, table)
    return found | {"a .parquet file": str(table), "a datasets.Dataset": made}


def _write_parquet(rows: Any, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows.data.table, str(path))


def _cell(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _tokens(entries: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the tokens of each sequence, with the mask of those that are chosen."""
    return [(i, tuple(each.tokens), tuple(getattr(each, "action_mask", ()))) for i, each in _sequences(entries)]


def _rows(subject: Subject) -> Sequence[Any]:
    """Return rows that the pipeline accepts."""
    from rlcore.protocols import PipelineTraits
    from rlcore.types import Prompt

    shown = PipelineTraits(subject.it.target()).example_rows
    complaints = []
    for rows in FORMS if shown is None else (shown,):
        made = _attempt(subject, rows)
        # Strings are accepted by both kinds of pipelines; for demonstrations the kit prefers pairs.
        if isinstance(made, list) and (rows is not FORMS[0] or all(isinstance(entry, Prompt) for entry in made)):
            return rows
        complaints.append(f"{rows[0]!r}: {describe_error(made) if isinstance(made, Exception) else 'no prompts'}")
    raise LawBroken(
        f"it accepts none of the kit's rows ({'; '.join(complaints)}); list rows that it accepts in its attribute "
        "`example_rows`"
    )


def _run(subject: Subject, rows: Sequence[object], *, pad_is_eos: bool = False) -> list[Any]:
    made = _attempt(subject, rows, pad_is_eos=pad_is_eos)
    if isinstance(made, Exception):
        raise LawBroken(f"{len(rows)} rows that it accepted before raise {describe_error(made)}") from made
    return made


def _attempt(subject: Subject, rows: Sequence[Any], **how: Any) -> list[Any] | Exception:
    """Call a pipeline with a copy of `rows` and return the entries or the exception."""
    try:
        return _call(subject, copy.deepcopy(rows), **how)
    except Exception as error:  # noqa: BLE001  a plugin's pipeline may raise anything
        return error


def _call(
    subject: Subject,
    rows: Sequence[object],
    *,
    max_length: int = MAX_LENGTH,
    what: str = "prompts",
    pad_is_eos: bool = False,
    tokenizer: Any = None,
) -> list[Any]:
    from rlcore.settings import DataConfig
    from rlcore_testing.small import make_tokenizer

    tokenizer = tokenizer or make_tokenizer(pad_is_eos=pad_is_eos)
    data = structure(DataConfig, subject.sections.get("data", {}), where="config", path="data")
    return list(_pipeline(subject)(rows, tokenizer, data, max_length=max_length, what=what))


def _compare(first: Sequence[object], then: Sequence[object], when: str, advice: str) -> None:
    require(len(first) == len(then), f"there are {len(first)} entries, but {when} {len(then)}; {advice}")
    for i, (one, other) in enumerate(zip(first, then, strict=True)):
        require(_plain(one) == _plain(other), f"entry {i} is {_plain(one)}, but {when} {_plain(other)}; {advice}")


def _sequences(entries: Sequence[object]) -> Iterator[tuple[int, Any]]:
    """Yield the prompt of each entry, or each of its sequences, with its index."""
    from rlcore.types import Prompt, sequences_of

    for i, entry in enumerate(entries):
        found = [entry] if isinstance(entry, Prompt) else sequences_of(entry)
        require(bool(found), f"entry {i} is {entry!r:.80}, without a `Sample` among its fields")
        yield from ((i, each) for each in found)


def _chosen(entry: Any) -> list[int]:
    """Return the tokens that a demonstration marks; none of a prompt or a row of another form."""
    mask: Sequence[bool] = getattr(entry, "action_mask", ())
    return [token for token, is_chosen in zip(getattr(entry, "tokens", ()), mask, strict=False) if is_chosen]


def _plain(entry: Any) -> Any:
    return (
        entry
        if isinstance(entry, tuple | list)
        else {field.name: getattr(entry, field.name) for field in attrs.fields(type(entry))}
    )


def _first_change(was: Sequence[object], now: Sequence[object]) -> str:
    return next((f"{other!r} from {one!r}" for one, other in zip(was, now, strict=False) if one != other), "")
