"""Read demonstrations from any source and tokenise them: token ids and a mask of those the policy should choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import Row, Sample, is_conversation, stack_groups, stack_samples  # noqa: F401  two by their old place
from rlcore_transformers.data.chat import Chat, make_chat, template_variables
from rlcore_transformers.data.rows import (
    PROMPT_KEYS,
    TEMPLATE_KEYS,
    load_rows,
    name_unread,
    refuse_empty,
    refuse_messages,
)
from rlcore_transformers.data.tokens import (
    encode,
    encode_continuations,
    eos_id,
    missing_opening,
    opening_tokens,
    truncated,
    truncated_prompt,
)
from rlcore_transformers.data.turns import tokenise_chats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

OUTPUT_KEYS = ("output", "completion", "response")
OF_REWARDS = ("reward",)
"""Keys of rows that `rewards` reads, which may be the same file."""
OTHER_FORMS = {"chosen": "preferences", "chosen_ids": "preferences", "completions": "answers in steps"}
"""Key of rows that are no demonstrations → what they are."""
FORMS = (
    "a sample is a string, a list [prompt, output, prompt, output, ...], a mapping {prompt, output}, or a list of "
    "{role, content} messages"
)


@attrs.frozen
class _Draft:
    """A parsed row: pieces of text, or a conversation, and the keys of the row that were read."""

    texts: tuple[str, ...] = ()
    chosen: tuple[bool, ...] = ()
    chat: Chat | None = None
    read: tuple[str, ...] = ()

    def beginnings(self, *, outputs: bool) -> set[int]:
        """Return which pieces are tokenised as beginnings of a text.

        These are the first piece and, with `outputs`, the first output.
        """
        return {0, self.chosen.index(True)} if outputs and True in self.chosen else {0}


def build_samples(
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[Sample]:
    """Read and tokenise demonstrations, in their order.

    The form of a row decides which tokens are chosen, that is, learnt:

    * A string, or a mapping with only `text`: all tokens after the opening tokens (BOS); without opening tokens, all
      but the first one.
    * A list `[prompt, output, prompt, output, ...]`, or `{prompt, output}` (also `completion`, `response`): the outputs
      only. A prompt has the same tokens as in `build_prompts`; each later text is tokenised as a continuation.
    * A conversation, `{messages: [...]}`, or `{prompt: [...], completion: [...]}`: the assistant's turns, from the
      first token a generation would choose through the token that ends the turn. With `data.turns: each` it gives one
      sample for each of them.

    With `data.append_eos` every output ends with EOS, also within a dialogue, so that the policy learns to end its
    turn. A chat template ends turns itself; EOS is appended only if the last turn does not end with a special token.
    What comes before the first chosen token is truncated to `data.max_prompt_tokens`.

    The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is invalid; the message names the first such row and the reason.
    """
    rows = load_rows(source, tokenizer, data, what, answers=OUTPUT_KEYS)
    if not rows:
        raise DataError(f"{what} is empty; at least one sample is needed")
    drafts = [_read(row, data, f"{what}[{i}]") for i, row in enumerate(rows)]
    name_unread(rows, [(*draft.read, *OF_REWARDS) for draft in drafts], tokenizer, what)
    samples = []
    for i, (whole, chosen) in _tokenise(tokenizer, drafts, data, what):
        where, start = f"{what}[{i}]", chosen.index(True) if True in chosen else 0
        prompt = truncated_prompt(whole[:start], tokenizer, data, where)
        mask = [False] * len(prompt) + chosen[start:]
        mask[:1] = [False] * len(mask[:1])
        sample = _fit(prompt + whole[start:], mask, data.max_sample_tokens, max_length, where)
        samples.append(attrs.evolve(sample, has_whole_prompt=len(prompt) == start))
    return samples


def _read(row: Any, data: DataConfig, where: str) -> _Draft:
    if isinstance(row, str):
        return _Draft(texts=(str(row),), chosen=(True,))
    if is_conversation(row):
        return _Draft(chat=make_chat(where, row, data))
    if isinstance(row, Mapping):
        return _read_mapping(row, data, where)
    if isinstance(row, (list, tuple)):
        return _read_turns(row, where)
    raise DataError(f"{where}: is {shorten(row)} ({type(row).__name__}); {FORMS}")


def _read_turns(turns: Sequence[object], where: str) -> _Draft:
    for k, turn in enumerate(turns):
        if not isinstance(turn, str):
            raise DataError(f"{where}[{k}]: is {shorten(turn)} ({type(turn).__name__}), not a string; {FORMS}")
    if not turns or len(turns) % 2:
        raise DataError(
            f"{where}: has {len(turns)} texts, but prompts and outputs alternate, so their number must be even; "
            "begin with an empty prompt '' if the policy speaks first"
        )
    for k, turn in enumerate(turns):
        if k % 2 and not turn:
            raise DataError(f"{where}[{k}]: is an empty output, from which nothing can be learnt; remove the sample")
    return _Draft(texts=tuple(map(str, turns)), chosen=(False, True) * (len(turns) // 2))


def _read_mapping(row: Row, data: DataConfig, where: str) -> _Draft:
    prompt_column = data.prompt_column
    outputs = [key for key in OUTPUT_KEYS if row.get(key) is not None]
    if row.get(prompt_column) is not None and len(outputs) == 1:
        read = (prompt_column, outputs[0])
        prompt, output = row[prompt_column], row[outputs[0]]
        if isinstance(prompt, str) and isinstance(output, str):
            return attrs.evolve(_read_turns((prompt, output), where), read=read)
        if is_conversation(prompt) and is_conversation(output):
            chat = make_chat(
                where, [*prompt, *output], data, first=len(prompt), template=template_variables(row, where)
            )
            return _Draft(chat=chat, read=(*read, *TEMPLATE_KEYS))
        refuse_empty(row, read, where)
        raise DataError(
            f"{where}: '{prompt_column}' has the type {type(prompt).__name__}, and '{outputs[0]}' "
            f"{type(output).__name__}; both must be strings, or both lists of {{role, content}} messages"
        )
    messages: Any = row.get("messages")
    if is_conversation(messages):
        chat = make_chat(where, messages, data, template=template_variables(row, where))
        return _Draft(chat=chat, read=("messages", *TEMPLATE_KEYS))
    if isinstance(messages, list | tuple) and messages and all(isinstance(each, str) for each in messages):
        return attrs.evolve(_read_turns(messages, where), read=("messages",))
    alone = not outputs and (prompt_column == "text" or row.get(prompt_column) is None)
    if isinstance(row.get("text"), str) and alone:
        return _Draft(texts=(str(row["text"]),), chosen=(True,), read=("text",))
    refuse_messages(row, "messages", where)
    for key, kind in OTHER_FORMS.items():
        if row.get(key) is not None:
            raise DataError(
                f"{where}: has the key '{key}', as {kind} have, and is no demonstration: name a trainer that learns "
                "from such rows (rlcore list-plugins lists them)"
            )
    known = () if row.get(prompt_column) else PROMPT_KEYS
    refuse_empty(row, (prompt_column, *OUTPUT_KEYS, "messages", "text", *known), where)
    raise DataError(
        f"{where}: has an unknown set of keys ({', '.join(map(repr, row)) or 'none'}); pass '{prompt_column}' with "
        f"one of {', '.join(map(repr, OUTPUT_KEYS))}, or 'messages', or 'text', or rename columns: "
        f"data.columns = {{{prompt_column}: question, output: answer}}"
    )


def _tokenise(
    tokenizer: PreTrainedTokenizerBase, drafts: list[_Draft], data: DataConfig, what: str
) -> Iterator[tuple[int, tuple[list[int], list[bool]]]]:
    plain, eos = opening_tokens(tokenizer, data.add_bos), eos_id(tokenizer, data.append_eos)
    begins = [draft.beginnings(outputs=bool(data.outputs_begin_text)) for draft in drafts]
    marked = [
        (k in begins[i], f"{what}[{i}]", text) for i, draft in enumerate(drafts) for k, text in enumerate(draft.texts)
    ]
    first, other = ([pair for is_first, *pair in marked if is_first is wanted] for wanted in (True, False))
    firsts = iter(encode(tokenizer, [text for _, text in first], lambda i: first[i][0]))
    others = iter(encode_continuations(tokenizer, [text for _, text in other], lambda i: other[i][0]))
    chats = iter(tokenise_chats(tokenizer, [draft.chat for draft in drafts if draft.chat is not None], data))
    for i, draft in enumerate(drafts):
        pieces = [next(firsts if k in begins[i] else others) for k in range(len(draft.texts))]
        if draft.chat is not None:
            yield from ((i, sample) for sample in next(chats))
        elif len(pieces) == 1:
            yield i, _join_text(pieces[0], plain, eos)
        else:
            yield i, _join_turns(draft, pieces, plain, eos, f"{what}[{i}]")


def _open(tokens: list[int], mask: list[bool], opening: tuple[int, ...]) -> tuple[list[int], list[bool]]:
    missing = missing_opening(tokens, opening)
    return missing + tokens, [False] * len(missing) + mask


def _join_text(ids: list[int], opening: tuple[int, ...], eos: int | None) -> tuple[list[int], list[bool]]:
    tokens, _ = _open(ids, [], opening)
    if eos is not None and (len(tokens) == len(opening) or tokens[-1] != eos):
        tokens = [*tokens, eos]
    return tokens, [False] * len(opening) + [True] * (len(tokens) - len(opening))


def _join_turns(
    draft: _Draft, pieces: list[list[int]], opening: tuple[int, ...], eos: int | None, where: str
) -> tuple[list[int], list[bool]]:
    tokens, mask = _open(pieces[0], [False] * len(pieces[0]), opening)
    for k in range(1, len(pieces)):
        ids, chosen = pieces[k], draft.chosen[k]
        if chosen and not ids:
            raise DataError(f"{where}[{k}]: the output {draft.texts[k]!r} has no tokens; remove the sample")
        if chosen and eos is not None and ids[-1] != eos:
            ids = [*ids, eos]
        tokens += ids
        mask += [chosen] * len(ids)
    return tokens, mask


def _fit(tokens: list[int], mask: list[bool], limit: int, max_length: int, where: str) -> Sample:
    size = len(tokens)
    tokens = truncated(tokens, limit=limit, max_length=max_length, where=where)
    mask = mask[: len(tokens)]
    if not any(mask):
        cut = f" once truncated to data.max_sample_tokens = {limit}" if len(tokens) < size else ""
        raise DataError(
            f"{where}: has no token for the policy to choose{cut} ({len(tokens)} tokens in all, and the first one is "
            "never chosen); remove the sample" + (", or raise the limit" if cut else "")
        )
    return Sample(tokens=tuple(tokens), action_mask=tuple(mask), ended=len(tokens) == size)
