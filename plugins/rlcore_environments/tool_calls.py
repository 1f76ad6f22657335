"""Calls of tools in what a policy wrote, in the forms of the common model families.

* Hermes, Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them
* Llama 3.1: `{"name": ..., "parameters": {...}}`, also after `<|python_tag|>`
* Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`, and `[TOOL_CALLS]name[ARGS]{...}`, any number of them
* Python: `[add(a=1, b=2)]`, also in a block ```tool_code, as Gemma and Llama 4 write them

A tokenizer of transformers that describes its model's messages (`response_template`) reads them in their own form.

A text that is in none of the forms has no calls; one that begins a form and breaks it has a call with an `error`.
Calls are read behind the reasoning of a turn, `<think>...</think>` or `[THINK]...[/THINK]`, as servers of models do; a
turn whose reasoning does not end has none.

Also in this file: arguments of a call, checked against the JSON schema of the tool that the policy was shown; turns
of the policy, read from what the sampler returned: their texts, calls of tools, tokens and numbers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from rlcore.data.text import render_outputs
from rlcore.protocols import Policy, Turn
from rlcore.safe_text import shorten
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_environments.episode import Episode

Call = dict[str, Any]
_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*(.*)", re.DOTALL)
_MISTRAL_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\](.*)", re.DOTALL)
_PYTHON_BLOCK = re.compile(r"```tool_code\s*\n(.*?)```", re.DOTALL)
_PYTHON_CALL = re.compile(r"\s*\[\s*[A-Za-z_]\w*\s*\(.*\)\s*\]\s*\Z", re.DOTALL)
_BARE = re.compile(r'"(arguments|parameters)"\s*:')
"""What distinguishes a call without marks from an answer in JSON."""
_REASONING = re.compile(r"(<think>|\[THINK\]).*?(</think>|\[/THINK\]|\Z)", re.DOTALL)
_BEGUN = re.compile(r"(<think>|\[THINK\])\s*\Z")
"""Reasoning that the chat template has begun for the policy."""
_BEGINS = re.compile(
    r'<tool_call>|\[TOOL_CALLS\]|```tool_code|"(arguments|parameters)"\s*:|\A\s*\[\s*[A-Za-z_]\w*\s*\('
)
"""A call before a mark of reasoning, which is then a text in its arguments."""
MAX_TEXT = 100_000
"""Characters beyond which a text is not read for calls."""


BEFORE = 256
"""Tokens before a turn in which the header of the turn is sought."""


def read_calls(
    tokenizer: Any,
    tokens: Sequence[int],
    before: Sequence[int],
    *,
    stops: Sequence[str] = (),
    tools: Sequence[Any] = (),
) -> tuple[Call, ...]:
    """Return the calls in a sampled turn, by the tokenizer's description of messages if it has one with calls.

    Control tokens of the turn count, except for the one that ends it: some models write calls with them.

    Args:
        tokenizer: the policy's tokenizer.
        tokens: of the turn.
        before: tokens before the turn, in which the chat template may have begun it.
        stops: strings of which the first ends the turn.
        tools: JSON schemas, by which arguments that are written as text become numbers.
    """
    ids = list(tokens[:-1] if tokens and tokens[-1] in tokenizer.all_special_ids else tokens)
    text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    text = text[: min((at for stop in stops if stop and (at := text.find(stop)) >= 0), default=len(text))]
    template = getattr(tokenizer, "response_template", None)
    header = tokenizer.decode(list(before[-BEFORE:]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if not isinstance(template, Mapping) or "tool_calls" not in template.get("fields", ()):
        begun = _BEGUN.search(str(header))
        return parse_calls(begun.group(1) + text if begun else text)
    try:
        found = tokenizer.parse_response(text, prefix=str(header), tools=list(tools) or None).get("tool_calls") or ()
    except Exception as error:  # noqa: BLE001  the policy may write anything
        return ({"error": f"the turn cannot be read: {error}"},)
    return tuple(_checked(each) for each in (found if isinstance(found, list | tuple) else [found]))


def parse_calls(text: str) -> tuple[Call, ...]:
    """Return the calls in a text, each {name, arguments}, or {error} if it cannot be read."""
    if len(text) > MAX_TEXT:
        return ({"error": f"the text has {len(text)} characters; calls are read from at most {MAX_TEXT}"},)
    text = _without_reasoning(text)
    if "<tool_call>" in text:
        return tuple(call for body, _ in _HERMES.findall(text) for call in _from_json(body))
    if found := _MISTRAL.search(text):
        return tuple(call for part in found.group(1).split("[TOOL_CALLS]") for call in _from_mistral(part))
    bare = text.strip().removeprefix("<|python_tag|>").strip()
    if bare.startswith(("{", "[{")) and _BARE.search(bare):
        parts = _split_objects(bare) if bare.startswith("{") else [bare]
        return tuple(call for part in parts for call in _from_json(part))
    if block := _PYTHON_BLOCK.search(text):
        return tuple(_from_python(block.group(1).strip()))
    if _PYTHON_CALL.match(text):
        return tuple(_from_python(text.strip()))
    return ()


def _without_reasoning(text: str) -> str:
    """Return what a turn says behind its reasoning, if it has one before its first call."""
    found = _REASONING.search(text)
    return text if found is None or _BEGINS.search(text[: found.start()]) else text[found.end() :]


def _from_mistral(part: str) -> list[Call]:
    """Return the calls behind one marker: a list as JSON, or a name and its arguments."""
    named = _MISTRAL_NAMED.fullmatch(part)
    if named is None:
        return _from_json(part)
    name, body = named.groups()
    try:
        arguments = json.loads(body)
    except (ValueError, RecursionError) as error:
        return [{"error": f"the arguments are no JSON: {error}"}]
    return [_checked({"name": name, "arguments": arguments})]


def _from_json(body: str) -> list[Call]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        return [{"error": f"the call is no JSON: {error}"}]
    return [_checked(each) for each in (found if isinstance(found, list) else [found])]


def _split_objects(text: str) -> list[str]:
    """Return the JSON objects that a text has one after another, with `;` or white space between them."""
    decoder, parts, at = json.JSONDecoder(), list[str](), 0
    while at < len(text):
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return [*parts, text[at:]]
        parts.append(text[at:end])
        at = end
        while at < len(text) and text[at] in "; \n\t":
            at += 1
    return parts


def _checked(found: Any) -> Call:
    if not isinstance(found, Mapping):
        return {"error": f"a call is an object with `name` and `arguments`, not {type(found).__name__}"}
    found = found.get("function") if isinstance(found.get("function"), Mapping) else found
    name = found.get("name")
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return {"error": f"the arguments are no JSON: {error}"}
    if not isinstance(name, str) or not name:
        return {"error": "the call has no `name`"}
    if not isinstance(arguments, Mapping):
        return {"error": f"the arguments of {name} are no object"}
    return {"name": name, "arguments": dict(arguments)}


def _from_python(text: str) -> list[Call]:
    try:
        body: object = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [{"error": f"the call is no Python: {error}"}]
    nodes: Sequence[object] = body.elts if isinstance(body, ast.List) else [body]
    return [_from_node(node) for node in nodes]


def _from_node(node: object) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return {"error": "a call is written as name(argument=value)"}
    if node.args:
        return {"error": f"the arguments of {node.func.id} have no names; write {node.func.id}(name=value)"}
    try:
        arguments = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords if each.arg}
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError) as error:
        return {"error": f"an argument of {node.func.id} is no literal: {error}"}
    return {"name": node.func.id, "arguments": arguments}


_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,), "array": (list, tuple),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def wrong_argument(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return what is wrong with the values of arguments, empty if nothing is.

    Nothing is converted: `"17"` is no integer. Names that the schema does not have are not looked at.

    Args:
        arguments: of the call.
        schema: `parameters` of the tool, as `transformers` derives them from type hints.
    """
    known = schema.get("properties", {})
    return next(filter(None, (_wrong(value, known.get(name, {}), name) for name, value in arguments.items())), "")


