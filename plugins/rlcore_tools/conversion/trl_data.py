"""Arguments of TRL's scripts that name data: a data set, or a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.trl_teachers import SAMPLING

FILES = ("json", "csv", "parquet", "text")
"""Values of `path` in TRL's mixtures that name the type of `data_files`."""
OURS = ("path", "name", "split", "data_files")


def convert_data(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the names of data sets and columns, and the model that rewards."""
    is_sampled = conversion.has("trainer.rollouts") or conversion.trainer in SAMPLING
    kind = "prompts" if is_sampled else "samples"
    _convert_mixture(conversion, given, kind)
    name, subset = given.pop("dataset_name", None), given.pop("dataset_config", None)
    split, held_out = given.pop("dataset_train_split", None), given.pop("dataset_test_split", None)
    if name is not None:
        middle = f":{subset}" if subset else ""
        conversion.put(f"data.{kind}", f"{name}{middle}:{split or 'train'}" if split or subset else name)
        if held_out is not None:
            conversion.put(f"data.eval_{kind}", f"{name}{middle}:{held_out}")
    for part, value in (("config", subset), ("train_split", split), ("test_split", held_out)):
        if value is not None and name is None:
            conversion.leave(f"dataset_{part}", value, "there is no dataset_name")
    for argument in ("reward_model_name_or_path", "reward_model_path"):
        if (model := given.pop(argument, None)) is not None:
            conversion.put("data.reward_fn", {"fn": "reward_model", "path": model})
    if (column := given.pop("dataset_text_field", "text")) not in ("text", None):
        conversion.put("data.columns", {"text": column})


def convert_trained_tokens(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert which tokens of a row are trained on: here what the assistant wrote, and completions.

    That is TRL's `assistant_only_loss=True`, whose default is false, and its default for completions.
    """
    if conversion.trainer != "sft":
        return
    if (turns := given.get("assistant_only_loss")) in (None, False):
        conversion.notes.append(
            "data.samples: of conversations the assistant's turns are trained on; TRL trains on all turns unless "
            "assistant_only_loss is true"
        )
    if turns in (None, False, True):
        given.pop("assistant_only_loss", None)
    completions = given.pop("completion_only_loss", None)
    if completions not in (None, True):
        how = "of rows {prompt, completion} the completion is trained on; rows {text: ...} are trained on whole"
        conversion.leave("completion_only_loss", completions, how)


def _convert_mixture(conversion: Conversion, given: dict[str, Any], kind: str) -> None:
    """Convert TRL's `datasets`, all rows of which are shuffled together, to a mixture without weights."""
    entries = given.pop("datasets", None)
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        if entries is not None:
            conversion.leave("datasets", entries, "it is no list of data sets")
        return
    sources = [source for i, entry in enumerate(entries) for source in _sources(conversion, entry, f"datasets[{i}]")]
    if sources:
        conversion.put(f"data.{kind}", sources if len(sources) > 1 else sources[0]["path"])
    is_streamed = given.pop("streaming", None)
    if is_streamed and len(sources) == 1 and kind == "samples":
        conversion.put("data.streaming", True)
    elif is_streamed:
        conversion.leave("streaming", True, "samples can be streamed; each source of a mixture then needs a weight")
    if (size := given.pop("test_split_size", None)) is not None:
        conversion.leave("test_split_size", size, f"name rows of their own as data.eval_{kind}")


def _sources(conversion: Conversion, entry: Any, name: str) -> list[dict[str, Any]]:
    """Return the source that an entry of `datasets` names, if any."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
        conversion.leave(name, entry, "it has no path")
        return []
    path = _path_of(entry)
    if path is None:
        conversion.leave(f"{name}.data_files", entry["data_files"], "name its files as the path of a source")
        return []
    for key, value in entry.items():
        if value is not None and key not in OURS:
            conversion.leave(f"{name}.{key}", value, REASONS.get(key, "a source has no such key"))
    return [{"path": path}]


REASONS = {
    "columns": "columns that are not used are left alone; data.columns renames",
    "data_dir": "name its files as the path of the source",
    "fraction": "TRL takes the first rows so that the sources have these shares: give each source such a limit, or a "
    "weight, which draws from all rows",
}  # fmt: skip


def _path_of(entry: Mapping[str, Any]) -> Any:
    """Return the source that an entry of `datasets` names; None if its files are named by split, or are of a hub's."""
    files, split = entry.get("data_files"), entry.get("split")
    if files is None:
        middle = f":{entry['name']}" if entry.get("name") else ""
        return f"{entry['path']}{middle}:{split or 'train'}" if split or middle else entry["path"]
    is_whole = split in (None, "train")
    return files if is_whole and entry["path"] in FILES and isinstance(files, str | list) else None
