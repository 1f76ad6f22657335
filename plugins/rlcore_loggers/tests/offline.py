"""Reader of wandb's offline run files: protocol buffer records in LevelDB log blocks."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import attrs

BLOCK = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@attrs.frozen
class Offline:
    """Content of an offline run's folder.

    Attributes:
        folder: path of the folder.
        run: id, project, name, tags and configuration.
        history: the logged rows.
        summary: the last value of each key.
        exit_code: exit code of the run; None if it was not recorded.
    """

    folder: Path
    run: Any
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    metrics: list[Any]
    exit_code: int | None

    def table(self, row: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and the rows of the completions table in a history row."""
        content = json.loads((self.folder / "files" / row["eval/completions"]["path"]).read_text())
        return content["columns"], content["data"]


def read_offline(folder: Path) -> Offline:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    records = [Record.FromString(content) for content in contents(file.read_bytes())]
    (run,) = (record.run for record in records if record.HasField("run"))
    exits = [record.exit.exit_code for record in records if record.HasField("exit")]
    summary = {}
    for record in records:
        summary |= items(record.summary.update)
    return Offline(
        folder=folder,
        run=run,
        config=items(run.config.update),
        history=[items(record.history.item) for record in records if record.HasField("history")],
        summary=summary,
        metrics=[record.metric for record in records if record.HasField("metric")],
        exit_code=exits[-1] if exits else None,
    )


def items(found: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in found:
        place, keys = values, [item.key] if item.key else list(item.nested_key)
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = json.loads(item.value_json)
    return values


def contents(log: bytes) -> list[bytes]:
    assert log[:4] == b":W&B"
    place, found, parts = 7, [], []
    while place + 7 <= len(log):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", log, place)
        parts.append(log[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in {FULL, LAST}:
            found.append(b"".join(parts))
            parts = []
        else:
            assert kind in {FIRST, MIDDLE}
    assert not parts
    return found
