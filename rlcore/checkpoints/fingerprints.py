"""Fingerprints: short plain descriptions of data, functions, models and tokenizers that differ where these differ."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import hashlib
import inspect
import os
import re
import textwrap
import tokenize
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor, nn

from rlcore.config.options import to_json, to_plain
from rlcore.errors import DataError
from rlcore.protocols import TokenizerTraits
from rlcore.safe_text import is_secret
from rlcore.types import Prompt, Sample, SampleReward
from rlcore.types.trajectories import has_samples

DIGITS = 16
"""Hexadecimal digits of a fingerprint."""
BLOCKS, BLOCK_BYTES = 256, 4096
"""Blocks of a file of weights that are read, evenly spaced, so that large models do not start more slowly."""
ELEMENTS = 256
"""Elements of a tensor in memory that are read, evenly spaced."""
WEIGHTS = (".safetensors", ".bin", ".gguf")
DESCRIBED = "config.json"
"""File of a model on the hub by which its commit is found in the local cache."""
VOLATILE = {"transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "attn_implementation"}
"""Entries of a model's configuration that loading and saving change; so are all that begin with an underscore."""


def digest(parts: Iterable[bytes]) -> str:
    """Return the first digits of the SHA-256 of a sequence of byte strings, each preceded by its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:DIGITS]


def fingerprint_rows(rows: Sequence[object]) -> str:
    """Return the number of rows and a digest of them.

    Of prompts the text, the tokens and the columns count, of rows of other forms, such as pairs, every field.
    """
    try:
        return f"{len(rows)} rows, sha256 {digest(part for row in rows for part in _row(row))}"
    except RecursionError:
        raise DataError("a column of the data is nested too deep, or contains itself") from None


def _row(row: Any) -> Iterator[bytes]:
    if isinstance(row, Prompt):
        columns = to_json(row.columns) if row.columns else ""
        yield from (_encode(row.text), array("q", row.tokens).tobytes(), _encode(columns))
    elif isinstance(row, Sample):
        yield from (array("q", row.tokens).tobytes(), bytes(row.action_mask), bytes([row.ended]))
    elif isinstance(row, SampleReward):
        yield from (array("d", row.tokens).tobytes(), bytes([row.dense]))
    elif isinstance(row, tuple | list):
        yield len(row).to_bytes(8, "little")
        for sample in row:
            yield from _row(sample)
    else:
        for value in (getattr(row, field.name) for field in attrs.fields(type(row))):
            yield from _row(value) if has_samples(value) else [_encode(to_json(value))]


def fingerprint_table(table: Tensor) -> str:
    """Return the shape of a table of booleans and a digest of it."""
    shape = " x ".join(map(str, table.shape))
    return f"{shape}, sha256 {digest([table.cpu().numpy().tobytes()])}"


def describe_function(function: Any) -> str:
    """Return the qualified name of a function, the values that are bound to it, and a digest of its source.

    Comments and formatting do not change the digest. A lambda, whose source is a part of a line, and a function without
    source are identified by their compiled code, an object that is called by the source of its class. Bound values are
    the arguments of a partial, and numbers and texts among defaults, the closure and public attributes. The source of
    other functions that it calls does not count.
    """
    bound: dict[str, Any] = {}
    while True:
        inner = inspect.unwrap(function)
        if isinstance(inner, functools.partial):
            given = {str(i): value for i, value in enumerate(inner.args)}
            bound = {**given, **inner.keywords} | bound
            inner = inner.func
        elif inspect.ismethod(inner):
            bound |= _scalars(_attributes(inner.__self__))
            inner = inner.__func__
        if inner is function:
            break
        function = inner
    if not (isinstance(function, type) or inspect.isroutine(function)):
        bound |= _scalars(_attributes(function))
        function = type(function)
    code = function.__code__ if inspect.isfunction(function) else None
    bound |= {} if code is None else _closed_over(function, code)
    module = getattr(function, "__module__", None)  # some that are written in C have none
    return describe_bound(f"{module}:{function.__qualname__}", bound) + f", {_source(function, code)}"


def describe_bound(name: str, values: Mapping[str, object]) -> str:
    """Return a name with values in brackets: numbers, and digests of all else, which may be long or secret."""
    shown = []
    for key, value in values.items():
        is_number = isinstance(value, bool | int | float) and not is_secret(key)
        shown.append(f"{key}={value if is_number else digest([_encode(to_json(value))])}")
    return f"{name}({', '.join(shown)})" if shown else name


def _source(function: Any, code: CodeType | None) -> str:
    text = ""
    if code is None or code.co_name != "<lambda>":
        # A function may have no source, or the source of a notebook with syntax of its own.
        with contextlib.suppress(OSError, TypeError, SyntaxError, tokenize.TokenError):
            text = textwrap.dedent(inspect.getsource(function))
            text = ast.unparse(ast.parse(text))
    if text:
        return f"source {digest([_encode(text)])}"
    return "no source" if code is None else f"code {digest(_compiled(code))}"


def _compiled(code: CodeType) -> Iterator[bytes]:
    yield from (code.co_code, repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _compiled(constant)
        else:
            ordered = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            yield _encode(repr(ordered))


def _closed_over(function: FunctionType, code: CodeType) -> dict[str, Any]:
    """Return the numbers and texts among the defaults and the closure of a function."""
    positional = zip(
        reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False
    )
    values: dict[str, object] = {**dict(positional), **(function.__kwdefaults__ or {})}
    rebound = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}  # counters
    cells = function.__closure__ or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        if name in rebound:
            continue
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return _scalars(values)


def _attributes(called: object) -> Mapping[str, object]:
    return {} if isinstance(called, type) else getattr(called, "__dict__", {})  # with slots there is none


def _scalars(values: Mapping[str, object]) -> dict[str, object]:
    public = {name: value for name, value in values.items() if name[:1] != "_"}
    return {name: value for name, value in public.items() if isinstance(value, bool | int | float | str)}


def describe_model(module: nn.Module, named: object, revision: str | None) -> dict[str, Any]:
    """Return what identifies the model that a policy was built from.

    Args:
        module: the policy's module.
        named: the model as the user gave it. Only of a hub id or folder, the hub id, the commit and the weights count:
            a run keeps the weights of other models itself.
        revision: `model.revision`.
    """
    config = _config_of(module)
    if config is None:
        about = {"config": None, "weights": fingerprint_parameters(module)}
    else:
        about = {"config": digest([_encode(to_json(_lasting(config)))])}
    if not isinstance(named, str | os.PathLike):
        return about
    folder = Path(named).expanduser()
    if folder.exists():
        return about | {"weights": fingerprint_weights(folder)}
    return about | {"hub_id": os.fspath(named), "commit": _commit_of(os.fspath(named), revision)}


def _commit_of(name: str, revision: str | None) -> str | None:
    """Return the commit of a model of the hub from which its configuration was loaded; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, DESCRIBED, revision=revision or "main")
    return Path(found).parent.name if isinstance(found, str) else None


