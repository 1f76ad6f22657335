"""The kinds of plugin that `rlcore new-plugin` can write."""

from __future__ import annotations

import attrs


@attrs.frozen
class PluginKind:
    """One kind of plugin: the values that its templates need.

    Attributes:
        name: value of `--kind`, and name of the module with the implementation.
        registry: registry of the components of this kind.
        noun: name of a component in a sentence.
        target: attribute to register, with `{title}` for the component's name in CamelCase.
        summary: one-line description for `rlcore show`.
        about: first sentence of the README.
        uses_torch: whether the package imports torch itself.
        uses_transformers: whether it needs the language models and pipelines of `rlcore-transformers`.
        builds_on: further packages of the repository that it needs.
    """

    name: str
    registry: str
    noun: str
    target: str
    summary: str
    about: str
    uses_torch: bool = False
    uses_transformers: bool = False
    builds_on: tuple[str, ...] = ()


_ALL = (
    PluginKind(
        name="trainer",
        registry="trainers",
        noun="trainer",
        target="{title}Trainer",
        summary="REINFORCE with a leave-one-out baseline",
        about="A trainer for rlcore: REINFORCE with a leave-one-out baseline. It weights the log-probability of each "
        "response by its score minus the mean score of the other responses in the round.",
        uses_torch=True,
        uses_transformers=True,
    ),
    PluginKind(
        name="logger",
        registry="loggers",
        noun="logger",
        target="{title}Logger",
        summary="metrics in a CSV file, one value per row",
        about="A logger for rlcore that writes the metrics of a run to a CSV file, one value per row, so that each "
        "step may have different metrics.",
    ),
    PluginKind(
        name="pipeline",
        registry="pipelines",
        noun="pipeline",
        target="{title}Pipeline",
        summary="prompts inserted into a template",
        about="A pipeline for rlcore that inserts every prompt into a template before it is tokenised.",
        uses_transformers=True,
    ),
    PluginKind(
        name="architecture",
        registry="architectures",
        noun="architecture",
        target="build_policy",
        summary="causal_lm with frozen embeddings",
        about="An architecture for rlcore that builds any causal language model with frozen token embeddings, and "
        "optionally other frozen parameters.",
        uses_transformers=True,
    ),
    PluginKind(
        name="store",
        registry="rollout_stores",
        noun="rollout store",
        target="{title}Store",
        summary="the rollouts with the highest scores, in memory",
        about="A rollout store for rlcore that keeps the rollouts with the highest scores between sampling and "
        "learning, and drops the others.",
    ),
    PluginKind(
        name="sampler",
        registry="samplers",
        noun="sampler",
        target="{title}Sampler",
        summary="batches of prompts limited by a token budget",
        about="A sampler for rlcore whose batch size follows from a token budget and the length of the prompts.",
        uses_torch=True,
    ),
    PluginKind(
        name="reward",
        registry="rewards",
        noun="reward",
        target="{title}Reward",
        summary="share of given words in the output, minus a length penalty",
        about="A reward for rlcore: the share of given words that occur in an output, minus a penalty for its length.",
    ),
    PluginKind(
        name="environment",
        registry="environments",
        noun="environment",
        target="{title}Environment",
        summary="guess a number, with answers that say higher or lower",
        about="An environment for rlcore: a game in which the policy guesses a number and reads whether it is higher "
        "or lower.",
        uses_transformers=True,
        builds_on=("rlcore-environments",),
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
