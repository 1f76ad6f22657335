"""The configuration that a conversion writes, and what it could not convert."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from rlcore.config import describe, dump_yaml, load_yaml, merge
from rlcore.config.structure import structure_valid
from rlcore.errors import ConfigError
from rlcore.safe_text import HIDDEN, is_secret, redact, shorten, visible
from rlcore.settings import TrainConfig
from rlcore_tools.synonyms import LibraryName, synonyms
from rlcore_transformers.models.model_options import CausalLMConfig, TokenizerConfig
from rlcore_transformers.sampling.token_options import TokenOptions

MODEL_KEYS = frozenset({"model.path", "model.architecture", "model.tokenizer"})

NEUTRAL: Mapping[str, float] = MappingProxyType({"min_p": 0.0, "repetition_penalty": 1.0})
"""Values of options on tokens that change nothing."""
LONGEST = 160
"""Characters of a value that is not converted, such as a chat template, in the report and in the file's comments."""
SECTIONS = ("model", "trainer", "data", "gen", "sampler", "eval", "checkpoint", "run")
"""Sections of a written configuration, in their order."""


@attrs.define
class Conversion:
    """A configuration in the making.

    Attributes:
        trainer: name of the trainer.
        options: class of its options.
        values: the sections of the configuration.
        notes: what was converted and must be checked.
        left: what could not be converted, and why.
        refused: values of a wrong type or range; with any, no configuration is written.
        names: an argument's name in messages, where the file has another one than the table.
    """

    trainer: str
    options: type
    values: dict[str, Any] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    left: list[str] = attrs.field(factory=list)
    refused: list[str] = attrs.field(factory=list)
    names: dict[str, str] = attrs.field(factory=dict)
    _known: Collection[str] = attrs.field(factory=frozenset)

    def __attrs_post_init__(self) -> None:
        rows = [
            ("", TrainConfig), ("trainer.", self.options), ("model.", CausalLMConfig), ("sampler.", TokenOptions)
        ]  # fmt: skip
        known = {prefix + row.path for prefix, cls in rows for row in describe(cls)}
        self._known = known | MODEL_KEYS | {f"model.tokenizer.{row.path}" for row in describe(TokenizerConfig)}
        self.put("trainer.name", self.trainer)

    def has(self, path: str) -> bool:
        """Return whether an option exists in a run with this trainer."""
        return path in self._known

    def put(self, path: str, value: Any) -> None:
        """Set an option."""
        for step in reversed(path.split(".")):
            value = {step: value}
        self.values = merge(self.values, value)

    def put_each(self, options: Mapping[str, object]) -> None:
        """Set options by dotted path."""
        for path, value in options.items():
            self.put(path, value)

    def put_sampling(self, name: str, value: Any, *, source: str = "", section: str = "gen") -> None:
        """Set what replaces an argument of `generate` of transformers, or report why nothing does.

        Args:
            name: the argument.
            value: its value; null is ignored.
            source: what its name in the converted file begins with.
            section: `gen`, or `eval.gen` for evaluations alone.
        """
        if value is None or name == "pad_token_id":
            return
        if name == "do_sample":
            if not value:
                self.put(f"{section}.temperature", 0.0)
        elif name == "eos_token_id":
            self.put(f"{section}.eos_token_ids", value if isinstance(value, list) else [value])
        elif name in ("suppress_tokens", "bad_words_ids", "sequence_bias"):
            self._put_tokens(name, value, source)
        elif self.has(f"gen.{name}"):
            whole = name == "top_k" and isinstance(value, float)
            self.put(f"{section}.{name}", int(value) if whole else value)
        elif self.has(f"sampler.{name}"):
            if value != NEUTRAL.get(name):
                self.put("sampler", {"name": "default", name: value})
        elif name != "num_beams" or value != 1:
            found = synonyms("generate").get(name)
            self.leave(f"{source}{name}", value, found.how if found else "gen has no such option")

    def _put_tokens(self, name: str, value: Any, source: str) -> None:
        """Set the option on tokens that replaces an argument of `generate`, or report that it is about several tokens.

        Args:
            name: `suppress_tokens`, a list of ids; `bad_words_ids`, a list of lists; or `sequence_bias`, a mapping from
                tuples to biases, or a list of pairs of a list and a bias.
            value: its value.
            source: what its name in the converted file begins with.
        """
        if name == "sequence_bias":
            pairs = list(value.items() if isinstance(value, Mapping) else value)
            sequences, path = [ids for ids, _ in pairs], "logit_bias"
            tokens: list[object] = [[ids[0], bias] for ids, bias in pairs if len(ids) == 1]
        else:
            sequences, path = [each if name == "bad_words_ids" else [each] for each in value], "forbidden_tokens"
            tokens = [ids[0] for ids in sequences if len(ids) == 1]
        if long := [ids for ids in sequences if len(ids) != 1]:
            self.leave(
                f"{source}{name}", value, f"{list(long[0])} has {len(long[0])} tokens, and options are about one"
            )
        else:
            already = self.values.get("sampler", {}).get(path, [])
            self.put("sampler", {"name": "default", path: [*already, *tokens]})

    def leave(self, name: str, value: object, reason: str) -> None:
        """Report an option that is not converted."""
        self.left.append(f"{self.names.get(name, name)} = {_shown(name, value)}: {reason}")

    def refuse(self, name: str, value: object, allowed: str) -> None:
        """Report a value that neither library accepts."""
        self.refused.append(f"{self.names.get(name, name)} = {_shown(name, value)}: {allowed}")

    def convert(self, synonym: LibraryName | None, name: str, value: object) -> None:
        """Set the option that replaces `name`, or report why it is not converted; null and unused switches ask nothing.

        Args:
            synonym: the option's entry in the table, None if it has none.
            name: the option's name in the converted file.
            value: its value there.
        """
        if synonym is None:
            self.leave(name, value, "no option of this meaning is known")
            return
        if value is None and not synonym.values.get("none"):
            return
        fitting = [paths for paths in synonym.alternatives if all(map(self.has, paths))]
        if fitting:
            self._convert_to(fitting[0], synonym, value)
        elif synonym.alternatives:
            self.leave(name, value, f"trainer '{self.trainer}' has no {synonym.ours}")
        elif value not in (False, 0, "", [], {}):
            self.leave(name, value, synonym.how)

    def _convert_to(self, paths: tuple[str, ...], synonym: LibraryName, value: object) -> None:
        """Set the options of `paths`, or report that the value must be converted by hand."""
        key = str(value).lower() if isinstance(value, bool) or value is None else str(value)
        if key in synonym.values:
            self.put_each(dict.fromkeys(paths, synonym.values[key]))
        elif synonym.negated:
            self.put_each(dict.fromkeys(paths, not value))
        elif synonym.same or not (synonym.values or synonym.how):
            self.put_each(dict.fromkeys(paths, value))
        elif value is not False:
            reason = f"set {' and '.join(paths)} by hand{f': {synonym.how}' if synonym.how else ''}"
            self.leave(synonym.name, value, reason)

    def check(self, given: Mapping[str, object], library: str) -> None:
        """Refuse values that are of another type or range than the options here, and report missing inputs.

        Args:
            given: the values of the converted file by their names there, which the messages begin with.
            library: table of the names, `trl` or `trlx`.
        """
        model = self.values.get("model", {})
        rest = {name: value for name, value in model.items() if f"model.{name}" not in MODEL_KEYS}
        sampler = self.values.get("sampler", {})
        sections: list[tuple[type, Mapping[str, object], str]] = [
            (TrainConfig, self.values, ""),
            (self.options, _without_name(self.values["trainer"]), "trainer"),
            (CausalLMConfig, rest, "model"),
            (TokenizerConfig, model.get("tokenizer", {}), "model.tokenizer"),
            (TokenOptions, _without_name(sampler), "sampler"),
        ]
        for cls, values, path in sections:
            _, error = structure_valid(cls, values, path=path)
            for line in str(error).splitlines() if error is not None else ():
                self.refused.append(f"{self._source(line, given, library)}{line}")
        if not isinstance(model.get("path"), str | None):
            line = f"model.path = {_shown('path', model['path'])}: must be a text, the hub id or the folder of a model"
            self.refused.append(f"{self._source('model.path', given, library)}{line}")
        if "path" not in model:
            self.notes.append("model.path: the file names no model")
        if not {"samples", "prompts"} & set(self.values.get("data", {})):
            self.notes.append("data: the file names no samples or prompts")

    def _source(self, line: str, given: Mapping[str, object], library: str) -> str:
        """Return the beginning of the message on an option: the names in the converted file that set it."""
        found = re.match(r"[\w.]+", line)
        steps = found[0].split(".") if found else []
        for end in range(len(steps), 1, -1):
            path, known = ".".join(steps[:end]), synonyms(library)
            names = [
                name for name in given if name in known and any(path in paths for paths in known[name].alternatives)
            ]
            if names:
                return "".join(f"{self.names.get(name, name)} = {_shown(name, given[name])}: " for name in names)
        return ""

    def problem_of(self, path: str, value: object) -> str:
        """Return why an option cannot have a value, as a line; nothing if it can."""
        alone = Conversion(self.trainer, self.options)
        alone.put(path, value)
        alone.check({}, "")
        return next((line for line in alone.refused if line.startswith(path)), "")

    def as_yaml(self, source: str) -> str:
        """Return the configuration as YAML, beginning with comments for what was not converted.

        Raises:
            ConfigError: a value is refused, or YAML cannot contain it.
        """
        if self.refused:
            raise ConfigError("\n".join(self.refused))
        order = [name for name in SECTIONS if name in self.values]
        if "path" in (model := self.values.get("model", {})):
            self.values["model"] = {"path": model["path"], **model}
        sections = {name: self.values[name] for name in [*order, *(each for each in self.values if each not in order)]}
        lines = [f"Converted from {source} by `rlcore convert`."]
        lines += [f"Not converted: {line}" for line in self.left] + [f"Check: {line}" for line in self.notes]
        text = "".join(f"# {one_line(line)}\n" for line in lines) + dump_yaml(sections)
        _compare(text, sections)
        return text


