"""Arguments of TRL's scripts that name data: a data set, or a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.trl_rules import SAMPLING

FILES = ("json", "csv", "parquet", "text")
"""Values of `path` in TRL's mixtures that name the type of `data_files`."""
OURS = ("path", "name", "split", "data_files")


def convert_data(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the names of data sets and columns, and the model that rewards."""
    is_sampled = conversion.has("trainer.rollouts") or conversion.trainer in SAMPLING
    kind = "prompts" if is_sampled else "samples"
    _convert_mixer(conversion, given, kind)
    _convert_shares(conversion, given, kind)
    _convert_mixture(conversion, given, kind)
    _convert_prompts(conversion, given, is_sampled=is_sampled)
    name, subset = given.pop("dataset_name", None), given.pop("dataset_config", None)
    subsets = given.get("dataset_configs")
    if name is not None and subset is None and isinstance(subsets, list) and len(subsets) == 1:
        subset = given.pop("dataset_configs")[0]  # earlier recipes of open-r1
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
    _convert_rewards(conversion, given)
    if (column := given.pop("dataset_text_field", "text")) not in ("text", None):
        conversion.put("data.columns", {"text": column})


def _convert_prompts(conversion: Conversion, given: dict[str, object], *, is_sampled: bool) -> None:
    """Convert the prompts of open-r1's recipes: texts in a column, which become the user's, after a system prompt."""
    column, system = given.pop("dataset_prompt_column", None), given.pop("system_prompt", None)
    if system:
        conversion.put("data.system_prompt", system)
    if column is not None and is_sampled:
        conversion.put("data.prompt_column", column)
    elif column is not None:
        conversion.leave("dataset_prompt_column", column, "open-r1 reads it for GRPO; data.columns renames columns")
    if is_sampled and (system or column is not None):
        conversion.put("data.as_messages", True)
        conversion.notes.append("data.as_messages: texts of prompts become messages of the user, as in open-r1")


def _convert_rewards(conversion: Conversion, given: dict[str, object]) -> None:
    """Convert reward functions that are named by module, reward models of the hub, and the weights of both."""
    named = given.pop("reward_funcs", None)
    if named is None:
        return
    names, weights = named if isinstance(named, list) else [named], given.pop("reward_weights", None)
    if weights is not None and (not isinstance(weights, list) or len(weights) != len(names)):
        conversion.refuse("reward_weights", weights, f"must be a list of a number for each of {len(names)} functions")
        return
    found: list[object] = []
    unknown: list[object] = []
    for name, weight in zip(names, weights or [1.0] * len(names), strict=True):
        module, _, function = name.rpartition(".")
        if name.count("/") == 1:
            model = {"fn": "reward_model", "path": name}
            found.append({**model, "weight": weight} if weights else model)
        elif not module or "/" in name:
            unknown.append({name: weight} if weights else name)
        else:
            found.append({"fn": f"{module}:{function}", "weight": weight} if weights else f"{module}:{function}")
    if unknown:
        conversion.leave(
            "reward_funcs", unknown, "functions of the script that read the file, or models: name yours in "
            "data.reward_fn, as module:function (those that name completions receive TRL's arguments), {fn: ..., "
            "weight: ...} or {fn: reward_model, path: ...}",
        )  # fmt: skip
    if found:
        conversion.put("data.reward_fn", found)


def _convert_mixer(conversion: Conversion, given: dict[str, Any], kind: str) -> None:
    """Convert alignment-handbook's `dataset_mixer`: names of data sets, the share of their rows, and splits of all."""
    shares = given.pop("dataset_mixer", None)
    if shares is None:
        return
    splits, subsets = given.pop("dataset_splits", None) or ["train", "test"], given.pop("dataset_configs", None)
    if not isinstance(shares, Mapping) or len(subsets or shares) != len(shares):
        allowed = (
            "must be a mapping from names of data sets to shares of their rows, with a name in dataset_configs each"
        )
        conversion.refuse("dataset_mixer", shares, allowed)
        return
    subsets = subsets or [None] * len(shares)
    for ours, word in ((kind, "train"), (f"eval_{kind}", "test")):
        sources = []
        for split in (str(each) for each in splits if word in str(each)):
            for (name, share), subset in zip(shares.items(), subsets, strict=True):
                entry = {"id": str(name), "weight": share, "config": subset, "split": split}
                sources.append(_shared(conversion, entry, "dataset_mixer"))
        _put_sources(conversion, f"data.{ours}", sources)
    for split in splits:
        if not any(word in str(split) for word in ("train", "test")):
            conversion.leave("dataset_splits", split, "alignment-handbook reads splits of train and test")


def _convert_shares(conversion: Conversion, given: dict[str, object], kind: str) -> None:
    """Convert `dataset_mixture` of open-r1 and alignment-handbook: data sets with splits and shares of their own."""
    mixture = given.pop("dataset_mixture", None)
    if mixture is None:
        return
    if not isinstance(mixture, Mapping) or not isinstance(mixture.get("datasets"), list):
        conversion.refuse("dataset_mixture", mixture, "must be a mapping with a list of `datasets`")
        return
    sources = [
        _shared(conversion, entry, f"dataset_mixture.datasets[{i}]") for i, entry in enumerate(mixture["datasets"])
    ]
    _put_sources(conversion, f"data.{kind}", [source for source in sources if source])
    reasons = {
        "seed": "rows are shuffled in every pass, with run.seed",
        "test_split_size": f"name rows of their own as data.eval_{kind}",
    }
    for name, value in mixture.items():
        if name != "datasets" and value is not None:
            conversion.leave(f"dataset_mixture.{name}", value, reasons.get(name, "a mixture has no such key"))


def _shared(conversion: Conversion, entry: object, name: str) -> str | None:
    """Return the source that an entry of `dataset_mixer` or `dataset_mixture` names."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
        conversion.refuse(name, entry, "must be a mapping with the `id` of a data set")
        return None
    if entry.get("weight") not in (None, 1) and "test" not in str(entry.get("split")):  # of which all rows are used
        conversion.leave(f"{name}, weight of {entry['id']}", entry["weight"], SHARE)
    for key, value in entry.items():
        if key not in ("id", "weight", "config", "split") and value is not None:
            conversion.leave(f"{name}.{key}", value, REASONS.get(key, "a source has no such key"))
    return str(_path_of({"path": entry["id"], "name": entry.get("config"), "split": entry.get("split")}))


def _put_sources(conversion: Conversion, path: str, sources: Sequence[str | None]) -> None:
    if sources:
        conversion.put(path, [{"path": source} for source in sources] if len(sources) > 1 else sources[0])


def convert_trained_tokens(conversion: Conversion, given: dict[str, object]) -> None:
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


def _convert_mixture(conversion: Conversion, given: dict[str, object], kind: str) -> None:
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


def _sources(conversion: Conversion, entry: object, name: str) -> list[dict[str, Any]]:
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


SHARE = "the share of its rows that is used: give the source such a limit, or a weight, which draws from all rows"
REASONS = {
    "columns": "columns that are not used are left alone; data.columns renames",
    "data_dir": "name its files as the path of the source",
    "fraction": "TRL takes the first rows so that the sources have these shares: give each source such a limit, or a "
    "weight, which draws from all rows",
}  # fmt: skip


def _path_of(entry: Mapping[str, object]) -> object:
    """Return the source that an entry of `datasets` names; None if its files are named by split, or are of a hub's."""
    files, split = entry.get("data_files"), entry.get("split")
    if files is None:
        middle = f":{entry['name']}" if entry.get("name") else ""
        return f"{entry['path']}{middle}:{split or 'train'}" if split or middle else entry["path"]
    is_whole = split in (None, "train")
    return files if is_whole and entry["path"] in FILES and isinstance(files, str | list) else None
