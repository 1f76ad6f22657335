"""Precomputed log-probs of a reference, kept on disk for later runs with the same rows and the same weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlcore.checkpoints import sync
from rlcore.logging import get_logger
from rlcore.types import sequences_of

FOLDER = ".ref_logprobs"
"""Folder of the cache, beside those of the runs."""


class ReferenceCache:
    """Tables of log-probs, each in a file whose name is a digest of all that the numbers follow from.

    These are the tokens of the rows, which depend on texts, tokenizer, template and length limits; the weights and the
    configuration of the model; and how its passes are made. What a digest cannot cover, such as the code of a model, is
    up to the caller: it computes some of the numbers again. Each file contains a seal, a digest of its name and of its
    numbers, so that a file that is damaged, or was copied over another one, is not used.

    Args:
        folder: of the cache; need not exist.
        module: the model that computes the log-probs.
        passes: describes how rows are batched, and in which precision they run.
    """

    def __init__(self, folder: Path, module: nn.Module, passes: str) -> None:
        self.folder, self._passes = folder, passes
        self._model = digest(_parts_of_model(module))

    def path(self, rows: Sequence[Any]) -> Path:
        """Return the file of the table of rows."""
        return self.folder / f"{digest([self._model, self._passes.encode(), *_parts_of_rows(rows)]).hex()}.safetensors"

    def load(self, rows: Sequence[Any]) -> Tensor | None:
        """Return the table of rows, float[rows, 2]; None if there is none, or, with a warning, none that is intact."""
        path = self.path(rows)
        if not path.exists():
            return None
        try:
            found = load_file(path)
            table, seal = found["table"], found["seal"]
        except (OSError, KeyError, SafetensorError) as error:
            self.reject(rows, f"it cannot be read: {type(error).__name__}: {error}")
            return None
        is_table = (table.dtype, table.shape) == (torch.float32, (len(rows), 2))
        if not is_table or seal.tolist() != _seal(path, table).tolist():
            self.reject(rows, "its numbers are not those that were written")
            return None
        return table

    def reject(self, rows: Sequence[Any], reason: str) -> None:
        """Log that the table of rows is computed again, and why."""
        get_logger("dpo").warning(
            "a file of reference log-probs is not used; they are computed again", file=str(self.path(rows)),
            reason=reason,
        )  # fmt: skip

    def save(self, rows: Sequence[Any], table: Tensor) -> None:
        """Write the table of rows; that it cannot be written is no error."""
        path = self.path(rows)
        whole = path.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            table = table.contiguous()
            save_file({"table": table, "seal": _seal(path, table)}, whole)
            sync(whole)
            whole.replace(path)
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):
                whole.unlink()
            get_logger("dpo").warning("reference log-probs are not kept", file=str(path), reason=str(error))


def _seal(path: Path, table: Tensor) -> Tensor:
    """Return the digest of a table in the file `path`: uint8[32]."""
    about = f"{path.stem} {table.dtype} {tuple(table.shape)}"
    return torch.tensor(list(digest([about.encode(), table.numpy().tobytes()])), dtype=torch.uint8)


def digest(parts: Iterator[bytes] | Sequence[bytes]) -> bytes:
    """Return the SHA-256 of a sequence of byte strings, each preceded by its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def _parts_of_model(module: nn.Module) -> Iterator[bytes]:
    yield f"{torch.__version__} {module}".encode()
    for part in module.modules():
        if (config := getattr(part, "config", None)) is not None:
            yield str(config).encode()
    for name, weight in [*module.named_parameters(), *module.named_buffers()]:
        yield f"{name} {weight.dtype} {tuple(weight.shape)} {weight.device.type}".encode()
        yield weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _parts_of_rows(rows: Sequence[Any]) -> Iterator[bytes]:
    for row in rows:
        for sample in sequences_of(row):
            yield torch.tensor(sample.tokens).numpy().tobytes()
            yield bytes(sample.action_mask)
