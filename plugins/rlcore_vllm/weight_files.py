"""The folder through which weights reach the servers of a run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from rlcore.protocols import Policy
from rlcore_vllm.client import VLLMServer
from rlcore_vllm.weights import write_adapter, write_base, write_folder, write_weights

ADAPTER = "rlcore-policy"
"""Name of the adapter on a server."""


class WeightFiles:
    """The files of the policy's present weights.

    Args:
        folder: where they are; if None, and no other is used, in a temporary folder.
        has_adapter: whether a server has the model beneath an adapter, and receives the adapter alone.
    """

    def __init__(self, folder: str | None, *, has_adapter: bool) -> None:
        self._folder = None if folder is None else Path(folder)
        self._has_adapter, self._written = has_adapter, 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def use(self, folder: Path) -> None:
        """Set the folder if there is no other."""
        self._folder = self._folder or folder

    @property
    def place(self) -> Path:
        """Return the folder, with the model in `model` and the adapter in `adapter`."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="rlcore-vllm-")
            self._folder = Path(self._temporary.name)
        return self._folder.resolve()

    def write(self, policy: Policy, number: int, *, here: bool) -> None:
        """Write the weights; collective.

        Args:
            policy: the policy.
            number: tells policies apart: another one has another configuration.
            here: whether this process writes; the others take part in gathering the weights.
        """
        place, is_new = self.place if here else None, self._written != number
        model = None if place is None else place / "model"
        if self._has_adapter:
            if is_new:
                write_base(policy, model)
            write_adapter(policy, None if place is None else place / "adapter")
        else:
            names = write_weights(policy, model)
            if is_new and model is not None:
                write_folder(policy, model, names)
        self._written = number

    def load(self, server: VLLMServer, version: str) -> None:
        """Let a server load the weights that were written last."""
        if self._has_adapter:
            server.load_adapter(str(self.place / "adapter"), version, ADAPTER)
        else:
            server.load(str(self.place / "model"), version)

    def close(self, *, here: bool) -> None:
        """Delete the files, where this process has written them."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._folder = None
        elif self._folder is not None and here:
            for name in ("model", "adapter", "worker"):
                shutil.rmtree(self._folder / name, ignore_errors=True)
            with contextlib.suppress(OSError):  # something else is in it
                self._folder.rmdir()
