"""The learning rates of `rlcore show`: the default of a trainer, the rule that adapts it to the model, and sources."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from rlcore.config.describe import fields
from rlcore.settings import OptimizerConfig
from rlcore_transformers.optimizers.learning_rate_rule import (
    ADAPTER_SOURCES,
    SIZE_SOURCES,
    adapted_rate,
    describe_rule,
)

SIZES = (1.5e6, 124e6, 5e8, 7e9)
"""Numbers of parameters for which rates are printed."""


@attrs.frozen
class ShownRate:
    """The learning rate of an optimizer in a trainer's options.

    Attributes:
        path: the option, such as `optimizer.lr`.
        default: the rate of every model; None if it follows the model.
        rule: the rate of a model if the option is null.
        sources: of the rule and of the factor of adapters.
        weights: rate of the rule by the number of parameters, if all weights train.
        adapter: the same with an adapter.
    """

    path: str
    default: float | None
    rule: str
    sources: str
    weights: dict[str, float]
    adapter: dict[str, float]


def shown_rates(cls: type) -> list[ShownRate]:
    """Return the learning rates of a config class, of a run in which no other plugin has a rule."""
    return [_shown(f"{path}.lr", config) for path, config in _optimizers(cls)]


def rate_lines(rate: ShownRate) -> list[str]:
    """Return a learning rate as lines of text."""
    first = f"{rate.path} = null, the default: " if rate.default is None else f"{rate.path} = null: "
    lines = [
        f"{first}{rate.rule}",
        *(
            f"  {name}: {', '.join(f'{value:g} for {size}' for size, value in rates.items())}"
            for name, rates in (("weights", rate.weights), ("adapter", rate.adapter))
        ),
        f"  sources: {rate.sources}",
    ]
    return lines if rate.default is None else [f"{rate.path} = {rate.default:g}, the default: for every model", *lines]


def _optimizers(cls: type) -> Iterator[tuple[str, OptimizerConfig]]:
    for name, (field, _) in fields(cls).items():
        if isinstance(field.default, OptimizerConfig):
            yield name, field.default


def _shown(path: str, config: OptimizerConfig) -> ShownRate:
    weights, adapter = (
        {f"{size:.3g}": adapted_rate(*config.published, size, is_adapter=is_adapter) for size in SIZES}
        for is_adapter in (False, True)
    )
    rule = describe_rule(*config.published)
    return ShownRate(path, config.lr, rule, f"{SIZE_SOURCES}; adapters: {ADAPTER_SOURCES}", weights, adapter)