def one_line(text: str) -> str:
    """Return text as one line, with its line breaks and control characters escaped."""
    return visible(text).replace("\n", "\\n")


def _shown(name: str, value: object) -> str:
    """Return a value for a message: plain text as it is, anything else as Python writes it, secrets hidden."""
    if is_secret(name.rpartition(".")[2]) and value not in (None, "", False):
        return HIDDEN
    if isinstance(value, str) and value.isprintable() and len(value) <= LONGEST:
        return value
    return shorten(redact(value), LONGEST)


def _without_name(section: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != "name"}


def _compare(text: str, values: Mapping[str, object]) -> None:
    """Read a configuration as a run would, and compare it with the values that it was written from.

    Raises:
        ConfigError: the values differ, or the file cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.yaml"
        path.write_text(text, encoding="utf-8")
        read = load_yaml(path)
    if not _equal(read, values):
        names = [name for name in values if not _equal(read.get(name), values[name])]
        raise ConfigError(f"{', '.join(names)}: would be read as other values than were written; nothing is saved")


def _equal(read: object, written: object) -> bool:
    """Whether two plain values are equal, of the same types; NaN equals itself, and a tuple is read as a list."""
    if isinstance(written, Mapping):
        return (
            isinstance(read, dict)
            and list(read) == list(written)
            and all(_equal(read[name], value) for name, value in written.items())
        )
    if isinstance(written, list | tuple):
        return isinstance(read, list) and len(read) == len(written) and all(map(_equal, read, written))
    if isinstance(written, float) and math.isnan(written):
        return isinstance(read, float) and math.isnan(read)
    return type(read) is type(written) and bool(read == written)
