"""The folder through which weights reach the servers of a run."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
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
        shared: a folder in which they have a folder of their own, since other runs may use it too; if None, they are
            beside the run, or without one in a temporary folder.
        has_adapter: whether a server has the model beneath an adapter, and receives the adapter alone.
        continues: whether responses under way go on with new weights.
    """

    def __init__(self, shared: str | None, *, has_adapter: bool, continues: bool = False) -> None:
        self._shared = None if shared is None else Path(shared)
        self._folder: Path | None = None
        self._has_adapter, self._continues, self._written = has_adapter, continues, 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def use(self, run: Path) -> None:
        """Set the folder for a run; it is the same when the run is resumed, so that nothing of a killed one is left."""
        place = f"{socket.gethostname()}:{run.resolve()}".encode()
        own = f"{run.name}-{hashlib.sha256(place).hexdigest()[:12]}"
        self._folder = run / "vllm" if self._shared is None else self._shared / own

    @property
    def place(self) -> Path:
        """Return the folder, with the model in `model` and the adapter in `adapter`."""
        if self._folder is None:
            if self._shared is not None:
                self._shared.mkdir(parents=True, exist_ok=True)
            self._temporary = tempfile.TemporaryDirectory(prefix="rlcore-vllm-", dir=self._shared)
            self._folder = Path(self._temporary.name)
            self._folder.chmod(0o755)  # a server may belong to another user
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
            server.init_transfer({})
            path = str(self.place / "model")
            server.load(version, lambda: server.update({"path": path}), continues=self._continues)

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
