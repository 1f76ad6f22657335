"""The reference's log-probs of answers: computed once before the first step, or in every step.

Also in this file: precomputed log-probs of a reference, kept on disk for later runs with the same rows and the same
weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlcore.checkpoints import sync
from rlcore.errors import CheckpointError, ConfigError, DataError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.training import Run, by_block, eval_mode, stack_samples
from rlcore.types import PolicyOutputs, Sample, State, Trajectories, sequences_of
from rlcore_dpo.config import DPOConfig, compares_with_reference
from rlcore_transformers.preferences.preferences import Pair

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

    def path(self, rows: Sequence[object]) -> Path:
        """Return the file of the table of rows."""
        return self.folder / f"{digest([self._model, self._passes.encode(), *_parts_of_rows(rows)]).hex()}.safetensors"

    def load(self, rows: Sequence[object]) -> Tensor | None:
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

    def reject(self, rows: Sequence[object], reason: str) -> None:
        """Log that the table of rows is computed again, and why."""
        get_logger("dpo").warning(
            "a file of reference log-probs is not used; they are computed again", file=str(self.path(rows)),
            reason=reason,
        )  # fmt: skip

    def save(self, rows: Sequence[object], table: Tensor) -> None:
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


def _parts_of_rows(rows: Sequence[object]) -> Iterator[bytes]:
    for row in rows:
        for sample in sequences_of(row):
            yield torch.tensor(sample.tokens).numpy().tobytes()
            yield bytes(sample.action_mask)


Scores = Callable[[Trajectories], PolicyOutputs]
COLUMN = "ref_logprobs"
"""Column of a batch with the reference's log-prob of each answer: float[B]."""


def is_built_with_reference(config: DPOConfig, run: Run) -> bool:
    """Return whether the policy keeps a reference of its own: one that is used in every step, or an adapter's base.

    The reference of a model without an adapter is a copy of its weights, which precomputed log-probs make unnecessary.
    """
    own = compares_with_reference(config) and config.ref_model is None
    return own and (not config.precompute_ref or run.config.model.get("peft") is not None)


