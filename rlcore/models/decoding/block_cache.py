"""Remember keys and values of sequences that are continued together, in blocks that a processor reads front to back.

With one query a sequence, attention is as fast as memory is read. A block holds a few columns of every sequence that
has any of them, with no gap in memory; room for tokens to come would be one. So matrix products over whole blocks read
little that is not there, and read it at full speed, where attention kernels start anew for each sequence and head.

Shapes: B sequences, those with the longest prompts first, T columns; the prompts' are in
`rlcore.models.decoding.prompt_states`.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlcore.models.decoding.prompt_states import PromptStates, States, gathered

WIDTH = 32
"""Columns of a block: fewer take more calls, more are read in vain by sequences that end within them."""


class BlockCache:
    """Attend in the place of a packed batch's attention function (`rlcore.models.speed.packing`), one query a sequence.

    Everything is in float32: products of narrow types are slow on many processors.

    Args:
        prompts: what was read of the prompts; the sequences with the longest stand first.
        room: tokens each will be continued by at most.

    Attributes:
        blocks: keys and values of each layer, block by block, float[K, groups, WIDTH, width] of the first K sequences.
    """

    def __init__(self, prompts: PromptStates, room: int) -> None:
        self.columns, self.calls = prompts.columns, [0]
        self._held, self._end = self.columns, self.columns + room
        long = prompts.begun
        missing = torch.arange(self.columns, device=long.device) >= long[:, None]
        self._absent = missing[:, None, None] if prompts.is_ragged else None
        self.blocks: list[list[States]] = [[] for _ in prompts.read]
        for begin in range(0, self.columns, WIDTH):
            reaching = len(long) if begin + WIDTH > self.columns else int((long > begin).sum())
            picked = prompts.places[prompts.copies[:reaching], begin : begin + WIDTH]
            room = min(begin + WIDTH, self._end) - begin - picked.shape[1]
            for blocks, each in zip(self.blocks, prompts.read, strict=True):
                keys, values = (pad(gathered(states, picked), (0, 0, 0, room)) for states in each)
                blocks.append((keys, values))

    def fill(self, holes: Tensor, movers: Tensor, num_rows: int) -> None:
        """Put the sequences at `movers`, long[M], into `holes`, long[M], and go on with the first `num_rows` only.

        Holes lie before what is moved into them, so that a block which a sequence is in reaches its new place too.
        """
        for blocks in self.blocks:
            for i, block in enumerate(blocks):
                inside = movers < len(block[0])
                for states in block:
                    states.index_copy_(0, holes[inside], states.index_select(0, movers[inside]))
                blocks[i] = block[0][:num_rows], block[1][:num_rows]
        if self._absent is not None:
            self._absent = self._absent.index_copy(0, holes, self._absent[movers])[:num_rows]

    def join(self, prompts: PromptStates) -> None:
        """Take further sequences in behind the present ones; their prompts end in the newest column.

        Args:
            prompts: of J sequences, none longer than the longest so far.
        """
        self._end = sys.maxsize  # new columns are as many as their sequences need
        absent = self._forget(self._all_absent(len(self.blocks[0][-1][0])))
        rows, begins = len(absent), self._held - prompts.begun
        nth = torch.arange(1, len(begins) + 1, device=begins.device)
        for i in range(len(self.blocks[0])):
            reaching = int(((begins < (i + 1) * WIDTH) * nth).max())
            if not reaching:
                continue
            columns = torch.arange(i * WIDTH, (i + 1) * WIDTH, device=begins.device)
            positions = (columns - begins[:reaching, None]).clamp(0, prompts.columns - 1)
            picked = prompts.places[prompts.copies[:reaching]].gather(1, positions)
            for blocks, each in zip(self.blocks, prompts.read, strict=True):
                keys, values = (_with_room(states, rows + reaching) for states in blocks[i])
                keys[rows:], values[rows:] = (gathered(states, picked) for states in each)
                blocks[i] = keys, values
        theirs = torch.arange(self._held, device=begins.device) < begins[:, None]
        self._absent = torch.cat([absent, theirs])[:, None, None]

    def _all_absent(self, rows: int) -> Tensor:
        """Tell of each sequence and each column up to the newest whether it is none of the sequence's: bool[B, T]."""
        absent = torch.zeros(rows, self._held, dtype=torch.bool, device=self.blocks[0][0][0].device)
        if self._absent is not None:
            absent[:, : self._absent.shape[3]] = self._absent[:, 0, 0]
        return absent

    def _forget(self, absent: Tensor) -> Tensor:
        """Drop the first blocks, in which no sequence is, as far as prompts still find room; return what is left."""
        unused = int(absent.all(0).long().cumprod(0).sum())
        dropped = min(unused, self._held - self.columns) // WIDTH
        for blocks in self.blocks:
            del blocks[:dropped]
        self._held -= dropped * WIDTH
        return absent[:, dropped * WIDTH :]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  nothing is dropped
        """Remember keys and values, [1, groups, B, width], and attend: [1, B, heads, width]."""
        blocks = self.blocks[(self.calls[0] - 1) % len(self.blocks)]
        column = self._held % WIDTH
        if not column:
            room = min(WIDTH, self._end - self._held)
            blocks.append((_empty_block(key, room), _empty_block(value, room)))
        for states, drawn in zip(blocks[-1], (key, value), strict=True):
            states[:, :, column] = drawn[0].transpose(0, 1)
        asked = query[0].transpose(0, 1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        with torch.autocast(asked.device.type, enabled=False):
            said = self._mix(asked.float(), blocks, column + 1)
        if blocks is self.blocks[-1]:
            self._held += 1
        return said.to(query.dtype)[None]

    def _mix(self, asked: Tensor, blocks: list[States], written: int) -> Tensor:
        """Attend with scaled queries, float[B, heads, width], to all blocks, `written` columns of the last."""
        rows, heads, width = asked.shape
        groups = blocks[-1][0].shape[1]
        queries = asked.reshape(rows * groups, heads // groups, width)
        matrices = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in blocks]
        widths = [keys.shape[1] for keys, _ in matrices]
        scores = queries.new_empty(rows * groups, heads // groups, sum(widths))
        parts = scores.split(widths, 2)
        for part, (keys, _) in zip(parts, matrices, strict=True):
            part[: len(keys)] = torch.bmm(queries[: len(keys)], keys.transpose(1, 2))
        parts[-1][..., written:] = float("-inf")
        if self._absent is not None:
            known = scores.view(rows, groups, -1, sum(widths))[..., : self._absent.shape[3]]
            known.masked_fill_(self._absent, float("-inf"))
        *weights, newest = scores.softmax(2).split(widths, 2)
        mixed = torch.bmm(newest, matrices[-1][1])
        for part, (_, values) in zip(weights, matrices, strict=False):
            mixed[: len(values)].baddbmm_(part[: len(values)], values)
        return mixed.view(rows, heads, -1)


def _empty_block(drawn: Tensor, room: int) -> Tensor:
    """Make a block for states like float[1, groups, B, width]: float32[B, groups, room, width].

    What is not written yet is masked, but a weight of 0 does not hide what is not a number.
    """
    _, groups, rows, width = drawn.shape
    return drawn.new_zeros(rows, groups, room, width, dtype=torch.float32)


def _with_room(states: Tensor, rows: int) -> Tensor:
    """Return a block of whole width for so many sequences, in the storage it has if that is large enough."""
    _, groups, columns, width = states.shape
    if columns < WIDTH:
        states = pad(states, (0, 0, 0, WIDTH - columns))
    if states.untyped_storage().nbytes() >= rows * groups * WIDTH * width * states.element_size():
        return states.as_strided((rows, groups, WIDTH, width), states.stride())
    return pad(states, (0, 0, 0, 0, 0, 0, 0, rows - len(states)))