@runtime_checkable
class _Configuration(Protocol):
    """The configuration of a model, such as that of a model of `transformers`."""

    def to_dict(self) -> Mapping[str, Any]: ...


def _config_of(module: nn.Module) -> Mapping[str, object] | None:
    """Return the configuration of the first model in `module` that has one, or the mapping that `module` has as one."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if isinstance(config, _Configuration):
            return config.to_dict()
    found = getattr(module, "config", None)
    return found if isinstance(found, Mapping) else None


def _lasting(value: object) -> object:
    if isinstance(value, Mapping):
        kept = {str(key): part for key, part in value.items() if str(key) not in VOLATILE and str(key)[:1] != "_"}
        return {key: _lasting(kept[key]) for key in sorted(kept)}
    return value


def fingerprint_parameters(model: nn.Module) -> str:
    """Return a digest of the parameters of a model in memory: their names, shapes and evenly spaced elements."""
    parts: list[bytes] = []
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // ELEMENTS)].cpu().contiguous()
        parts += [_encode(f"{name} {list(parameter.shape)}"), some.view(torch.uint8).numpy().tobytes()]
    return f"sha256 {digest(parts)}"


def fingerprint_weights(folder: Path) -> str:
    """Return a digest of the files of weights in a folder: their names, sizes and evenly spaced blocks.

    A folder without any is that of a model of several parts, each in a folder inside it. A model may also be one file.
    """
    parts: list[bytes] = []
    files = [folder] if folder.is_file() else [path for path in folder.glob("*") if path.suffix in WEIGHTS]
    for path in sorted(files or [path for path in folder.glob("*/*") if path.suffix in WEIGHTS]):
        size = path.stat().st_size
        parts += [_encode(path.relative_to(folder).as_posix()), str(size).encode()]
        with path.open("rb") as file:
            for block in range(BLOCKS):
                file.seek(max(0, size - BLOCK_BYTES) * block // (BLOCKS - 1))
                parts.append(file.read(BLOCK_BYTES))
    return digest(parts)


TIME = "strftime_now"
"""The function with which chat templates render the time."""


@runtime_checkable
class _Vocabulary(Protocol):
    """What the tokenizers of `transformers` tell of themselves."""

    special_tokens_map: Mapping[str, Any]
    chat_template: Any

    def get_vocab(self) -> Mapping[str, int]: ...

    def get_added_vocab(self) -> Mapping[str, int]: ...


def fingerprint_tokenizer(tokenizer: object) -> str:
    """Return a digest of all that decides which tokens a row becomes; of other tokenizers, of their class."""
    if not isinstance(tokenizer, _Vocabulary):
        return f"{type(tokenizer).__module__}:{type(tokenizer).__qualname__}"
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:  # which tokenizers in Rust have
        parts = [type(tokenizer).__name__.encode(), _encode(to_json(sorted(tokenizer.get_vocab().items())))]
    else:
        steps = (backend.model, backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder)
        parts = [b"" if step is None else step.__getstate__() for step in steps]
    special = sorted(to_plain(tokenizer.special_tokens_map).items())
    beside_texts = TokenizerTraits(tokenizer).fingerprint_parts
    more = (sorted(tokenizer.get_added_vocab().items()), special, tokenizer.chat_template, *beside_texts)
    return digest([*parts, _encode(to_json(more))])


def rendered_time(tokenizer: object) -> str | None:
    """Return the time as a tokenizer's chat template would render it now; None if the template renders none."""
    template = str(tokenizer.chat_template) if isinstance(tokenizer, _Vocabulary) else ""
    if TIME not in template:
        return None
    formats = dict.fromkeys(re.findall(rf"""{TIME}\(\s*(?:"([^"]+)"|'([^']+)')""", template))
    now = datetime.now()  # noqa: DTZ005  as templates of transformers render it
    return ", ".join(now.strftime(one or other) for one, other in formats) or now.strftime("%d %b %Y")


def time_variables(tokenizer: object) -> list[str]:
    """Return the variables of a tokenizer's chat template that can be set in place of the time that it renders."""
    template = str(tokenizer.chat_template) if isinstance(tokenizer, _Vocabulary) else ""
    names = dict.fromkeys(re.findall(rf"set\s+(\w+)\s*=\s*{TIME}", template))
    return [name for name in names if re.search(rf"\b{name}\s+is\s+(not\s+)?defined\b", template)]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
