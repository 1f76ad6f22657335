"""All errors that rlcore raises intentionally; messages name the cause, the place, the value and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar, cast

from rlcore.safe_text import hide_logins

T = TypeVar("T")


class RLCoreError(Exception):
    """The base class of all errors that rlcore raises intentionally."""

    def __str__(self) -> str:
        return hide_logins(super().__str__())


class ConfigError(RLCoreError, ValueError):
    """Options that are unknown, of the wrong type or out of range, one per line."""


class Problems:
    """Errors of a configuration, collected until `check` raises them; after that, errors are raised at once."""

    def __init__(self) -> None:
        self._errors: list[RLCoreError] = []
        self._is_checked = False

    def add(self, error: RLCoreError) -> None:
        """Collect an error."""
        if self._is_checked:
            raise error
        self._errors.append(error)

    def attempt(self, make: Callable[..., T], *arguments: object, **options: object) -> T:
        """Return what `make` returns. If it raises an error of rlcore, collect that and return None in its place.

        The None is only passed on to further attempts, because `check` raises.
        """
        try:
            return make(*arguments, **options)
        except RLCoreError as error:
            self.add(error)
            return cast("T", None)

    def check(self) -> None:
        """Raise the collected errors: a single one as it is, several as the lines of one ConfigError."""
        self._is_checked = True
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lines = (
                f"{'' if type(each) is ConfigError else f'{type(each).__name__}: '}{each}" for each in self._errors
            )
            raise ConfigError("\n".join(lines)) from self._errors[0]


class UnknownArgument(ConfigError, TypeError):
    """An argument that a function does not have, with the argument or option of that meaning."""


class MissingColumn(RLCoreError, KeyError):
    """A column that trajectories do not have."""

    def __init__(self, name: str, present: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.present = name, present

    def __str__(self) -> str:
        return f"trajectories have no column '{self.name}'; they have {', '.join(self.present) or 'none'}"


class DataError(RLCoreError, ValueError):
    """Prompts, samples or rewards that are invalid; the message has the index of the first invalid one."""


class RewardError(RLCoreError, RuntimeError):
    """A reward or metric function that raised an exception or returned an invalid value."""


class CheckpointError(RLCoreError, RuntimeError):
    """A checkpoint that cannot be written or read."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is proven to be damaged: bytes that differ from their checksum, or a missing file."""


class RunExists(RLCoreError, FileExistsError):
    """A run folder that already contains a run."""


class RunInUse(RLCoreError, BlockingIOError):
    """A run folder that another process is writing to, with the host, the id and the time of that process."""


class NoRollouts(RLCoreError, LookupError):
    """`rlcore rollouts` found no such run, no stored rollouts, or none that match."""


class ModelError(RLCoreError, ValueError):
    """A model, tokenizer or architecture option that cannot be used."""


class PluginError(RLCoreError, RuntimeError):
    """A plugin or one of its components that cannot be used, with its dist and the cause."""


class UnknownComponent(RLCoreError, LookupError):
    """A name that no installed plugin registered, with near matches and the plugins that failed to load."""


class UnknownTrainer(UnknownComponent):
    """A trainer name that no installed plugin registered."""


class UnknownPipeline(UnknownComponent):
    """A pipeline name that no installed plugin registered."""


class UnknownArchitecture(UnknownComponent):
    """An architecture name that no installed plugin registered."""


class UnknownRolloutStore(UnknownComponent):
    """A rollout store name that no installed plugin registered."""


class UnknownLogger(UnknownComponent):
    """A logger name that no installed plugin registered."""


class UnknownSampler(UnknownComponent):
    """A sampler name that no installed plugin registered."""


class UnknownReward(UnknownComponent):
    """A reward name that no installed plugin registered."""


class UnknownOptimizer(UnknownComponent):
    """An optimizer name that no installed plugin registered."""


class UnknownScheduler(UnknownComponent):
    """A learning-rate schedule name that no installed plugin registered."""


class UnknownSharding(UnknownComponent):
    """A strategy of sharding that no installed plugin registered."""


class UnknownEnvironment(UnknownComponent):
    """An environment name that no installed plugin registered."""


class UnknownCommand(UnknownComponent):
    """A subcommand of `rlcore` that no installed plugin registered."""


class AmbiguousComponent(RLCoreError, LookupError):
    """A short name that several dists registered, with the full names."""


class RanksError(RLCoreError, RuntimeError):
    """Processes that disagree or cannot connect to each other."""


class InputsError(RLCoreError, ValueError):
    """Inputs that the trainer requires and did not receive."""


class EmptyStore(RLCoreError, LookupError):
    """A rollout store that is empty when sequences are taken from it."""


class Diverged(RLCoreError, ArithmeticError):
    """A loss or weights that are no longer finite; no checkpoint is overwritten."""


class HubError(RLCoreError, ConnectionError):
    """A trained model that could not be pushed to the Hugging Face hub; it stays in its folder."""


class PluginNameError(RLCoreError, ValueError):
    """A name that is not allowed for a new plugin."""


class ScaffoldError(RLCoreError, OSError):
    """A new plugin that cannot be written to its folder."""


_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EACCES: "change the permissions, or choose another folder",
    errno.EPERM: "change the permissions, or choose another folder",
    errno.EROFS: "choose a folder on a file system that can be written",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "move the file that is in the place of a folder",
    errno.EISDIR: "move the folder that is in the place of a file",
    errno.EEXIST: "move the file that is in the way",
}


def io_remedy(error: OSError) -> str:
    """Return what a user can do about a file that cannot be read or written."""
    return _REMEDIES.get(error.errno or 0, "check the disk or the network mount")
