"""Read prompts from any source and tokenise them: `Prompt` objects with text, tokens and columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlcore.data.text import warn_of_counts
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import RESERVED_COLUMNS, Prompt, is_conversation
from rlcore_transformers.data.chat import Chat, make_chat, render_prompt, template_variables
from rlcore_transformers.data.rows import PROMPT_KEYS, load_rows, refuse_empty, refuse_messages
from rlcore_transformers.data.tokens import (
    decode,
    encode,
    missing_opening,
    opening_tokens,
    rendered_opening,
    truncated_prompt,
)
from rlcore_transformers.data.turns import check_template_end

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig


def build_prompts(
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "prompts"
) -> list[Prompt]:
    """Read, render and tokenise prompts, in their order, in one batched call of the tokenizer.

    A row is a string, a conversation (list of {role, content}), or a mapping with either under `data.prompt_column`.
    The other keys of mappings become columns: every prompt has every column, None if its row has no such key. A
    conversation is rendered with the tokenizer's chat template, which also writes its own BOS. If a prompt is truncated
    to `data.max_prompt_tokens`, at `data.truncation_side`, BOS stays and the text is decoded from the remaining tokens,
    so that reward functions and the model receive the same text.

    The arguments are those of `rlcore.protocols.PromptPipeline`.

    Raises:
        DataError: a row is invalid; the message names the first such row and the reason.
    """
    rows = load_rows(source, tokenizer, data, what)
    if not rows:
        raise DataError(f"{what} is empty; at least one prompt is needed")
    contents = [_content(row, data, f"{what}[{i}]") for i, row in enumerate(rows)]
    columns = _columns(rows, data.prompt_column, what)
    rendered = [isinstance(content, Chat) for content in contents]
    if first := next((content for content in contents if isinstance(content, Chat)), None):
        check_template_end(tokenizer, first, data, what)
    texts = [render_prompt(tokenizer, content) if isinstance(content, Chat) else content for content in contents]
    if data.add_bos is False and tokenizer.bos_token:
        bos = str(tokenizer.bos_token)
        texts = [text.removeprefix(bos) if is_chat else text for text, is_chat in zip(texts, rendered, strict=True)]
    tokens = _tokenise(tokenizer, texts, rendered, data, what)
    tokens, texts = _cut(tokenizer, tokens, texts, data, what)
    _check_lengths(tokens, max_length, what)
    return [
        Prompt(text, tuple(ids), extra, content.messages if isinstance(content, Chat) else None)
        for text, ids, extra, content in zip(texts, tokens, columns, contents, strict=True)
    ]


def _content(row: Any, data: DataConfig, where: str) -> str | Chat:
    value, column, variables = row, data.prompt_column, {}
    if isinstance(row, Mapping):
        if column not in row:
            refuse_empty(row, PROMPT_KEYS, where)
            raise DataError(
                f"{where}: has no key '{column}' (keys: {', '.join(map(repr, row)) or 'none'}); "
                "name the prompt's key with data.prompt_column"
            )
        refuse_empty(row, (column,), where)
        variables = template_variables(row, where)
        value, where = row[column], f"{where}[{column!r}]"
    if isinstance(value, str):
        return str(value)
    if is_conversation(value):
        return make_chat(where, value, data, template=variables)
    if (
        isinstance(row, Mapping)
        and isinstance(value, list | tuple)
        and any(isinstance(each, Mapping) for each in value)
    ):
        refuse_messages(row, column, where.removesuffix(f"[{column!r}]"))
    raise DataError(
        f"{where}: is {shorten(value, 60)} ({type(value).__name__}); a prompt is a string, a list of {{role, content}} "
        f"messages, or a mapping with either under '{column}'"
    )


def _columns(rows: list[Any], column: str, what: str) -> list[dict[str, Any]]:
    names: dict[Any, int] = {}
    for i, row in enumerate(rows):
        if isinstance(row, Mapping):
            for name in row:
                names.setdefault(name, i)
    names.pop(column, None)
    for name, i in names.items():
        if name in RESERVED_COLUMNS:
            raise DataError(
                f"{what}[{i}]: has a column '{name}', which is the name of another argument of reward functions "
                f"({', '.join(RESERVED_COLUMNS)}); rename the column"
            )
        if not isinstance(name, str):
            raise DataError(f"{what}[{i}]: has the key {name!r} ({type(name).__name__}); keys must be strings")
    return [{name: row.get(name) if isinstance(row, Mapping) else None for name in names} for row in rows]


def _tokenise(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], rendered: list[bool], data: DataConfig, what: str
) -> list[list[int]]:
    plain = opening_tokens(tokenizer, data.add_bos)
    chat = rendered_opening(tokenizer, data.add_bos) if any(rendered) else ()
    return [
        missing_opening(ids, chat if is_chat else plain) + ids
        for ids, is_chat in zip(encode(tokenizer, texts, lambda i: f"{what}[{i}]"), rendered, strict=True)
    ]


def _cut(
    tokenizer: PreTrainedTokenizerBase, tokens: list[list[int]], texts: list[str], data: DataConfig, what: str
) -> tuple[list[list[int]], list[str]]:
    limit = data.max_prompt_tokens
    long = [i for i, ids in enumerate(tokens) if limit and len(ids) > limit]
    if not long:
        return tokens, texts
    tokens, texts = list(tokens), list(texts)
    for i in long:
        num_opening = int(tokens[i][0] == tokenizer.bos_token_id)
        tokens[i] = truncated_prompt(tokens[i], tokenizer, data, f"{what}[{i}]")
        (texts[i],) = decode(tokenizer, [tokens[i][num_opening:]], skip_special_tokens=False)
    warn_of_counts({"truncated_prompts": len(long)}, what, read=len(tokens))
    return tokens, texts


def _check_lengths(tokens: list[list[int]], max_length: int, what: str) -> None:
    for i, ids in enumerate(tokens):
        if not ids:
            raise DataError(
                f"{what}[{i}]: has no tokens, so nothing can be continued; pass text, or set data.add_bos=true"
            )
        if max_length and len(ids) >= max_length:
            raise DataError(
                f"{what}[{i}]: has {len(ids)} tokens, and the model takes prompts of at most {max_length - 1}; shorten "
                f"it, or set data.max_prompt_tokens to at most {max_length - 1} to truncate prompts"
            )
