"""Arguments of TRL's trainers and scripts, with TRL 1.16's defaults, as a configuration.

Also in this file: values of TRL's arguments: texts that are numbers or switches to its parser, and values of a wrong
type or range.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, get_args

from rlcore.errors import ConfigError
from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.convert_command import Recipe
from rlcore_tools.conversion.trl_data import convert_data, convert_trained_tokens
from rlcore_tools.conversion.trl_rules import (
    convert_batch,
    convert_distillation,
    convert_group,
    convert_group_dropout,
    convert_length,
    convert_model,
    convert_online,
    convert_reference_free,
    convert_rloo,
    convert_sampler,
    convert_surrogate,
    convert_teacher,
)
from rlcore_tools.synonyms import synonyms

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


def read_values(
    arguments: Mapping[str, object], defaults: Mapping[str, object], names: Mapping[str, str]
) -> dict[str, object]:
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


def kinds_of(name: str, default: object) -> tuple[type, ...]:
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


LOSSES = {"exo_pair": "exo", "nca_pair": "nca", "bco_pair": "bco", "sppo_hard": "sppo"}
_DATA = Path(__file__).with_suffix(".toml")
"""TRL's defaults that change what is learned, by trainer, and arguments that only one trainer has."""
DERIVED = ("gkd", "online_dpo", "distillation", "rloo", "kto", "cpo", "orpo")
"""Trainers whose configurations have arguments of other ones too, beside their own."""
OF_GKD = ("max_new_tokens", "max_length")
"""Arguments of GKDConfig that DistillationConfig, which names a teacher too, has not."""
LORA = {
    "lora_r": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "lora_target_modules": "target_modules",
    "lora_modules_to_save": "modules_to_save", "use_rslora": "use_rslora", "use_dora": "use_dora",
}  # fmt: skip


RENAMED = {
    "evaluation_strategy": "eval_strategy", "push_to_hub_model_id": "hub_model_id", "push_to_hub_token": "hub_token",
    "per_gpu_train_batch_size": "per_device_train_batch_size", "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "max_seq_length": "max_length", "use_liger": "use_liger_kernel", "preprocessing_num_workers": "dataset_num_proc",
    "base_model_revision": "model_revision", "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
}  # fmt: skip
"""Names of earlier versions of `transformers` and TRL, and of alignment-handbook, and TRL 1.16's."""
LOGGERS = {
    "wandb": {"wandb_project": "project", "wandb_entity": "entity", "wandb_run_group": "group"},
    "trackio": {"project": "project", "trackio_space_id": "space_id"},
    "tensorboard": {"logging_dir": "log_dir"},
}  # fmt: skip
"""Logger → its arguments, and options here."""


@functools.cache
def _data_of(table: str) -> dict[str, Any]:
    found: dict[str, object] = tomllib.loads(_DATA.read_text(encoding="utf-8"))[table]
    return found


def trainers() -> list[str]:
    """Return the trainers whose arguments can be converted."""
    return sorted(_data_of("trainers"))


def _renamed(arguments: Mapping[str, object], names: dict[str, str]) -> dict[str, object]:
    """Return the arguments with TRL 1.16's names, and note the file's; an earlier name beside the present one stays."""
    found = {}
    for name, value in arguments.items():
        new = RENAMED.get(name, name)
        new = name if new in arguments else new
        if new != name:
            names[new] = names.get(name, name)
        found[new] = value
    return found


def _start(conversion: Conversion, recipe: Recipe | None) -> None:
    """Set and report what no argument of TRL stands for in the recipe of another library, if there is one."""
    if recipe is None:
        return
    conversion.put_each(recipe.options)
    conversion.names |= recipe.names
    for name, value, reason in recipe.left:
        conversion.leave(name, value, reason)
    if recipe.defaults:
        conversion.notes.append(f"defaults of {recipe.library} are written for {', '.join(sorted(recipe.defaults))}")


