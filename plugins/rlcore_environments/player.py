"""Plays the episodes of a run: it adds the environment's first messages to the prompts, and wraps the sampler."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from rlcore.components import describe_error
from rlcore.config import evolve, structure, unstructure
from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.logging import get_logger
from rlcore.protocols import PromptPipeline, Sampler
from rlcore.safe_text import shorten
from rlcore.sampling import derive_seeds
from rlcore.settings import DataConfig, TrainConfig
from rlcore.types import Prompt, Sample, is_conversation
from rlcore_environments.answers import BadAnswer, read_messages
from rlcore_environments.calls import Calls, CallTooLate, finished
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.example import MOST, ExampleTurns, stand_in, to_sample
from rlcore_environments.factory import Factory, check_environment, factory_of
from rlcore_environments.options import EpisodeOptions
from rlcore_environments.process import RemoteError, isolated_factory
from rlcore_environments.sampler import EpisodeSampler, Given
from rlcore_transformers.data.limits import truncated_prompt
from rlcore_transformers.data.rows import load_rows
from rlcore_transformers.data.tokens import missing_opening, opening_tokens

SEED = "seed"
"""Column of a row with the seed of its environment; rows without it receive one."""
_log = get_logger("environments")


class Player:
    """Plays the episodes of one environment (`rlcore.protocols.EpisodePlayer`).

    Args:
        environment: any form of an environment.
        config: the run's configuration.

    Raises:
        ConfigError: the environment has none of the forms, or an option of `data.episodes` is invalid.
    """

    def __init__(self, environment: Any, config: TrainConfig) -> None:
        self.config = config
        given = unstructure(config.data.episodes)
        self.options: EpisodeOptions = structure(EpisodeOptions, given, where="config", path="data.episodes")
        if self.options.isolate == "none":
            self.factory: Factory = factory_of(environment)
        else:
            one_each = self.options.isolate == "episode"
            self.factory = isolated_factory(
                environment, self.options.python, one_each=one_each, timeout_s=self.options.timeout_s
            )
        self._dialogues: dict[int, tuple[Any, Dialogue]] = {}
        self._given: dict[int, Given] = {}  # by the identity of a prompt's columns

    def rows(self, split: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the environment's own rows of a split; None if it has none."""
        if self.factory.own_rows is None:
            return None
        try:
            found = self.factory.own_rows(split)
            return None if found is None else [dict(row) for row in found]
        except RLCoreError:
            raise
        except Exception as error:  # an environment's own code may raise anything
            raise DataError(
                f"data.environment '{self.factory.name}': rows({split!r}) raised {describe_error(error)}"
            ) from error

    def dialogue(self, tokenizer: Any) -> Dialogue:
        """Return what renders the environment's messages for a tokenizer."""
        kept = self._dialogues.get(id(tokenizer))
        if kept is None or kept[0] is not tokenizer:
            keeps = self.options.history == "sampled"
            dialogue = Dialogue(tokenizer, self.config.data, tools=self.factory.tools, keeps_history=keeps)
            kept = self._dialogues[id(tokenizer)] = (tokenizer, dialogue)
        return kept[1]

    def pipeline(self, pipeline: PromptPipeline) -> PromptPipeline:
        """Return a pipeline that resets an environment for each row, and renders its first messages with the prompt."""

        def build(
            source: Any, tokenizer: Any, data: DataConfig, *, max_length: int, what: str = "prompts"
        ) -> list[Prompt]:
            rows = load_rows(source, tokenizer, data, what)
            seeds = derive_seeds(
                self.config.run.seed * 1009 + (700 if what == "eval_prompts" else 600), range(len(rows))
            )
            fields = [
                _fields(row, data.prompt_column, seed, f"{what}[{i}]")
                for i, (row, seed) in enumerate(zip(rows, seeds, strict=True))
            ]
            openings = self._openings(fields, data.prompt_column, what)
            dialogue = self.dialogue(tokenizer)
            complete = [
                {**each, data.prompt_column: _content(each.get(data.prompt_column), said, dialogue, f"{what}[{i}]")}
                for i, (each, said) in enumerate(zip(fields, openings, strict=True))
            ]
            if self.factory.tools:
                complete = [{**each, "tools": list(self.factory.tools)} for each in complete]
            prompts = pipeline(complete, tokenizer, data, max_length=max_length, what=what)
            if len(prompts) != len(rows):
                raise DataError(
                    f"{what}: the pipeline returned {len(prompts)} prompts for {len(rows)} rows, and every row of a "
                    "run with an environment needs one of its own, since it is given to reset; leave rows out "
                    "beforehand, or use another pipeline (data.prompt_pipeline)"
                )
            found = []
            for i, (prompt, row, said) in enumerate(zip(prompts, fields, openings, strict=True)):
                safe = self._safe(prompt, said, dialogue, data)
                if safe.tokens != prompt.tokens:
                    safe = attrs.evolve(safe, tokens=_fitted(safe.tokens, dialogue, data, max_length, f"{what}[{i}]"))
                given = {name: value for name, value in row.items() if name not in (SEED, data.prompt_column)}
                self._given[id(safe.columns)] = Given(safe.columns, given, int(row[SEED]), said)
                found.append(safe)
            return found

        return build

    def _given_with(self, prompt: Prompt) -> Given:
        """Return what an environment received when a prompt was read; of other prompts, what their columns tell."""
        found = self._given.get(id(prompt.columns))
        if found is not None and found.columns is prompt.columns:
            return found
        columns = dict(prompt.columns)
        return Given(prompt.columns, columns, int(columns.pop(SEED, 0)), None)

    def _safe(self, prompt: Prompt, said: list[dict[str, Any]], dialogue: Dialogue, data: DataConfig) -> Prompt:
        """Return a prompt without the column of tools; control tokens in the environment's messages are text."""
        columns = {name: value for name, value in prompt.columns.items() if name != "tools" or not self.factory.tools}
        tokens = prompt.tokens
        if dialogue.has_control_text(said):
            messages = prompt.messages or [{"role": "user", "content": prompt.text}]
            ids = dialogue.opening(messages)
            opening = () if prompt.messages is not None else opening_tokens(dialogue.tokenizer, data.add_bos)
            tokens = tuple(missing_opening(ids, opening) + ids)
        return Prompt(prompt.text, tokens, columns, prompt.messages)

    def _openings(self, rows: Sequence[Mapping[str, Any]], column: str, what: str) -> list[list[dict[str, Any]]]:
        calls = self._calls
        pending = [calls.start(self._reset, {k: v for k, v in row.items() if k != column}) for row in rows]
        found = []
        for i, (row, call) in enumerate(zip(rows, pending, strict=True)):
            try:
                said = read_messages(call.result(), "reset")
            except BadAnswer as error:
                raise DataError(f"{what}[{i}]: environment '{self.factory.name}': {error}") from error
            except CallTooLate as error:
                raise DataError(f"{what}[{i}]: environment '{self.factory.name}': reset {error}") from None
            except RemoteError as error:
                raise DataError(f"{what}[{i}]: environment '{self.factory.name}': reset raised {error}") from None
            except Exception as error:
                raise DataError(
                    f"{what}[{i}]: environment '{self.factory.name}': reset raised {describe_error(error)}; the row is "
                    f"{shorten(dict(row))}"
                ) from error
            if not said and row.get(column) is None:
                raise DataError(
                    f"{what}[{i}]: environment '{self.factory.name}': reset returned no messages, and the row has no "
                    f"'{column}', so the policy has nothing to answer"
                )
            found.append(said)
        return found

    def _reset(self, row: Mapping[str, Any]) -> Any:
        environment = check_environment(self.factory.make(), self.factory)
        try:
            return finished(environment.reset({k: v for k, v in row.items() if k != SEED}, seed=int(row[SEED])))
        finally:
            close = getattr(environment, "close", None)
            if callable(close):
                finished(close())

    @cached_property
    def _calls(self) -> Calls:
        limit = min(self.options.concurrency, self.factory.concurrency or self.options.concurrency)
        return Calls(limit, self.options.timeout_s)

    def sampler(self, sampler: Sampler) -> Sampler:
        """Return the sampler of episodes."""
        found: Any = EpisodeSampler(sampler, self.factory, self.options, self.dialogue, self._given_with)
        return found  # type: ignore[no-any-return]

    def example(self, prompt: Prompt, tokenizer: Any) -> tuple[Sample, list[dict[str, Any]]]:
        """Return an episode without a model, as tokens and as a transcript: the policy's turns are example texts."""
        turns: Any = ExampleTurns(self.factory.example_turns)
        options = evolve(self.options, max_failed=1.0, max_turns=MOST)
        loop = EpisodeSampler(turns, self.factory, options, self.dialogue, self._given_with)
        batch = loop(stand_in(tokenizer), [prompt], self.config.gen, row_seeds=[0])
        return to_sample(batch), batch.arguments["transcript"][0]

    def close(self) -> None:
        """End what all environments share."""
        if self.factory.shutdown is not None:
            try:
                Calls(1, self.options.timeout_s).start(self.factory.shutdown).result()
            except Exception as error:  # noqa: BLE001  the run is over
                _log.warning("the environment could not be shut down", error=describe_error(error))


