"""Options of the rewards; light, so that `rlcore show` needs none of their libraries."""

from __future__ import annotations

from typing import Any, Literal

from rlcore.config import config, option

YEO = "Yeo et al. 2025, arXiv:2502.03373"
DAPO = "Yu et al. 2025, arXiv:2503.14476, eq. 13"
LONGEST_S = 1e6
"""Largest time limit, in seconds."""


@config
class PartOptions:
    """Which part of an output a reward reads."""

    after: str = option(
        "", "read only what follows the last occurrence of this text, such as `</think>`; an output without it counts "
        "as empty",
    )  # fmt: skip


@config
class MathAccuracyConfig(PartOptions):
    """Answers that are compared as mathematics, by math-verify."""

    column: str = option("answer", "column of the prompts with the right answer, as LaTeX or plain text")
    report: Literal["accuracy", "parsed"] = option(
        "accuracy", "`accuracy`: 1 for an answer that equals the column's, 0 for another; `parsed`: 1 if an answer "
        "could be parsed, 0 if not, to be logged beside it with `weight: 0`",
    )  # fmt: skip
    unparsed: float | None = option(
        0.0,
        "accuracy of an output without an answer that can be parsed; null: no reward. A warning counts these outputs",
    )
    decimals: int = option(6, "decimal numbers are compared after rounding to so many places", ge=0, le=50)
    strict: bool = option(
        True, "variables must have the same names, and sets are not equal to tuples or lists of equations"
    )
    timeout_s: float = option(
        5.0, "an output that takes longer to parse and compare counts as not parsed", gt=0, le=LONGEST_S, unit="seconds"
    )
    memory_mb: int = option(2048, "address space of each process that compares", ge=512, unit="MiB")
    processes: int = option(1, "processes that compare at a time; each starts in about a second", ge=1, le=1024)


@config
class ExactMatchConfig(PartOptions):
    """Outputs that are compared with a column as text."""

    column: str = option("answer", "column with the expected text, or a list of texts, any of which is right")
    extract: str = option(
        "", "compare only what the group of this pattern matches, at its last match in the output, such as "
        "`#### *(.+)`; an output without a match is wrong",
    )  # fmt: skip
    strip: bool = option(True, "ignore white space at both ends")
    squeeze: bool = option(False, "treat any run of white space as one blank")
    ignore_case: bool = option(False, "ignore case, as `str.casefold` does")
    ignore_punctuation: bool = option(False, "remove all punctuation (Unicode categories P)")
    unicode: Literal["none", "NFC", "NFKC"] = option("NFC", "normal form of Unicode of both texts")


@config
class RegexConfig(PartOptions):
    """Outputs in which a pattern is searched for."""

    pattern: str = option("", "regular expression in the syntax of the library `regex`, which contains that of `re`")
    mode: Literal["search", "fullmatch", "absent", "count"] = option(
        "search", "1 if the pattern is found, if it matches the whole output, or if it is not found; `count`: the "
        "number of matches, at most `most`, divided by `most`",
    )  # fmt: skip
    most: int = option(1, "with `mode: count`, so many matches give 1", ge=1)
    ignore_case: bool = option(False, "ignore case")
    multiline: bool = option(False, "`^` and `$` match at each line")
    dot_all: bool = option(False, "`.` matches the ends of lines too")
    timeout_s: float = option(
        1.0, "a search that takes longer is given up, and the output gets no reward; a warning counts these", gt=0,
        le=LONGEST_S, unit="seconds",
    )  # fmt: skip


@config
class JsonSchemaConfig(PartOptions):
    """Outputs that must be JSON of a schema, checked by jsonschema."""

    schema: Any = option(None, "JSON schema, as a mapping or the path of a JSON file; default: any JSON")
    column: str | None = option(
        None, "column with the schema of each prompt, a mapping or JSON text; instead of `schema`"
    )
    find: Literal["whole", "fenced", "first"] = option(
        "whole", "where the JSON is: `whole`: the whole output; `fenced`: the last block between lines of ```; "
        "`first`: the first object or array in the output",
    )  # fmt: skip
    parsed: float = option(0.0, "reward of JSON that does not fit the schema", ge=0, le=1)
    formats: bool = option(False, "check the keyword `format` too, where jsonschema has what it needs for it")


@config
class LengthConfig:
    """The length of outputs."""

    unit: Literal["tokens", "characters", "words"] = option(
        "tokens", "what is counted: sampled tokens, EOS included; characters; or words between white space"
    )
    cap: int | None = option(
        None, "longest output without a penalty: 0 up to `cap`, then a line down to -1 at `cap` + `slack`", ge=0,
        source=DAPO,
    )  # fmt: skip
    target: int | None = option(
        None, "best length, instead of `cap`: 1 there, and a line down to 0 at a distance of `slack`", ge=0
    )
    slack: int = option(0, "width of the line; 0: a step", ge=0)


@config
class RepetitionConfig:
    """A penalty for n-grams that occur before in the same output."""

    n: int = option(3, "length of the n-grams", ge=1, le=1000, source=YEO)
    unit: Literal["tokens", "characters", "words"] = option(
        "words", "what n-grams consist of: words between white space, sampled tokens or characters"
    )
    free: float = option(0.0, "share of repeated n-grams without a penalty", ge=0, lt=1)
    ignore_case: bool = option(True, "with words and characters, ignore case")


