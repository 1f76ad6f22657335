"""Plays the episodes of a run: it adds the environment's first messages to the prompts, and wraps the sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import describe_error
from rlcore.config import evolve, structure, unstructure
from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.logging import get_logger
from rlcore.plugins.registry import all_registries
from rlcore.protocols import PromptPipeline, Sampler, TrainerTraits
from rlcore.sampling import derive_seeds
from rlcore.settings import DataConfig, TrainConfig
from rlcore.types import Prompt, Row, Sample
from rlcore_environments.answers import Factory, check_methods, factory_of
from rlcore_environments.calls import Calls, finished
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.openings import (
    SEED,
    Curriculum,
    Openings,
    any_token,
    content_of,
    describe_silence,
    fields_of,
    fitted,
    fresh_rows,
    own_columns,
)
from rlcore_environments.options import EpisodeOptions
from rlcore_environments.process import isolated_factory
from rlcore_environments.recorded import MOST, ExampleTurns, stand_in, to_sample
from rlcore_environments.sampler import EpisodeSampler, Given
from rlcore_environments.worker import BadRows, place_of, read_rows
from rlcore_transformers.data.rows import load_rows
from rlcore_transformers.data.tokens import missing_opening, opening_tokens

if TYPE_CHECKING:
    from rlcore.protocols import Tokenizer

_log = get_logger("environments")


class Player:
    """Plays the episodes of one environment (`rlcore.protocols.EpisodePlayer`).

    Args:
        environment: any form of an environment.
        config: the run's configuration.

    Raises:
        ConfigError: the environment has none of the forms, or an option of `data.episodes` is invalid.
    """

    def __init__(self, environment: object, config: TrainConfig) -> None:
        self.config = config
        given = unstructure(config.data.episodes)
        self.options: EpisodeOptions = structure(EpisodeOptions, given, where="config", path="data.episodes")
        if self.options.isolate == "none":
            self.factory: Factory = factory_of(environment)
        else:
            one_each = self.options.isolate == "episode"
            self.factory = isolated_factory(
                environment, self.options.python, one_each=one_each, timeout_s=self.options.timeout_s,
                thread=self.options.thread,
            )  # fmt: skip
        self._has_warned = False  # of a column of tools
        self.curriculum = Curriculum(self.options.curriculum)
        self.is_lazy = self.options.lazy or bool(self.curriculum.moves) or self.options.seeds == "fresh"
        self._openings = Openings(self.factory, self.options)
        self._dialogues: dict[int, tuple[object, Dialogue]] = {}
        self._given: dict[int, Given] = {}  # by the identity of a prompt's columns

    def rows(self, split: str) -> Sequence[Row] | None:
        """Return the environment's own rows of a split; None if it has none."""
        if self.factory.own_rows is None or (split == "eval" and self.factory.wrong_rows):
            return None
        check_methods(self.factory.name, self.factory.wrong_rows, "")
        try:
            rows = read_rows(self.factory.own_rows, split, finished)
        except RLCoreError:
            raise
        except BadRows as error:
            raise DataError(f"data.environment '{self.factory.name}': {error}") from None
        except Exception as error:  # an environment's own code may raise anything
            raise DataError(
                f"data.environment '{self.factory.name}': rows({split!r}) raised "
                f"{describe_error(error)}{place_of(error)}"
                + ("; give eval_prompts to evaluate on other rows" if split == "eval" else "")
            ) from error
        if rows is not None and not rows and split == "train":
            raise DataError(
                f"data.environment '{self.factory.name}': rows('train') returned no rows, so there is nothing to play; "
                "return a row for each episode of a pass, or None and give prompts"
            )
        return rows

    def dialogue(self, tokenizer: Any) -> Dialogue:
        """Return what renders the environment's messages for a tokenizer."""
        kept = self._dialogues.get(id(tokenizer))
        if kept is None or kept[0] is not tokenizer:
            keeps = self.options.history == "sampled"
            dialogue = Dialogue(tokenizer, self.config.data, tools=self.factory.tools, keeps_history=keeps)
            if not dialogue.shows_tools():
                _log.warning(
                    "the policy is not told of its tools, because the tokenizer has no chat template or one that does "
                    "not render them: describe them in the prompts, or set model.tokenizer.chat_template",
                    environment=self.factory.name,
                )  # fmt: skip
            kept = self._dialogues[id(tokenizer)] = (tokenizer, dialogue)
        return kept[1]

    def pipeline(self, pipeline: PromptPipeline) -> PromptPipeline:
        """Return a pipeline that resets an environment for each row, and renders its first messages with the prompt.

        With `lazy`, rows are read without a reset, and their prompts are rendered when each episode begins.
        """

        def build(
            source: Any, tokenizer: Any, data: DataConfig, *, max_length: int, what: str = "prompts"
        ) -> list[Prompt]:
            rows = load_rows(source, tokenizer, data, what)
            seeds = derive_seeds(
                self.config.run.seed * 1009 + (700 if what == "eval_prompts" else 600), range(len(rows))
            )
            fields = [
                fields_of(row, data.prompt_column, seed, f"{what}[{i}]")
                for i, (row, seed) in enumerate(zip(rows, seeds, strict=True))
            ]

            def render(
                rows: Sequence[Mapping[str, object]], openings: Sequence[list[dict[str, Any]]], what: str = what
            ) -> list[Prompt]:
                return self._render(pipeline, rows, openings, tokenizer, data, max_length=max_length, what=what)

            if self.is_lazy:
                fresh = [False] * len(rows)
                if what == "prompts":
                    self.curriculum.check_rows(fields)
                    fresh = fresh_rows(rows, self.options)
                return self._unopened(fields, render, tokenizer, data, what, fresh)
            openings = self._openings.of(fields, data.prompt_column, what)
            found = render(fields, openings)
            for prompt, row, said in zip(found, fields, openings, strict=True):
                self._given[id(prompt.columns)] = Given(
                    prompt.columns, own_columns(row, data.prompt_column), int(row[SEED]), said
                )
            return found

        return build

    def _render(
        self,
        pipeline: PromptPipeline,
        rows: Sequence[Mapping[str, object]],
        openings: Sequence[list[dict[str, Any]]],
        tokenizer: object,
        data: DataConfig,
        *,
        max_length: int,
        what: str,
    ) -> list[Prompt]:
        """Return the prompts of rows with the first messages of their environments."""
        dialogue = self.dialogue(tokenizer)
        complete = [
            {**each, data.prompt_column: content_of(each.get(data.prompt_column), said, dialogue, f"{what}[{i}]")}
            for i, (each, said) in enumerate(zip(rows, openings, strict=True))
        ]
        if self.factory.tools:
            self._warn_of_tools(rows, what)
            complete = [{**each, "tools": list(self.factory.tools)} for each in complete]
        prompts = pipeline(complete, tokenizer, data, max_length=max_length, what=what)
        if len(prompts) != len(rows):
            raise DataError(
                f"{what}: the pipeline returned {len(prompts)} prompts for {len(rows)} rows, and every row of a "
                "run with an environment needs one of its own, since it is given to reset; leave rows out "
                "beforehand, or use another pipeline (data.prompt_pipeline)"
            )
        found = []
        for i, (prompt, said) in enumerate(zip(prompts, openings, strict=True)):
            safe = self._safe(prompt, said, dialogue, data)
            if safe.tokens != prompt.tokens:
                safe = attrs.evolve(safe, tokens=fitted(safe.tokens, dialogue, data, max_length, f"{what}[{i}]"))
            found.append(safe)
        return found

    def _warn_of_tools(self, rows: Sequence[Mapping[str, object]], what: str) -> None:
        named = [i for i, row in enumerate(rows) if row.get("tools")]
        if named and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "rows have a column 'tools', which is not read, since the environment has tools of its own", rows=what,
                count=len(named), first=named[0], environment=self.factory.name,
            )  # fmt: skip

    def _unopened(
        self,
        rows: Sequence[Mapping[str, Any]],
        render: Callable[..., list[Prompt]],
        tokenizer: Tokenizer,
        data: DataConfig,
        what: str,
        fresh: Sequence[bool],
    ) -> list[Prompt]:
        """Return the prompts of rows without a reset; each knows how it is rendered with the first messages."""
        column, names = data.prompt_column, dict.fromkeys(name for row in rows for name in row)
        asked = [i for i, row in enumerate(rows) if row.get(column) is not None]
        ready = dict(zip(asked, render([rows[i] for i in asked], [[] for _ in asked]) if asked else [], strict=True))
        found = []
        for i, row in enumerate(rows):
            columns = {name: row.get(name) for name in names if name != column}
            prompt = ready.get(i) or Prompt("", (any_token(tokenizer),), columns)
            complete = partial(self._completed, render, row, column, f"{what}[{i}]")
            split = "eval" if what == "eval_prompts" else "train"
            self._given[id(prompt.columns)] = Given(
                prompt.columns, own_columns(row, column), int(row[SEED]), None, complete, split, is_fresh=fresh[i]
            )
            found.append(prompt)
        return found

    def _completed(
        self,
        render: Callable[..., list[Prompt]],
        row: Mapping[str, object],
        column: str,
        where: str,
        said: list[dict[str, object]],
    ) -> Prompt:
        if not said and row.get(column) is None:
            raise DataError(describe_silence(where, self.factory.name, column))
        (prompt,) = render([row], [said], where)
        return prompt

    def _given_with(self, prompt: Prompt) -> Given:
        """Return what an environment received when a prompt was read; of other prompts, what their columns tell."""
        found = self._given.get(id(prompt.columns))
        if found is None or found.columns is not prompt.columns:
            columns = dict(prompt.columns)
            found = Given(prompt.columns, columns, int(columns.pop(SEED, 0)), None)
        if found.is_fresh:
            found = attrs.evolve(found, seed=derive_seeds(found.seed, [self.curriculum.step])[0])
        if not self.curriculum.moves:
            return found
        moving = {k: v for k, v in self.curriculum.values(found.split).items() if found.row.get(k) is None}
        return attrs.evolve(found, row={**found.row, **moving}, values=moving)

    def _safe(self, prompt: Prompt, said: list[dict[str, object]], dialogue: Dialogue, data: DataConfig) -> Prompt:
        """Return a prompt without the column of tools; control tokens in the environment's messages are text."""
        columns = {name: value for name, value in prompt.columns.items() if name != "tools" or not self.factory.tools}
        tokens = prompt.tokens
        if dialogue.has_control_text(said):
            messages = prompt.messages or [{"role": "user", "content": prompt.text}]
            ids = dialogue.opening(messages)
            opening = () if prompt.messages is not None else opening_tokens(dialogue.tokenizer, data.add_bos)
            tokens = tuple(missing_opening(ids, opening) + ids)
        return Prompt(prompt.text, tokens, columns, prompt.messages)

    def sampler(self, sampler: Sampler) -> Sampler:
        """Return the sampler of episodes.

        Raises:
            ConfigError: nothing gives a reward, and the trainer needs one.
        """
        found: Any = EpisodeSampler(sampler, self.factory, self.options, self.dialogue, self._given_with)
        found.is_rewarded_alone = self._is_rewarded_alone()
        if found.is_rewarded_alone and not self.factory.gives_rewards:
            raise ConfigError(
                f"data.environment = '{self.factory.name}': gives no rewards, and there is no reward function, so all "
                f"episodes would have the reward 0, from which the trainer '{self.config.trainer['name']}' learns "
                "nothing; give a reward function (data.reward_fn)"
            )
        found.curriculum = self.curriculum
        return found  # type: ignore[no-any-return]

    def _is_rewarded_alone(self) -> bool:
        """Return whether the trainer learns from rewards, and those of the environment are the only ones."""
        trainer, known = str(self.config.trainer.get("name")), all_registries().trainers
        target: object = known.get(trainer).target() if trainer in known else None
        return "reward_fn" in TrainerTraits(target).needs and _is_only_environment(self.config.data.reward_fn)

    def example(self, prompt: Prompt, tokenizer: object) -> tuple[Sample, list[dict[str, object]]]:
        """Return an episode without a model, as tokens and as a transcript: the policy's turns are example texts."""
        turns: Any = ExampleTurns(self.factory.example_turns)
        most = min(MOST, self.options.max_turns or self.factory.max_turns or MOST)
        options = evolve(self.options, max_failed=1.0, max_turns=most)
        loop = EpisodeSampler(turns, self.factory, options, self.dialogue, self._given_with)
        batch = loop(stand_in(tokenizer), [prompt], self.config.gen, row_seeds=[0])
        return to_sample(batch), batch.arguments["transcript"][0]

    def close(self) -> None:
        """End what all environments share."""
        if self.factory.shutdown is not None:
            try:
                calls = Calls(1, self.options.timeout_s, in_main=self.options.runs_in_main)
                calls.start(self.factory.shutdown).result()
            except Exception as error:  # noqa: BLE001  the run is over
                _log.warning("the environment could not be shut down", error=describe_error(error))


def _is_only_environment(given: object) -> bool:
    """Return whether `data.reward_fn`, in any of its forms, names the environment's rewards and no others."""
    if isinstance(given, Mapping):
        named = given.get("fn", given.get("name"))
        return _is_only_environment(list(given.values()) if named is None else named)
    if isinstance(given, list | tuple):
        is_weighted = len(given) == 2 and isinstance(given[1], int | float)
        return all(map(_is_only_environment, given[:1] if is_weighted else given))
    return given in (None, "environment")
