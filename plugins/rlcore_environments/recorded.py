"""Recorded episodes as demonstrations: rows of `rollouts.jsonl` and `completions.jsonl` of runs with an environment.

A row has the `prompt`, the `messages` of a conversation, and the `transcript`, which has the messages that followed.
The policy's turns have a `reward`; those that a limit cut off have `truncated`. The first message has the `tools`, as
JSON, if there are any; the row may have them instead. With `data.episodes.record_tokens` the first message also has
the `tokens` of the episode, as lists that were read and sampled in turn. Other messages, whatever their role, are the
environment's.

Also in this file: an example of an episode without a model, for `rlcore preview`: the turns are texts of the author,
or ours; the reward `environment`: what the environment of a run gave, one number for each chosen token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, takewhile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore.settings import SamplingConfig
from rlcore.types import Message, Prompt, Row, Sample, Trajectories
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.episode import TOKENS, TOOLS
from rlcore_transformers.data.chat import template_variables
from rlcore_transformers.data.sources import load_source
from rlcore_transformers.data.tokens import (
    encode,
    encode_continuations,
    eos_id,
    missing_opening,
    opening_tokens,
    special_ids,
    truncated,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.protocols import Policy
    from rlcore.settings import DataConfig

log = get_logger("environments")
_COUNTS_CALLS = "episode/tool_calls"
"""Metric of episodes whose policy may call tools."""
FORM = "a row of rollouts.jsonl or completions.jsonl of a run with an environment has 'prompt' and 'transcript'"


def read_episodes(source: object) -> list[dict[str, object]]:
    """Return recorded episodes that did not fail; `reward` is a list with one number for each turn of the policy.

    Args:
        source: a `rollouts.jsonl` or `completions.jsonl`, or its rows.

    Raises:
        DataError: a row has no transcript.
    """
    rows = [_checked(row, f"episodes[{i}]") for i, row in enumerate(load_source(source, "episodes"))]
    return [{**row, "reward": [turn["reward"] for turn in _turns(row)]} for row in rows if not _failed(row)]


def build_episodes(
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[Sample]:
    """Tokenise recorded episodes as they were played; the chosen tokens are those of the policy's turns.

    Recorded token ids are used as they are, unless they are those of another tokenizer, which is a warning. Without
    them, texts are tokenised: a turn is chosen with the token that ends it, unless it was cut off, and texts of an
    environment are no control tokens. Episodes that failed are left out, with a warning. The arguments are those of
    `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is no episode, has no turn, or does not fit the model's context.
    """
    rows = [_checked(row, f"{what}[{i}]") for i, row in enumerate(load_source(source, what))]
    if failed := sum(map(_failed, rows)):
        log.warning("episodes that failed are left out", option=what, failed=failed, of=len(rows))
    dialogues = dict[str, tuple[Dialogue, int | None]]()
    samples, foreign = [], 0
    for i, row in enumerate(rows):
        if not _failed(row):
            where = f"{what}[{i}]"
            segments = _recorded(row, where)
            if segments and _fits(segments, row, tokenizer):
                samples.append(_to_sample(*_joined(segments), data, max_length, where))
                continue
            foreign += bool(segments)
            tools = _tools(row, where)
            if (key := json.dumps(tools, default=str)) not in dialogues:
                dialogue = Dialogue(tokenizer, data, tools=tools, keeps_history=True)
                dialogues[key] = dialogue, _end_of_turn(dialogue)
            samples.append(_to_sample(*_tokenised(*dialogues[key], row, where), data, max_length, where))
    if foreign:
        log.warning(
            "recorded token ids are those of another tokenizer; the texts are tokenised instead", option=what,
            episodes=foreign, of=len(samples),
        )  # fmt: skip
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


def _checked(row: object, where: str) -> Mapping[str, object]:
    found: Mapping[str, object] = row if isinstance(row, Mapping) else {}
    transcript = found.get("transcript")
    if not isinstance(transcript, Sequence) or not all(isinstance(each, Mapping) for each in transcript):
        raise DataError(f"{where}: {shorten(row)} is no recorded episode; {FORM}")
    if not _turns(found) and not _failed(found):
        raise DataError(f"{where}: the transcript has no turn of the policy: a message of the assistant with a reward")
    return found


def _is_turn(message: Mapping[str, object]) -> bool:
    return message.get("role") == "assistant" and message.get("reward") is not None


def _turns(row: Row) -> list[Mapping[str, Any]]:
    return [each for each in row["transcript"] if _is_turn(each)]


def _failed(row: Row) -> bool:
    return bool(row["transcript"]) and row["transcript"][-1].get("role") == "failure"


def _tools(row: Row, where: str) -> list[Any]:
    """Return the schemas of the tools that the policy could call: of the row, or of its first message."""
    tools = row.get(TOOLS) or row["transcript"][0].get(TOOLS)
    found: list[Any] = template_variables({TOOLS: tools}, where).get(TOOLS, [])
    return found


def _recorded(row: Row, where: str) -> list[list[int]]:
    """Return the token ids of an episode, which were read and sampled in turn; empty if they were not recorded."""
    found = row["transcript"][0].get(TOKENS) or []
    lists = isinstance(found, list) and all(isinstance(each, list) and each for each in found)
    if not lists or not all(type(token) is int and token >= 0 for each in found for token in each):
        raise DataError(
            f"{where}: '{TOKENS}' is {shorten(found)}; it must be a list of lists of token ids, or left out"
        )
    if found and len(found) // 2 != (count := len(_turns(row))):
        raise DataError(
            f"{where}: '{TOKENS}' has {len(found)} lists, which are read and sampled in turn, and the transcript has "
            f"{count} turns of the policy; leave '{TOKENS}' out, so that the texts are tokenised"
        )
    return found


def _fits(segments: Sequence[Sequence[int]], row: Mapping[str, object], tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether token ids are of this tokenizer: the text of a turn, if one has any, is in what they decode to."""
    if max(map(max, segments)) >= len(tokenizer):
        return False
    texts = [str(turn["content"]).replace("\ufffd", "").strip() for turn in _turns(row)]
    pairs = [(text, tokenizer.decode(list(ids))) for text, ids in zip(texts, segments[1::2], strict=True) if text]
    return not pairs or any(text in str(decoded) for text, decoded in pairs)


def _joined(segments: Sequence[Sequence[int]]) -> tuple[list[int], list[bool]]:
    """Return all tokens, and whether each of them was chosen."""
    return list(chain(*segments)), [k % 2 == 1 for k, each in enumerate(segments) for _ in each]


def _tokenised(dialogue: Dialogue, end: int | None, row: Row, where: str) -> tuple[list[int], list[bool]]:
    """Return the tokens of the texts of an episode, and whether each of them was chosen."""
    opening = list(takewhile(lambda message: not _is_turn(message), row["transcript"]))
    said = [{name: value for name, value in each.items() if name not in (TOOLS, TOKENS)} for each in opening]
    tokens = _opening(dialogue, row, said, where)
    chosen = [False] * len(tokens)
    for is_turn, messages in groupby(row["transcript"][len(opening) :], _is_turn):
        if is_turn:
            tokens += [token for message in messages for token in _turn(dialogue, message, end, where)]
        else:
            tokens += dialogue.reply(list(messages), last=tokens[-1])
        chosen += [is_turn] * (len(tokens) - len(chosen))
    return tokens, chosen


def _to_sample(tokens: list[int], chosen: list[bool], data: DataConfig, max_length: int, where: str) -> Sample:
    """Return a sample that ends with the last chosen token, or earlier within the limits."""
    size = len(chosen) - chosen[::-1].index(True) if True in chosen else 0
    kept = truncated(tokens[:size], limit=data.max_sample_tokens, max_length=max_length, where=where)
    if True not in chosen[: len(kept)]:
        raise DataError(
            f"{where}: has no token of the policy within data.max_sample_tokens; raise it or remove the row"
        )
    return Sample(tuple(kept), tuple(chosen[: len(kept)]), ended=len(kept) == size)


def _opening(dialogue: Dialogue, row: Mapping[str, Any], said: Sequence[Message], where: str) -> list[int]:
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


def _turn(dialogue: Dialogue, message: Mapping[str, object], end: int | None, where: str) -> list[int]:
    (ids,) = encode_continuations(dialogue.tokenizer, [str(message["content"])], lambda _: where)
    return ids if end is None or message.get("truncated") else [*ids, end]


def _end_of_turn(dialogue: Dialogue) -> int | None:
    """Return the token that ends a turn: the one that the chat template writes, else EOS with `data.append_eos`."""
    if not dialogue.is_chat:
        return eos_id(dialogue.tokenizer, dialogue.data.append_eos)
    control = special_ids(dialogue.tokenizer)
    following = dialogue.reply([{"role": "user", "content": "a"}], last=-1)
    return next((token for token in following if token in control), dialogue.tokenizer.eos_token_id)


TURNS = ("This is an example answer.", "This is another one: 42.")
MOST = 3
"""Turns of an example."""


class ExampleTurns:
    """A sampler of turns that writes given texts, each ended by EOS.

    Args:
        texts: the texts, which are repeated.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._num_calls = tuple(texts) or TURNS, 0

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,  # noqa: ARG002  a sampler's signature
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Trajectories:
        """Return the next text after each prompt."""
        text = self._texts[self._num_calls % len(self._texts)]
        self._num_calls += 1
        eos = policy.tokenizer.eos_token_id
        ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], *([] if eos is None else [eos])]
        rows = [[*prompt.tokens, *ids] for prompt in prompts]
        masks = [[False] * len(prompt.tokens) + [True] * len(ids) for prompt in prompts]
        return Trajectories.stack(rows, masks)


def stand_in(tokenizer: object) -> Any:
    """Return what the loop reads of a policy, for one that has only a tokenizer."""
    return SimpleNamespace(
        tokenizer=tokenizer, device=torch.device("cpu"), max_prompt_length=0, max_length=0, outputs_begin_text=False
    )


def to_sample(batch: Trajectories) -> Sample:
    """Return the first of a batch of episodes as a sample, whose chosen tokens are those of the policy."""
    kept = batch.mask[0]
    return Sample(tuple(batch.tokens[0][kept].tolist()), tuple(batch.action_mask[0][kept].tolist()))


class EnvironmentReward:
    """Returns the rewards that the environment gave, each at the last token of its turn.

    A run with `data.environment` uses it without being told; name it in `data.reward_fn` to change its weight.
    """

    def __call__(self, environment_rewards: Sequence[list[float]]) -> list[list[float]]:
        """Return the rewards of B episodes."""
        return list(environment_rewards)

    @staticmethod
    def example_outputs() -> dict[str, list[float]]:
        """Return what the laws of rewards pass in place of texts: twelve episodes with one reward each."""
        return {"environment_rewards": [k / 4 for k in range(12)]}


environment_reward = EnvironmentReward()