def trainer_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the trainer that has these arguments; None if several have."""
    found = {trainer for name, trainer in _data_of("signs").items() if name in arguments}
    losses = arguments.get("loss_type") or []
    names = [str(loss) for loss in (losses if isinstance(losses, list) else [losses])]
    found |= {trainer for trainer, known in _data_of("losses").items() if any(name in known for name in names)}
    if "ppo" in found:
        found.discard("online_dpo")  # both name a reward model by its path
    if "dpo" in found:
        found.discard("orpo")  # older versions of DPOConfig have a padding_value too
    if "distillation" in found and ("sft" in found or any(name in arguments for name in OF_GKD)):
        found.add("gkd")  # whose configuration is that of sft with a teacher
    derived = next((each for each in DERIVED if each in found), None)  # which have the arguments of others too
    return derived or (found.pop() if len(found) == 1 else None)


def convert_trl(
    arguments: Mapping[str, Any],
    trainer: str,
    options: type,
    method: str = "",
    recipe: Recipe | None = None,
) -> Conversion:
    """Convert the arguments of one of TRL's trainers.

    Args:
        arguments: as in the file that the option --config of `trl` takes, or of `training_args.to_dict()`.
        trainer: name of the trainer here.
        options: class of its options.
        method: what TRL has another trainer for, and the trainer here options: `kto`, `cpo`, `orpo`,
            `rloo` and `distillation`.
        recipe: the recipe of another library that the arguments are from.
    """
    if method == "distill_prompts" and trainer_of(arguments) == "distillation":
        method = "distillation"
    conversion = Conversion(trainer, options)
    _start(conversion, recipe)
    defaults: dict[str, Any] = {**_data_of("defaults"), **_data_of("trainers").get(method or trainer, {})}
    arguments = _renamed(arguments, conversion.names)
    arguments = read_values(arguments, defaults, conversion.names)
    if method == "rloo":
        convert_rloo(conversion, arguments)
    own = _data_of("unused_by").get(method or trainer, {})
    given = {**defaults, **{name: value for name, value in arguments.items() if not _is_default(name, value, own)}}
    counted = {"num_train_epochs"} if {"max_steps", "total_episodes"} & set(arguments) else set[str]()
    if added := sorted(defaults.keys() - arguments.keys() - counted):
        conversion.notes.append(f"TRL's defaults are written for {', '.join(added)}")
    if not {"bf16", "fp16"} & set(arguments):
        conversion.notes.append("run.mixed_precision: TRL's default is bf16 on a GPU")
    if method in ("cpo", "orpo"):
        convert_reference_free(conversion, given, method)
    if method == "kto" and arguments.get("train_sampling_strategy", "sequential") == "sequential":
        conversion.notes.append("data.samples: are shuffled in each pass; TRL's KTO keeps their order by default")
    rules = (
        convert_batch,
        convert_length,
        _optimizer,
        convert_distillation if method == "distillation" else convert_teacher,
        convert_online,
        _method,
        _files,
        convert_data,
        _model,
        _adapter,
        convert_trained_tokens,
        convert_group,
        convert_group_dropout,
        convert_sampler,
        convert_model,
    )
    for rule in rules:
        rule(conversion, given)
    for name, value in given.items():
        synonym = synonyms("trl").get(name)
        if value is False and synonym is not None and not synonym.alternatives:  # where TRL's default is true
            conversion.leave(name, value, synonym.how)
        else:
            conversion.convert(synonym, name, value)
    conversion.check(arguments, "trl")
    return conversion


def _is_default(name: str, value: object, own: Mapping[str, object]) -> bool:
    """Return whether an argument without a counterpart here has its default, `own` being those of the trainer alone."""
    synonym = synonyms("trl").get(name)
    if synonym is None or (synonym.alternatives and name not in _data_of("unused")):
        return False
    from transformers import TrainingArguments

    fields = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    default = ({**fields, **_data_of("unused"), **own}).get(name)
    if isinstance(value, Mapping):  # TOML has no null
        value = {key: each for key, each in value.items() if each is not None}
    return value in (None, "", [], {}) or value == default or (value is False and default is not True)


def _optimizer(conversion: Conversion, given: dict[str, object]) -> None:
    conversion.put("trainer.optimizer.betas", [given.pop("adam_beta1"), given.pop("adam_beta2")])


def _method(conversion: Conversion, given: dict[str, Any]) -> None:
    loss = given.pop("loss_type", None)
    names = loss if isinstance(loss, list) else [loss]
    if conversion.has("trainer.norm"):
        convert_surrogate(conversion, given, loss)
    elif missing := [name for name in names if name in _data_of("no_losses")]:
        conversion.leave("loss_type", missing[0], _data_of("no_losses")[missing[0]])
    elif conversion.has("trainer.loss") and len(names) == 1 and names[0] is not None:
        conversion.put("trainer.loss", LOSSES.get(names[0], names[0]))
    elif conversion.has("trainer.loss") and names[0] is not None:
        weights = given.pop("loss_weights", None) or [1.0] * len(names)
        conversion.put("trainer.loss", dict(zip((LOSSES.get(n, n) for n in names), weights, strict=True)))
    elif loss not in (None, "nll", ["sigmoid"]):
        conversion.leave("loss_type", loss, "set trainer.loss by hand")
    if "sigmoid" in names and given.get("label_smoothing"):
        conversion.notes.append("trainer.label_smoothing: TRL ignores it under sigmoid; here it is that of cDPO")
    if not conversion.has("trainer.rollouts") and (length := given.pop("max_length", None)) is not None:
        path = "trainer.max_length" if conversion.has("trainer.max_length") else "data.max_sample_tokens"
        conversion.put(path, length)


def _files(conversion: Conversion, given: dict[str, Any]) -> None:
    if (folder := given.pop("output_dir", None)) is not None:
        path = PurePath(str(folder))
        conversion.put("run.root", str(path.parent))
        conversion.put("run.name", path.name)
        if given.get("run_name") in (folder, path.name):
            given.pop("run_name")
    _loggers(conversion, given)
    _hub(conversion, given)
    resume = given.get("resume_from_checkpoint")
    if isinstance(resume, str):
        conversion.put("run.resume", given.pop("resume_from_checkpoint"))
    processes = given.pop("processes")
    if (size := given.pop("per_device_eval_batch_size", None)) is not None:
        conversion.put("eval.batch_size", size * processes)


def _loggers(conversion: Conversion, given: dict[str, Any]) -> None:
    console, every = "console", given.pop("logging_steps", None)
    if every and every > 1:
        console = {"name": "console", "every": int(every)}  # type: ignore[assignment]
    elif every and every < 1:
        conversion.leave("logging_steps", every, "it is a share of all steps: set `every` of the logger console")
    others = given.pop("report_to", None) or []
    others = others if isinstance(others, list) else [others]
    loggers: list[Any] = [name for name in others if name in ("wandb", "tensorboard", "trackio", "mlflow")]
    for name in others:
        if name not in ("none", *loggers):
            conversion.leave(
                "report_to", name, "there is no such logger; `rlcore list-plugins` lists the installed ones"
            )
    for logger, names in LOGGERS.items():
        options = {ours: given.pop(name) for name, ours in names.items() if given.get(name) not in (None, "")}
        if logger in loggers and options:
            loggers[loggers.index(logger)] = {"name": logger, **options}
        elif options:
            theirs = {ours: name for name, ours in names.items()}
            for ours, value in options.items():
                conversion.leave(
                    theirs[ours], value, f"it belongs to the logger {logger}, which report_to does not name"
                )
    _name_runs(conversion, given, loggers)
    if loggers or console != "console":
        conversion.put("loggers", [console, *loggers])


def _name_runs(conversion: Conversion, given: dict[str, object], loggers: list[object]) -> None:
    """Convert the name of a run, which is that of its folder if there is no output_dir, else that in its loggers."""
    if given.get("run_name") is None or "name" not in conversion.values.get("run", {}):
        return
    name = given.pop("run_name")
    for i, logger in enumerate(loggers):
        options = logger if isinstance(logger, dict) else {"name": logger}
        if options["name"] in ("wandb", "trackio", "mlflow"):
            loggers[i] = {**options, "run_name": name}
    if not any(isinstance(logger, dict) and "run_name" in logger for logger in loggers):
        conversion.leave("run_name", name, "the run's folder has the name of output_dir")


def _hub(conversion: Conversion, given: dict[str, object]) -> None:
    """Convert the repository that a model is pushed to; without push_to_hub, hub_model_id does nothing in TRL."""
    pushes, name = given.pop("push_to_hub", None), given.pop("hub_model_id", None)
    if isinstance(pushes, str):
        conversion.put("run.push_to_hub", pushes)
    elif pushes and name is not None:
        conversion.put("run.push_to_hub", name)
    elif pushes:
        conversion.leave("push_to_hub", pushes, "set run.push_to_hub to the name of the repository, such as org/name")
    elif name is not None:
        conversion.leave("hub_model_id", name, "push_to_hub is not set, so that nothing is pushed")


def _model(conversion: Conversion, given: dict[str, object]) -> None:
    """Convert the arguments of the model's loader, its tokenizer and its chat template."""
    options = given.pop("model_init_kwargs", None)
    if isinstance(options, Mapping):
        for name, value in options.items():
            theirs = {"revision": "model_revision", "torch_dtype": "dtype"}.get(str(name), str(name))
            synonym = synonyms("trl").get(theirs)
            if synonym is not None and any(
                path.startswith("model.") for paths in synonym.alternatives for path in paths
            ):
                given.setdefault(theirs, value)
            elif value not in (None, False) and name != "use_cache":
                conversion.leave(f"model_init_kwargs.{name}", value, "the loader has no such option here")
    elif options is not None:
        conversion.leave("model_init_kwargs", options, "its keys are options of model: dtype, attention, revision")
    if given.pop("use_flash_attention_2", False) and given.get("attn_implementation") is None:
        given["attn_implementation"] = "flash_attention_2"
    if (path := given.get("chat_template_path")) is not None and not str(path).endswith(".jinja"):
        conversion.leave(
            "chat_template_path", given.pop("chat_template_path"), "it is no .jinja file; save the template of that "
            "tokenizer, tokenizer.chat_template, to one, and name it as model.tokenizer.chat_template",
        )  # fmt: skip
    template = given.get("chat_template")
    if isinstance(template, str) and "{" not in template and not template.endswith(".jinja"):
        how = "it is the name of a template, and no template; model.tokenizer.chat_template takes its text or a file"
        conversion.leave("chat_template", given.pop("chat_template"), how)


def _adapter(conversion: Conversion, given: dict[str, object]) -> None:
    options = {ours: given.pop(name) for name, ours in LORA.items() if name in given}
    if given.get("lora_task_type") in ("SEQ_CLS", "TOKEN_CLS"):  # of reward models, which are built as such
        given.pop("lora_task_type")
    if given.pop("use_peft", False):
        used = {name: value for name, value in options.items() if value is not None and value is not False}
        conversion.put("model.peft", {"type": "lora", "r": 16, "lora_alpha": 32, "lora_dropout": 0.05, **used})
    else:
        for name, value in options.items():
            conversion.leave(f"an option of LoRA, {name}", value, "use_peft is not set")
    for name in ("load_in_4bit", "load_in_8bit"):
        if not given.get(name):
            given.pop(name, None)
