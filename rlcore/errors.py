"""Every error rlcore raises on purpose: each says what, where, the value seen, and what to do."""

from __future__ import annotations


class RLCoreError(Exception):
    """Be the base of every error rlcore raises on purpose."""


class ConfigError(RLCoreError, ValueError):
    """Report options that are unknown, of the wrong type or out of range; one line each."""


class MissingColumn(RLCoreError, KeyError):
    """Report an array that was asked of trajectories but never added to them."""

    def __init__(self, name: str, present: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.present = name, present

    def __str__(self) -> str:
        return f"trajectories have no column '{self.name}'; they have {', '.join(self.present) or 'none'}"


class DataError(RLCoreError, ValueError):
    """Report prompts, samples or rewards that cannot be used, with the index of the first bad one."""


class RewardError(RLCoreError, RuntimeError):
    """Report a reward or metric function that raised or returned what cannot be used."""


class CheckpointError(RLCoreError, RuntimeError):
    """Report a checkpoint that cannot be written or read."""


class RunExists(RLCoreError, FileExistsError):
    """Report a run folder that already holds a run."""


class NoRollouts(RLCoreError, LookupError):
    """Report what `rlcore rollouts` cannot show: no such run, nothing kept, or nothing that is as asked for."""


class ModelError(RLCoreError, ValueError):
    """Report a model, tokenizer or architecture option that cannot be used."""


class PluginError(RLCoreError, RuntimeError):
    """Report a plugin, or a component one brought, that cannot be used, with its dist and the cause."""


class UnknownComponent(RLCoreError, LookupError):
    """Report a name that no installed plugin registered, with near matches and what could not be loaded."""


class UnknownTrainer(UnknownComponent):
    """Report a trainer nobody registered."""


class UnknownPipeline(UnknownComponent):
    """Report a pipeline nobody registered."""


class UnknownArchitecture(UnknownComponent):
    """Report an architecture nobody registered."""


class UnknownRolloutStore(UnknownComponent):
    """Report a rollout store nobody registered."""


class UnknownLogger(UnknownComponent):
    """Report a logger nobody registered."""


class UnknownSampler(UnknownComponent):
    """Report a sampler nobody registered."""


class UnknownReward(UnknownComponent):
    """Report a reward nobody registered."""


class UnknownOptimizer(UnknownComponent):
    """Report an optimizer nobody registered."""


class UnknownScheduler(UnknownComponent):
    """Report a learning-rate schedule nobody registered."""


class UnknownCommand(UnknownComponent):
    """Report a subcommand of `rlcore` nobody registered."""


class AmbiguousComponent(RLCoreError, LookupError):
    """Report a short name that several dists registered, with each full name."""


class RanksError(RLCoreError, RuntimeError):
    """Report processes that do not agree, or that do not find each other."""


class InputsError(RLCoreError, ValueError):
    """Report a trainer that was not given what it learns from."""


class EmptyStore(RLCoreError, LookupError):
    """Report a rollout store that was asked for sequences it does not hold."""


class Diverged(RLCoreError, ArithmeticError):
    """Report a loss or weights that are no longer finite numbers; nothing is saved over what was good."""


class PluginNameError(RLCoreError, ValueError):
    """Report a name that a new plugin cannot have, and why."""


class ScaffoldError(RLCoreError, OSError):
    """Report a new plugin that cannot be written where it should be."""
