"""Values of TRL's arguments: texts that are numbers or switches to its parser, and values of a wrong type or range."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Any, get_args

from rlcore.errors import ConfigError

TEXTS = ("name", "path", "dir", "token", "config", "split", "revision", "id", "project", "field", "kwargs")
"""Last words of the names of arguments whose values are texts, digits or not."""
LABELS = ("run_name", "output_dir", "model_name_or_path", "wandb_run_group")
"""Arguments that are names, which a file may write as a number."""
LISTS = ("beta",)
"""Arguments whose default is a number here, and which may be lists in TRL."""
COUNTS = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "num_generations",
    "num_iterations", "steps_per_generation", "generation_batch_size", "num_mini_batches", "num_ppo_epochs",
    "total_episodes", "num_generations_eval", "num_processes",
)  # fmt: skip
"""Arguments of which 0 and less mean nothing."""
NOT_NEGATIVE = ("warmup_steps", "warmup_ratio", "eval_steps", "save_steps", "logging_steps")
PLAIN_TEXTS = (
    "dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_prompt_column",
    "dataset_text_field", "system_prompt", "chat_template", "chat_template_path", "eos_token", "pad_token",
    "tokenizer_name_or_path", "model_revision", "torch_dtype", "dtype", "attn_implementation", "wandb_project",
    "wandb_entity", "teacher_model_name_or_path", "reward_model_path", "reward_model_name_or_path",
)  # fmt: skip
SWITCHES = (
    "use_peft", "packing", "load_in_4bit", "load_in_8bit", "use_rslora", "use_dora", "use_vllm", "assistant_only_loss",
    "completion_only_loss", "disable_dropout", "sync_ref_model", "trust_remote_code", "mask_truncated_completions",
    "log_completions", "reference_free", "precompute_ref_log_probs", "use_flash_attention_2", "overwrite_output_dir",
)  # fmt: skip
ROWS = ("dataset_splits", "dataset_configs", "reward_weights", "loss_weights", "callbacks", "benchmarks")
"""Arguments that are lists."""
NAMES = ("loss_type", "report_to", "reward_funcs")
"""Arguments that are a name or a list of names."""
YAML_1_1 = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
"""Texts that are switches to TRL's parser, or to the YAML that it reads."""


def read_values(arguments: Mapping[str, Any], defaults: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments with numbers and switches where TRL's parser reads them from texts, such as "5e-7".

    Args:
        arguments: by TRL's names.
        defaults: TRL's defaults.
        names: the name in the converted file of each argument that has another one there, for messages.

    Raises:
        ConfigError: one line for each argument whose value has another type or range than TRL's.
    """
    known = {name: field.default for name, field in _fields().items()} | dict(defaults)
    found, errors = {}, []
    for name, value in arguments.items():
        kinds = kinds_of(name, known.get(name))
        found[name] = _read(value, name, kinds) if isinstance(value, str) else value
        if name in LABELS and isinstance(value, int) and not isinstance(value, bool):
            found[name] = str(value)
        if kinds == (int,) and isinstance(value, float) and value.is_integer():
            found[name] = int(value)
        if found[name] is not None and (allowed := _problem(name, found[name], kinds)):
            default = known.get(name)
            theirs = names.get(name, name)
            shown = "" if default in (None, "") or isinstance(default, bool | Enum) else f", as in {theirs}: {default}"
            errors.append(f"{theirs} = {value!r:.60}: must be {allowed}{shown}")
    if errors:
        raise ConfigError("\n".join(errors))
    return found


@functools.cache
def _fields() -> dict[str, dataclasses.Field[Any]]:
    from transformers import TrainingArguments

    return {field.name: field for field in dataclasses.fields(TrainingArguments)}


def kinds_of(name: str, default: Any) -> tuple[type, ...]:
    """Return the types that an argument may have beside null, widest last; nothing if they are not known."""
    if name in LISTS:
        return ()
    if name in COUNTS or name == "max_steps":
        return (int,)
    for names, kind in ((SWITCHES, bool), (PLAIN_TEXTS, str), (LABELS, str), (NOT_NEGATIVE, float)):
        if name in names:
            return (kind,)
    if (field := _fields().get(name)) is not None:
        kinds = set(get_args(field.type) or (field.type,)) - {NoneType}
        if str in kinds and all(kind is str or (isinstance(kind, type) and issubclass(kind, Enum)) for kind in kinds):
            return (str,)
        return tuple(kinds) if kinds <= {int, float, bool} else ()
    return (type(default),) if isinstance(default, bool | int | float) else ()


def _read(text: str, name: str, kinds: Sequence[type]) -> Any:
    """Return the number or switch that a text is to TRL's parser, or the text."""
    if kinds == (str,) or name.rpartition("_")[2] in TEXTS:
        return text
    word = text.strip().lower()
    if word in YAML_1_1 and (kinds == (bool,) or word in ("true", "false")):
        return YAML_1_1[word]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


def _problem(name: str, value: Any, kinds: Sequence[type]) -> str:
    """Return what a value must be, if it is not that."""
    if name in NAMES:
        words = value if isinstance(value, list | tuple) else [value]
        return "" if all(isinstance(word, str) for word in words) else "a name, or a list of names"
    if name in ROWS and not isinstance(value, list | tuple):
        return "a list"
    if not kinds:
        return "a number that is finite" if isinstance(value, float) and math.isnan(value) else ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if bool in kinds and isinstance(value, bool):
        return ""
    if kinds == (bool,):
        return "true or false"
    if kinds == (str,):
        return "" if isinstance(value, str) else "a text"
    if not is_number or math.isnan(value):
        return "a number"
    if kinds == (int,) and not float(value).is_integer():
        return "a whole number"
    if name in COUNTS and value < 1:
        return "at least 1"
    return "at least 0" if name in NOT_NEGATIVE and value < 0 else ""