def _wrong(value: object, schema: object, where: str) -> str:
    """Return what is wrong with a value at this place, empty if nothing is."""
    if not isinstance(schema, Mapping) or (value is None and schema.get("nullable")):
        return ""
    if "anyOf" in schema:
        found = [_wrong(value, each, where) for each in schema["anyOf"]]
        return "" if "" in found else "; or: ".join(found)
    named = schema.get("type", ())
    types = [named] if isinstance(named, str) else list(named)
    if types and not any(_is_of(value, name) for name in types):
        return f"{where} = {shorten(value)}: must be {' or '.join(types)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} = {shorten(value)}: must be one of {', '.join(map(repr, schema['enum']))}"
    parts: list[tuple[object, object, str]] = []
    if isinstance(value, Mapping):
        parts = [(each, schema.get("additionalProperties"), f"{where}.{key}") for key, each in value.items()]
    elif isinstance(value, list | tuple):
        first = schema.get("prefixItems", ())
        if first and len(value) != len(first):
            return f"{where} = {shorten(value)}: must have {len(first)} items"
        schemas = first or [schema.get("items")] * len(value)
        parts = [(each, of, f"{where}[{i}]") for i, (each, of) in enumerate(zip(value, schemas, strict=True))]
    return next(filter(None, (_wrong(*part) for part in parts)), "")


def _is_of(value: object, name: str) -> bool:
    is_bool = isinstance(value, bool)  # which Python counts among the integers
    return name not in _TYPES or (isinstance(value, _TYPES[name]) and is_bool <= (name == "boolean"))


TURNS_BEFORE = 16
"""Tokens before a turn that are decoded with it, since some tokenizers decode a fragment in another way."""


@attrs.frozen
class Sampled:
    """A sampled turn.

    Attributes:
        turn: what the environment receives.
        tokens: its K tokens.
        columns: K numbers by name, such as `logprobs`.
    """

    turn: Turn
    tokens: Sequence[int]
    columns: Mapping[str, Sequence[float]]


def read_turns(
    policy: Policy,
    episodes: Sequence[Episode],
    part: Trajectories,
    sampling: SamplingConfig,
    tools: Sequence[object],
) -> Iterator[Sampled]:
    """Yield the next turn of each of B episodes, which have not yet received it.

    Args:
        policy: the policy, whose tokenizer decodes the turns.
        episodes: B episodes.
        part: B trajectories, which continue them.
        sampling: the options with which they were sampled.
        tools: JSON schemas of the tools that the policy may call.
    """
    before = [Prompt("", tuple(episode.tokens[-TURNS_BEFORE:])) for episode in episodes]
    texts = render_outputs(policy.tokenizer, part, before, sampling.stop_sequences)
    mask = part.action_mask
    columns = {
        name: array for name, array in part.columns.items() if array.shape[:2] == mask.shape and array.dim() == 2
    }
    counts, ended = part.num_actions.tolist(), part.ended.tolist()
    chosen = {name: iter(array[mask].tolist()) for name, array in columns.items()}
    for episode, text, tokens, count, is_over in zip(episodes, texts, part.action_tokens, counts, ended, strict=True):
        stops = sampling.stop_sequences
        calls = read_calls(policy.tokenizer, tokens, episode.tokens, stops=stops, tools=tools) if tools else ()
        turn = Turn(text, len(episode.turns), truncated=not is_over, tool_calls=calls)
        yield Sampled(turn, tokens, {name: [next(values) for _ in range(count)] for name, values in chosen.items()})
