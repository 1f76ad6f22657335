"""`rlcore.train`: read the user's arguments, build the run, and train."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from rlcore.checkpoints.manifest import remove_weights, write_manifest
from rlcore.components import Component
from rlcore.config import Problems, load_yaml, merge, structure, unstructure
from rlcore.config.options import MAX_DEPTH, is_too_deep
from rlcore.config.structure import structure_valid
from rlcore.config.yaml_files import explain_arguments
from rlcore.errors import ConfigError, PluginError
from rlcore.loggers import main_metrics
from rlcore.logging import check_environment, get_logger
from rlcore.plugins.metadata import configured
from rlcore.plugins.observers import find_uploader
from rlcore.plugins.registry import all_registries
from rlcore.protocols import Policy
from rlcore.safe_text import shorten, visible
from rlcore.settings import SamplingConfig, TrainConfig, plugins_section
from rlcore.sharding import streaming
from rlcore.training.build import Assembly, assemble
from rlcore.training.evaluate import refuse_sweeps, sweeps_in
from rlcore.training.inputs import DATA_INPUTS, Inputs, observers_by_name, split_loggers
from rlcore.training.loop import fit
from rlcore.training.run import Run
from rlcore.training.run_components import with_tools
from rlcore.types import Metrics, Options

log = get_logger("api")


@attrs.frozen(eq=False)
class Result:
    """The result of a run: the trained policy, the last metrics, and the run's folder.

    Attributes:
        metrics: the last value of every metric.
        run_dir: the run's folder; `transformers` loads its subfolder `model/`.
        policy: the trained policy, in memory; for a trainer of scorers, the scorer.
    """

    metrics: Metrics
    run_dir: Path
    policy: Policy
    run: Run = attrs.field(repr=False)

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the run early; `run.resume=auto` continues it."""
        return self.run.progress.was_interrupted

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the main metrics, the steps and the run's folder."""
        rows = [(name, f"{self.metrics[name]:.4g}") for name in main_metrics(self.metrics, self.run.headline)]
        rows += [("steps", str(self.run.step)), ("folder", visible(self.run_dir))]
        cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table><tr><th>last metrics</th><th>value</th></tr>{cells}</table>"

    def generate(self, prompts: str | Sequence[object], **gen: object) -> list[str]:
        """Continue prompts with the trained policy.

        If the model is divided among several processes (`run.shard`), all of them must call this.

        Args:
            prompts: strings, conversations, or rows like the training prompts; or one string.
            **gen: options of `rlcore.settings.SamplingConfig` that differ from the run's.

        Returns:
            The continuations, without the prompts.
        """
        from rlcore.data.text import render_outputs

        run = self.run
        if isinstance(gen.get("stop_sequences"), str):
            gen["stop_sequences"] = [gen["stop_sequences"]]
        sampling = structure(SamplingConfig, merge(unstructure(run.config.gen), gen), where="generate")
        source = iter([prompts]) if isinstance(prompts, str) else prompts  # a text, even if it ends like a file name
        rows = run.data.read_prompts(source, "prompts")
        batch = run.sampling.sample(rows, sampling)
        alone = bool(run.data.options.outputs_begin_text)
        return render_outputs(self.policy.tokenizer, batch, rows, sampling.stop_sequences, alone=alone)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write model and tokenizer into `folder`, to be loaded with `transformers`' `from_pretrained`.

        Observers may add files, such as a model card.
        A new or empty folder, or one that this has written before, gets a manifest with the checksums of its files.
        If several processes call this, rank 0 writes; all must call it if the model is divided (`run.shard`).
        """
        ranks = self.run.ranks

        def save() -> None:
            place = Path(folder)
            is_own = not place.exists() or not any(place.iterdir()) or remove_weights(place)
            self.policy.export(place)
            self.run.observers.on_export(self.run, place)
            if is_own:  # else the manifest would list files of other programs
                write_manifest(place, step=self.run.step, score=None, further={})

        with streaming(self.policy, here=ranks.is_main, merged=True) as stream:
            if ranks.is_main:
                stream.finishing(save)

    def push_to_hub(
        self, repo: str, *, private: bool | None = None, token: str | None = None, revision: str | None = None
    ) -> str | None:
        """Upload the trained model, its tokenizer and its card to the Hugging Face hub, and return the commit's URL.

        If several processes call this, rank 0 uploads, and the others return None.

        Args:
            repo: `user/name`; created if it does not exist.
            private: whether a repository that is created is private; by default the hub decides.
            token: access token; by default that of `hf auth login` or HF_TOKEN.
            revision: branch to push to; created if it does not exist.

        Raises:
            ConfigError: no plugin that uploads models is installed.
            HubError: the hub cannot be reached, or refuses the token, the name or a file; the model stays in the run's
                folder, and the message has the command that pushes it later.
        """
        if not self.run.ranks.is_main:
            return None
        hub = find_uploader(repo, "result")
        return hub.push(self.run_dir / "model", repo, run=self.run_dir, private=private, token=token, revision=revision)


@explain_arguments
def train(
    model: object = None,
    *,
    trainer: object = None,
    reward_fn: object = None,
    prompts: object = None,
    samples: object = None,
    rewards: object = None,
    eval_prompts: object = None,
    eval_samples: object = None,
    metric_fn: Callable[..., object] | str | None = None,
    logit_mask: object = None,
    environment: object = None,
    tools: Sequence[Callable[..., object]] | None = None,
    stop_sequences: Sequence[str] | None = None,
    tokenizer: object = None,
    config: object = None,
    data: object = None,
    gen: object = None,
    eval: object = None,  # noqa: A002  the section's name
    checkpoint: object = None,
    run: object = None,
    loggers: Sequence[object] | None = None,
    sampler: str | Mapping[str, object] | None = None,
    store: str | Mapping[str, object] | None = None,
    plugins: object = None,
    observers: Sequence[object] | None = None,
) -> Result:
    """Fine-tune a language model.

    Args:
        model: hub id, local folder, GGUF file, `PretrainedConfig` (random weights) or a model in memory, which is then
            trained in place; or a mapping with `path` (one of these), `architecture` and its options.
        trainer: name of an installed trainer, a mapping with `name` and its options, or its config object. When left
            out, the installed trainer whose `default_for` names the inputs that are given.
        reward_fn: function of `samples`, `prompts`, `outputs` and columns of the prompts, called with the arguments
            that its signature names; or several functions.
        prompts: strings, mappings with `prompt` and columns, conversations, or a `datasets.Dataset`.
        samples: strings, `[prompt, output, ...]` lists, or conversations.
        rewards: one number for each sample.
        eval_prompts: prompts of the evaluations; by default the first training prompts.
        eval_samples: demonstrations for the validation loss.
        metric_fn: called like `reward_fn`; returns lists of numbers by name, which evaluations report.
        logit_mask: bool[V, V], True where the token of the column may follow the token of the row; a tensor, array,
            nested lists, `module:function` or the path of a .json or .npy file.
        environment: name of a registered environment, a mapping with `name` and options, or a class or function that
            returns an object with the methods of `rlcore.protocols.Environment`; the policy then talks with it in
            episodes of several turns.
        tools: Python functions that the policy may call; they make up an environment.
        stop_sequences: strings that end a continuation.
        tokenizer: object, folder or hub id, or a mapping with `path` and other options (`rlcore show tokenizer`); by
            default the model's own.
        config: YAML file, mapping or `TrainConfig`; the other arguments override it.
        data: mapping or `DataConfig` that overrides that section of `config`.
        gen: mapping or `SamplingConfig`, likewise.
        eval: mapping or `EvalConfig`, likewise.
        checkpoint: mapping or `CheckpointConfig`, likewise.
        run: mapping or `RunConfig`, likewise.
        loggers: names, mappings with `name` and options, or objects with the methods of `rlcore.protocols.Logger`.
        sampler: name of the sampler, or a mapping with `name` and options.
        store: name of the rollout store, or a mapping with `name` and options.
        plugins: mapping or `PluginsConfig` that overrides that section of `config`.
        observers: objects with any of the methods `on_run_start`, `on_rollout`, `on_step`, `on_evaluate`,
            `on_checkpoint`, `on_export`, `on_run_end` and `on_run_closed` (`rlcore.hookspecs`), or
            objects that a plugin adapts, such as callbacks of `transformers`.

    Raises:
        RLCoreError: an argument cannot be used; the message names the argument and the reason.
        KeyboardInterrupt: Ctrl-C or SIGTERM has ended the run, or came in its last step; the run is saved, and
            `run.raise_on_interrupt` is set.
    """
    sections = {"data": data, "gen": gen, "eval": eval, "checkpoint": checkpoint, "run": run, "plugins": plugins}
    _refuse_deep({"config": config, "trainer": trainer, "model": model, **sections})
    base, where = _base(config)
    base = merge(base, {name: unstructure(given) for name, given in sections.items() if given is not None})
    base = merge(base, {"trainer": _section_of(trainer, base, where), "model": _named(model, "path")})
    loggers, own_loggers = split_loggers(loggers)
    plain = {"loggers": loggers, "sampler": sampler, "store": store}
    base = merge(base, {name: given for name, given in plain.items() if given is not None})
    if stop_sequences is not None:
        base = merge(
            base,
            {"gen": {"stop_sequences": [stop_sequences] if isinstance(stop_sequences, str) else stop_sequences}},
        )
    given = {
        "prompts": prompts, "samples": samples, "rewards": rewards, "eval_prompts": eval_prompts,
        "eval_samples": eval_samples, "reward_fn": reward_fn, "metric_fn": metric_fn, "logit_mask": logit_mask,
        "environment": with_tools(environment, tools),
    }  # fmt: skip
    result = _train(base, where, given=given, tokenizer=tokenizer, observers=observers, loggers=own_loggers)
    if result.run.config.run.raise_on_interrupt and result.run.progress.signalled():
        raise KeyboardInterrupt(f"{result.run_dir} is saved at step {result.run.step}")
    return result


def train_from_config(values: Mapping[str, object], where: str) -> Result:
    """Fine-tune with the values of a configuration file; `where` is its name in errors."""
    return _train(values, where, given={}, tokenizer=None)


def _train(
    values: Options,
    where: str,
    *,
    given: Options,
    tokenizer: object,
    observers: Sequence[object] | None = None,
    loggers: Mapping[str, object] = MappingProxyType({}),
) -> Result:
    check_environment()
    problems = Problems()
    settings = _structure(values, where, problems)
    data = {name: given[name] if given.get(name) is not None else getattr(settings.data, name) for name in DATA_INPUTS}
    # Within the block, this process and those it starts see the plugins that the run selects.
    with configured(settings.plugins.disable, settings.plugins.only):
        inputs = Inputs(
            model=settings.model.get("path"),
            tokenizer=tokenizer if tokenizer is not None else settings.model.get("tokenizer"),
            observers=observers_by_name(observers),
            loggers=loggers,
            **data,
        )
        parts: Assembly = assemble(settings, inputs, where, problems)
        try:
            with parts.run.closing.claimed as claimed:  # a run whose first step fails leaves no folder
                metrics = fit(parts.trainer, parts.run, parts.saver, after_step=claimed.close)
        finally:
            if parts.lock is not None:
                parts.lock.release()
            parts.trainer.policy().module.eval()
            parts.run.evaluations.clear()  # the trainer's own: a cycle would keep the model after the result is dropped
    policy: Any = parts.trainer.policy()
    result = Result(metrics=metrics, run_dir=parts.run.dir, policy=policy, run=parts.run)
    if settings.run.push_to_hub is not None and not result.was_interrupted:
        url = result.push_to_hub(settings.run.push_to_hub, private=settings.run.hub_private)
        log.info("pushed to the hub", commit=url)
    return result


def _structure(values: Mapping[str, object], where: str, problems: Problems) -> TrainConfig:
    """Return the settings; invalid options have their defaults, and their errors are in `problems`."""
    gen = values.get("gen")
    if isinstance(gen, Mapping) and (sweeps := sweeps_in(gen)):
        problems.attempt(refuse_sweeps, gen, where)
        values = {**values, "gen": {name: value for name, value in gen.items() if name not in sweeps}}
    settings, error = structure_valid(TrainConfig, values, where=where)
    if error is not None:
        problems.add(error)
    return settings or TrainConfig()


def _base(config: object) -> tuple[dict[str, object], str]:
    if config is None:
        return {}, "train"
    if isinstance(config, (str, os.PathLike)):
        return load_yaml(Path(config)), os.fspath(config)
    values = config if isinstance(config, Mapping) else unstructure(config)
    if not isinstance(values, Mapping):
        raise ConfigError(f"config = {shorten(config)}: must be a YAML file, a mapping or a TrainConfig")
    return dict(values), "config"


def _refuse_deep(sections: Mapping[str, object]) -> None:
    for name, given in sections.items():
        if is_too_deep(given):
            raise ConfigError(f"{name}: is nested more than {MAX_DEPTH} deep, or contains itself")


def _named(given: object, key: str) -> dict[str, object]:
    """Return a section of a configuration from a mapping, or from a value that belongs under `key`."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {key: given}


def _section_of(trainer: object, base: Mapping[str, object], where: str) -> dict[str, object]:
    """Return the section `trainer` from a name, a mapping, or an object of a trainer's options class."""
    if attrs.has(type(trainer)):
        section = plugins_section(base, where)
        with configured(section.disable, section.only):
            known = all_registries()  # not `registries`: ranks compare their plugins before one of them may refuse any
        for component in known.trainers:
            if _is_config_of(component, type(trainer)):
                return {"name": component.qualified, **unstructure(trainer)}
    return _named(trainer, "name")


def _is_config_of(component: Component[Any], cls: type) -> bool:
    try:
        return component.config_class() is cls
    except PluginError:  # reported where that component is looked up
        return False