def _fields(row: Any, column: str, seed: int, where: str) -> dict[str, Any]:
    fields = {str(key): value for key, value in row.items()} if isinstance(row, Mapping) else {column: row}
    own = fields.get(SEED)
    if own is not None and (isinstance(own, bool) or not isinstance(own, numbers.Integral)):
        raise DataError(
            f"{where}: the column '{SEED}' is {shorten(own)} ({type(own).__name__}), and it is the seed of the row's "
            "environment, an integer; correct it, or rename the column if it is something else"
        )
    return {**fields, SEED: seed if own is None else int(own)}


def _fitted(
    tokens: Sequence[int], dialogue: Dialogue, data: DataConfig, max_length: int, where: str
) -> tuple[int, ...]:
    """Return the tokens of a prompt that were computed anew, within the same limits as those of the pipeline."""
    kept = truncated_prompt(list(tokens), dialogue.tokenizer, data, where)
    if max_length and len(kept) >= max_length:
        raise DataError(
            f"{where}: has {len(kept)} tokens, since the environment's message has the text of a control token, which "
            f"is read as text, and the model takes prompts of at most {max_length - 1}; shorten it, or set "
            f"data.max_prompt_tokens to at most {max_length - 1} to truncate prompts"
        )
    return tuple(kept)


def _content(asked: Any, said: list[dict[str, Any]], dialogue: Dialogue, where: str) -> Any:
    """Return the prompt of a row followed by the environment's first messages: a conversation, or a text."""
    if dialogue.is_chat:
        before = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked or ())
        return [*before, *said]
    if is_conversation(asked):
        raise ConfigError(
            f"{where}: is a conversation, and the tokenizer has no chat template to render it "
            "(model.tokenizer.chat_template)"
        )
    return f"{asked or ''}{''.join(str(each['content']) for each in said)}"
