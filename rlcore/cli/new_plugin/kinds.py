"""The kinds of plugin that can be written, and what each is called where."""

from __future__ import annotations

import attrs


@attrs.frozen
class PluginKind:
    """Hold what differs from one kind of plugin to the next, its files aside.

    Attributes:
        name: what a user says, and the module in which the work is done.
        registry: where components of this kind are registered.
        noun: what one is called in a sentence.
        target: what is registered, with `{title}` for the component's name in CamelCase.
        summary: one line for `rlcore show`.
        about: what the package is, for its README; a sentence.
        uses_torch: whether its code imports torch itself.
    """

    name: str
    registry: str
    noun: str
    target: str
    summary: str
    about: str
    uses_torch: bool = False


_ALL = (
    PluginKind(
        name="trainer",
        registry="trainers",
        noun="trainer",
        target="{title}Trainer",
        summary="REINFORCE with a leave-one-out baseline",
        about="A trainer for rlcore that makes each response likelier, or less likely, by how much better it scored "
        "than the others of its round: REINFORCE with a baseline, one optimizer step a round.",
        uses_torch=True,
    ),
    PluginKind(
        name="logger",
        registry="loggers",
        noun="logger",
        target="{title}Logger",
        summary="metrics in a CSV file, one number a row",
        about="A logger for rlcore that writes the metrics of a run to a CSV file, one number a row, so that metrics "
        "may come and go.",
    ),
    PluginKind(
        name="pipeline",
        registry="pipelines",
        noun="pipeline",
        target="{title}Pipeline",
        summary="a template put around every prompt",
        about="A pipeline for rlcore that puts a template around every prompt before it is tokenised.",
    ),
    PluginKind(
        name="architecture",
        registry="architectures",
        noun="architecture",
        target="build_policy",
        summary="causal_lm with parts that do not train",
        about="An architecture for rlcore that builds any causal language model with embeddings that keep their "
        "values, and other parameters where wanted.",
    ),
    PluginKind(
        name="store",
        registry="rollout_stores",
        noun="rollout store",
        target="{title}Store",
        summary="rollouts in memory, the best-scored only",
        about="A rollout store for rlcore that keeps the best-scored rollouts between sampling and learning, and drops "
        "the others.",
    ),
    PluginKind(
        name="sampler",
        registry="samplers",
        noun="sampler",
        target="{title}Sampler",
        summary="as many prompts at once as a budget of tokens allows",
        about="A sampler for rlcore that continues as many prompts at once as a budget of tokens allows, whatever "
        "their lengths.",
        uses_torch=True,
    ),
    PluginKind(
        name="reward",
        registry="rewards",
        noun="reward",
        target="{title}Reward",
        summary="words that should occur, less a penalty for length",
        about="A reward for rlcore: words that occur in an output count for it, and too many characters against it.",
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