@config
class LanguageConfig(PartOptions):
    """The language of outputs, detected by lingua."""

    language: str | None = option(None, "ISO 639-1 code of the language to write in, such as `de`")
    column: str | None = option(None, "column with the code for each prompt, instead of `language`")
    among: tuple[str, ...] = option(
        ("en", "de", "fr", "es", "it", "pt", "ru", "zh"), "languages that are told apart; fewer are more reliable, "
        "faster and need less memory; `language` need not be repeated here",
    )  # fmt: skip
    report: Literal["match", "confidence"] = option(
        "match", "`match`: 1 if the language is the most likely one, else 0; `confidence`: its probability, rounded to "
        "6 places",
    )  # fmt: skip
    undecided: float | None = option(
        0.0, "reward of outputs in which no language can be detected, such as empty ones and numbers; null: none. A "
        "warning counts these outputs",
    )  # fmt: skip


@config
class CodeTestsConfig(PartOptions):
    """Python code that is run on tests, each in a process of its own."""

    column: str = option(
        "tests", "column with the tests of a prompt: a list of statements such as `assert f(1) == 2`, or of mappings "
        "with `input` and `output`, or a mapping of lists `inputs` and `outputs`, also as JSON text; or one text of "
        "Python",
    )  # fmt: skip
    find: Literal["fenced", "whole"] = option(
        "fenced", "where the code is: `fenced`: the last block between lines of ```, and the whole output if it has "
        "none; `whole`: the whole output",
    )  # fmt: skip
    credit: Literal["share", "all"] = option(
        "share", "`share`: the share of passed tests; `all`: 1 if all pass, else 0"
    )
    most_tests: int = option(100, "a prompt with more tests is an error", ge=1)
    timeout_s: float = option(5.0, "time limit of a test, by the clock", gt=0, le=LONGEST_S, unit="seconds")
    memory_mb: int = option(512, "address space of each process of a test", ge=64, unit="MiB")
    processes: int = option(16, "most processes and threads of a test, its own included", ge=1, le=100_000)
    open_files: int = option(64, "most files that a process of a test has open", ge=16, le=100_000)
    file_mb: int = option(16, "size of the largest file that a test writes; its output is one", ge=1, unit="MiB")
    workers: int = option(0, "tests that run at a time; 0: one on each CPU", ge=0, le=1024)
    isolation: Literal["try", "require", "none"] = option(
        "try", "no sockets and no way to see other processes, by a filter and namespaces of Linux: `try`: where the "
        "system allows it, with a warning where not; `require`: an error where not; `none`: the network is allowed",
    )  # fmt: skip
    python: str | None = option(None, "Python interpreter that runs the tests; default: this one")


@config
class JudgeConfig(PartOptions):
    """A model that judges outputs by a rubric, behind a server with the API of OpenAI."""

    url: str = option("http://localhost:8000/v1", "address of the server's API, without `/chat/completions`")
    model: str = option("", "name of the model that judges")
    rubric: str = option(
        "", "what the judge is asked; `{prompt}`, `{output}` and `{NAME}` of a column stand for their texts. It should "
        "ask for a line such as `Score: 7`",
    )  # fmt: skip
    system: str = option("", "system prompt; empty: none")
    pattern: str = option(
        r"(?i)score\W*?(-?\d+(?:\.\d+)?)", "regular expression whose group is the score, at its last match in the reply"
    )
    low: float = option(0.0, "lowest score, which becomes the reward 0")
    high: float = option(10.0, "highest score, which becomes the reward 1; a score outside counts as a failure")
    key_env: str = option("OPENAI_API_KEY", "environment variable with the key; not set: requests without a key")
    temperature: float = option(0.0, "temperature of the judge", ge=0, le=2)
    max_tokens: int = option(256, "most tokens of a reply", ge=1, unit="tokens")
    timeout_s: float = option(60.0, "a request that takes longer has failed", gt=0, le=LONGEST_S, unit="seconds")
    retries: int = option(
        4, "how often a request is repeated that took too long, found no server or was answered with the status 408, "
        "409, 429 or 5xx", ge=0, le=100,
    )  # fmt: skip
    backoff_s: float = option(
        1.0, "wait before the first repetition, doubled for each further one up to a minute; the server's Retry-After "
        "takes precedence if it is longer", ge=0, le=60, unit="seconds",
    )  # fmt: skip
    concurrency: int = option(16, "most requests at a time", ge=1, le=10_000)
    max_requests: int | None = option(
        None, "requests of this process, repetitions included, after which the run ends; default: no limit", ge=1
    )
    max_total_tokens: int | None = option(
        None, "tokens of this process, as the server counts them, after which the run ends; default: no limit", ge=1,
        unit="tokens",
    )  # fmt: skip
    max_failed: float = option(
        0.5, "an error ends the run if a larger share of the judgements of one call fails", ge=0, le=1
    )
    cache: str | None = option(
        None, "folder of judge_cache.jsonl, where replies are kept and found again; default: the run's folder"
    )