class Reference:
    """The reference of a run, and the table of its log-probs.

    Args:
        config: the trainer's options, resolved.
        run: the run.
        policy: the policy, as it is before the first step.
        rows: the rows that are trained on, and the held-out ones; each table is in their order.
    """

    def __init__(self, config: DPOConfig, run: Run, policy: Policy, rows: Sequence[Any]) -> None:
        self.config, self.run, self.policy, self.rows = config, run, policy, rows
        self.tables: list[Tensor] | None = None
        self.is_used = compares_with_reference(config)
        is_given = run.data.sample_stream is None and _has_ref_logprobs(rows[0], config)
        self.is_precomputed = self.is_used and (is_given or bool(config.precompute_ref))
        in_steps = self.is_used and not self.is_precomputed
        self.other = run.models.frozen(config.ref_model) if in_steps and config.ref_model is not None else None

    def attach(self, batch: Trajectories, table: int, indices: Sequence[int]) -> Trajectories:
        """Return a batch of rows with the column of their precomputed log-probs, if there is one.

        Args:
            batch: the sequences of the rows at `indices`.
            table: 0 for rows that are trained on, 1 for held-out rows.
            indices: the rows.
        """
        if not self.is_precomputed:
            return batch
        self.precompute()
        assert self.tables is not None  # noqa: S101  for the type checker
        return batch.with_columns(**{COLUMN: self.tables[table][list(indices)].flatten().to(batch.tokens.device)})

    def logprobs(self, part: Trajectories) -> Tensor:
        """Return the reference's log-prob of each answer: float[B]."""
        if COLUMN in part:
            return part[COLUMN]
        return self._scored(part, self._reference)

    def precompute(self) -> None:
        """Fill the tables, unless they are: from the rows, the cache, or else with the reference.

        Raises:
            CheckpointError: the policy has changed, so that it is no longer the reference.
        """
        if self.tables is not None:
            return
        tables = [_given(rows) for rows in self.rows]
        if any(table is None for table in tables):
            score, module = self._scorer()
            passes = f"{self._rows_of_pass()} {self.config.micro_batch_tokens} {self.run.ranks.mixed_precision}"
            cache = ReferenceCache(self.run.dir.parent / FOLDER, module, passes) if self.config.cache_ref else None
            with eval_mode(module), torch.no_grad():
                for i, rows in enumerate(self.rows):
                    tables[i] = self._found(rows, score, cache) if tables[i] is None else tables[i]
        self.tables = [table for table in tables if table is not None]

    def _scorer(self) -> tuple[Scores, torch.nn.Module]:
        """Return the function that computes the reference's outputs, and its module."""
        named = self.config.ref_model
        if named is not None:
            other = self.run.models.frozen(named)
            return other.score, other.module
        if is_built_with_reference(self.config, self.run):
            return self.policy.reference_score, self.policy.module
        if self.run.step:
            raise CheckpointError(
                "the checkpoint has no reference log-probs, and the policy has changed since the start: resume with "
                "trainer.precompute_ref=false, as the run was begun"
            )
        return self.policy.score, self.policy.module  # before the first step, the policy is its own reference

    def _found(self, rows: Sequence[object], score: Scores, cache: ReferenceCache | None) -> Tensor:
        """Return the log-probs of the sequences of rows, from the cache if it has them: float[rows, 2].

        Those from the cache are used if the first pass over the rows, computed again, gives the same numbers.
        """
        if cache is None:
            return self._table(rows, score)
        ranks, kept = self.run.ranks, torch.zeros(len(rows), 2)

        def load() -> bool:
            found = cache.load(rows)
            if found is not None:
                kept.copy_(found)
            return found is not None

        if ranks.on_main(load):
            first = self._chunks(rows)[0]
            again = self._pass(rows, first, score)
            if ranks.on_main(lambda: torch.equal(again, kept[first])):
                get_logger("dpo").info("reference log-probs are read from the cache", rows=len(rows))
                return ranks.sum(kept).float().cpu()  # that of rank 0, as the others hold zeros
            ranks.on_main(lambda: cache.reject(rows, "the model gives other numbers for its first rows"))
        table = self._table(rows, score)
        ranks.on_main(lambda: cache.save(rows, table))
        return table

    def _table(self, rows: Sequence[object], score: Scores) -> Tensor:
        """Return the log-probs of the sequences of rows: float[rows, 2]; each rank computes a share of the chunks.

        These depend neither on the order of training nor on the number of ranks.
        """
        ranks, table = self.run.ranks, torch.zeros(len(rows), 2)
        chunks = self._chunks(rows)
        own = ranks.share(len(chunks))
        for number in own:
            table[chunks[number]] = self._pass(rows, chunks[number], score)
        if len(own) * ranks.world < len(chunks):  # a wrapped module waits for all ranks in each pass
            self._pass(rows, chunks[0], score)
        return ranks.sum(table).float().cpu()  # each row is zero on all ranks but one

    def _pass(self, rows: Sequence[object], chunk: Sequence[int], score: Scores) -> Tensor:
        samples: list[Sample] = [sample for i in chunk for sample in sequences_of(rows[i])]
        return self._scored(stack_samples(samples).to(self.run.ranks.device), score).cpu().view(-1, 2)

    def _rows_of_pass(self) -> int:
        config = self.config
        return max(config.micro_batch_size or 2 * config.batch_size, 2) // 2

    def _chunks(self, rows: Sequence[object]) -> list[list[int]]:
        """Return the rows of each forward pass, sorted by length, as `micro_batches` bounds a pass."""
        config = self.config
        longest = [max(len(sample.tokens) for sample in sequences_of(row)) for row in rows]
        most = self._rows_of_pass()
        chunks: list[list[int]] = []
        for i in sorted(range(len(rows)), key=lambda i: -longest[i]):
            last = chunks[-1] if chunks else []
            wide = 2 * (len(last) + 1) * longest[last[0]] if last else 0
            if not last or len(last) == most or (config.micro_batch_tokens and wide > config.micro_batch_tokens):
                chunks.append([])
            chunks[-1].append(i)
        return chunks

    def _reference(self, part: Trajectories) -> PolicyOutputs:
        return self.policy.reference_score(part) if self.other is None else self.other.score(part)

    @torch.no_grad()
    def _scored(self, part: Trajectories, score: Scores) -> Tensor:
        with by_block(self.policy) if self.config.ref_model is None else nullcontext():
            return summed(score(part).logprobs, part.action_mask)

    def state_dict(self) -> State:
        """Return the tables, which a changed policy cannot compute again, and the name of their reference."""
        return {"tables": self.tables, "ref_model": self.config.ref_model}

    def load_state_dict(self, state: State) -> None:
        """Restore the tables, unless the options name another reference now, whose tables are computed then.

        Raises:
            CheckpointError: they belong to another number of rows.
        """
        tables: list[Tensor] | None = state["tables"]
        if tables is None or state.get("ref_model", self.config.ref_model) != self.config.ref_model:
            return
        counts = [len(rows) for rows in self.rows]
        if [len(table) for table in tables] != counts:
            raise CheckpointError(
                f"the checkpoint has reference log-probs of {[len(table) for table in tables]} training and held-out "
                f"rows, now there are {counts}: resume with the original data, or set trainer.precompute_ref=false"
            )
        self.tables = tables


def _has_ref_logprobs(rows: Sequence[object], config: DPOConfig) -> bool:
    """Return whether the rows come with the log-probs of a reference, which are then used.

    Raises:
        ConfigError: `ref_model` names another reference.
    """
    if _given(rows) is None:
        return False
    if config.ref_model is not None:
        raise ConfigError(
            f"trainer.ref_model = {config.ref_model!r}: the rows have log-probs of a reference (ref_chosen_logps); "
            "leave it out, or remove these columns"
        )
    return True


def _given(rows: Sequence[object]) -> Tensor | None:
    """Return the log-probs of a reference that rows come with: float[rows, 2]; None if they have none.

    Raises:
        DataError: only some rows have them, or an answer has lost its end since they were computed.
    """
    pairs = [row for row in rows if isinstance(row, Pair) and row.ref_logprobs is not None]
    given = [pair.ref_logprobs for pair in pairs]
    if cut := sum(not (pair.chosen.ended and pair.rejected.ended) for pair in pairs):
        raise DataError(
            f"{cut} of {len(rows)} rows have log-probs of a reference (ref_chosen_logps, ref_rejected_logps) for whole "
            "answers, whose ends data.max_sample_tokens or the model's context cuts off; remove these rows, or these "
            "columns from all"
        )
    if 0 < len(given) < len(rows):
        raise DataError(
            f"{len(given)} of {len(rows)} rows have log-probs of a reference (ref_chosen_logps, ref_rejected_logps); "
            "give them for all rows, or remove these columns"
        )
    return torch.tensor(given).view(-1, 2) if given or not rows else None


def summed(logprobs: Tensor, action_mask: Tensor) -> Tensor:
    """Return the log-prob of each answer, the sum over its tokens: float[B, T], bool[B, T] -> float[B]."""
    return logprobs.float().masked_fill(~action_mask, 0.0).sum(1)
