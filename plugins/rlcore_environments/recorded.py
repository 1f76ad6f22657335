"""Recorded episodes as demonstrations: rows of `rollouts.jsonl` and `completions.jsonl` of runs with an environment.

A row has the `prompt`, the `messages` of a conversation, and the `transcript`, which has the messages that followed.
The policy's turns have a `reward`; those that a limit cut off have `truncated`. The first message has the `tools`, as
JSON, if there are any; the row may have them instead. Other messages, whatever their role,
are the environment's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore.types import Sample
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.episode import TOOLS
from rlcore_transformers.data.chat import template_variables
from rlcore_transformers.data.limits import truncated
from rlcore_transformers.data.sources import load_source
from rlcore_transformers.data.tokens import (
    encode,
    encode_continuations,
    eos_id,
    missing_opening,
    opening_tokens,
    special_ids,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

log = get_logger("environments")
_COUNTS_CALLS = "episode/tool_calls"
"""Metric of episodes whose policy may call tools."""
FORM = "a row of rollouts.jsonl or completions.jsonl of a run with an environment has 'prompt' and 'transcript'"


def read_episodes(source: Any) -> list[dict[str, Any]]:
    """Return recorded episodes that did not fail; `reward` is a list with one number for each turn of the policy.

    Args:
        source: a `rollouts.jsonl` or `completions.jsonl`, or its rows.

    Raises:
        DataError: a row has no transcript.
    """
    rows = [_checked(row, f"episodes[{i}]") for i, row in enumerate(load_source(source, "episodes"))]
    return [{**row, "reward": [turn["reward"] for turn in _turns(row)]} for row in rows if not _failed(row)]


def build_episodes(
    source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[Sample]:
    """Tokenise recorded episodes as they were played; the chosen tokens are those of the policy's turns.

    A turn is chosen with the token that ends it, unless it was cut off. Texts of an environment are no control tokens.
    Episodes that failed are left out, with a warning. The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is no episode, has no turn, or does not fit the model's context.
    """
    rows = [_checked(row, f"{what}[{i}]") for i, row in enumerate(load_source(source, what))]
    if failed := sum(map(_failed, rows)):
        log.warning("episodes that failed are left out", option=what, failed=failed, of=len(rows))
    dialogues = dict[str, tuple[Dialogue, int | None]]()
    samples = []
    for i, row in enumerate(rows):
        if not _failed(row):
            where = f"{what}[{i}]"
            tools = _tools(row, where)
            if (key := json.dumps(tools, default=str)) not in dialogues:
                dialogue = Dialogue(tokenizer, data, tools=tools, keeps_history=True)
                dialogues[key] = dialogue, _end_of_turn(dialogue)
            samples.append(_sample(*dialogues[key], row, max_length, where))
    if not samples:
        raise DataError(f"{what}: has no episode that did not fail; at least one is needed")
    return samples


build_episodes.example_rows = [  # type: ignore[attr-defined]  # read by the conformance kit
    {
        "prompt": f"{letter}b", "transcript": [
            {"role": "assistant", "content": letter * 2, "reward": 0.0}, {"role": "user", "content": "on"},
            {"role": "assistant", "content": "cd", "reward": 1.0}, {"role": "user", "content": "the end"},
        ],
    }
    for letter in "abcdefghij"
]  # fmt: skip


def _checked(row: Any, where: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row if isinstance(row, Mapping) else {}
    transcript = found.get("transcript")
    if not isinstance(transcript, Sequence) or not all(isinstance(each, Mapping) for each in transcript):
        raise DataError(f"{where}: {shorten(row)} is no recorded episode; {FORM}")
    if not _turns(found) and not _failed(found):
        raise DataError(f"{where}: the transcript has no turn of the policy: a message of the assistant with a reward")
    return found


def _is_turn(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and message.get("reward") is not None


def _turns(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in row["transcript"] if _is_turn(each)]


def _failed(row: Mapping[str, Any]) -> bool:
    return bool(row["transcript"]) and row["transcript"][-1].get("role") == "failure"


def _tools(row: Mapping[str, Any], where: str) -> list[Any]:
    """Return the schemas of the tools that the policy could call: of the row, or of its first message."""
    tools = row.get(TOOLS) or row["transcript"][0].get(TOOLS)
    found: list[Any] = template_variables({TOOLS: tools}, where).get(TOOLS, [])
    return found


def _sample(dialogue: Dialogue, end: int | None, row: Mapping[str, Any], max_length: int, where: str) -> Sample:
    opening = list(takewhile(lambda message: not _is_turn(message), row["transcript"]))
    said = [{name: value for name, value in each.items() if name != TOOLS} for each in opening]
    tokens = _opening(dialogue, row, said, where)
    chosen = [False] * len(tokens)
    for is_turn, messages in groupby(row["transcript"][len(opening) :], _is_turn):
        if is_turn:
            tokens += [token for message in messages for token in _turn(dialogue, message, end, where)]
        else:
            tokens += dialogue.reply(list(messages), last=tokens[-1])
        chosen += [is_turn] * (len(tokens) - len(chosen))
    size = len(chosen) - chosen[::-1].index(True) if True in chosen else 0
    kept = truncated(tokens[:size], limit=dialogue.data.max_sample_tokens, max_length=max_length, where=where)
    if True not in chosen[: len(kept)]:
        raise DataError(
            f"{where}: has no token of the policy within data.max_sample_tokens; raise it or remove the row"
        )
    return Sample(tuple(kept), tuple(chosen[: len(kept)]), ended=len(kept) == size)


def _opening(dialogue: Dialogue, row: Mapping[str, Any], said: Sequence[Mapping[str, Any]], where: str) -> list[int]:
    """Return the tokens of the prompt: of its messages if there are more than it shows, or one has control text."""
    messages, prompt = row.get("messages"), str(row.get("prompt") or "")
    if dialogue.is_chat:
        asked = [*(messages or ([{"role": "user", "content": prompt}] if prompt else [])), *said]
        if said or not prompt or dialogue.has_control_text(asked):
            if _COUNTS_CALLS in row and not dialogue.variables:
                raise DataError(
                    f"{where}: its policy could call tools whose schemas are not recorded, and its prompt has to be "
                    f"rendered with them; give them as '{TOOLS}' of the row, a list of JSON schemas, or record it again"
                )
            return dialogue.opening(asked)
    (ids,) = encode(dialogue.tokenizer, [prompt + dialogue.text(said)], lambda _: f"{where}.prompt")
    opening = () if messages else opening_tokens(dialogue.tokenizer, dialogue.data.add_bos)
    return missing_opening(ids, opening) + ids


def _turn(dialogue: Dialogue, message: Mapping[str, Any], end: int | None, where: str) -> list[int]:
    (ids,) = encode_continuations(dialogue.tokenizer, [str(message["content"])], lambda _: where)
    return ids if end is None or message.get("truncated") else [*ids, end]


def _end_of_turn(dialogue: Dialogue) -> int | None:
    """Return the token that ends a turn: the one that the chat template writes, else EOS with `data.append_eos`."""
    if not dialogue.is_chat:
        return eos_id(dialogue.tokenizer, dialogue.data.append_eos)
    control = special_ids(dialogue.tokenizer)
    following = dialogue.reply([{"role": "user", "content": "a"}], last=-1)
    return next((token for token in following if token in control), dialogue.tokenizer.eos_token_id)
