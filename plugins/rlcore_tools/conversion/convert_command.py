"""The command `rlcore convert`: the configuration of a run of another library as a configuration file of rlcore.

Also in this file: configurations of axolotl and LLaMA-Factory as arguments of TRL, on whose trainers these libraries
are built.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import ConfigError

if TYPE_CHECKING:
    from rlcore_tools.conversion.conversion import Conversion

_TABLES = Path(__file__).with_name("recipes.toml")
NAMES = {"axolotl": "axolotl", "llama_factory": "LLaMA-Factory"}
SIGNS = {"axolotl": ("base_model",), "llama_factory": ("stage", "finetuning_type")}
"""Keys that only this library has."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "axolotl": {
        "max_length": 512, "per_device_train_batch_size": 1, "num_train_epochs": 1.0, "lr_scheduler_type": "cosine",
        "lora_dropout": 0.0,
    },
    "llama_factory": {"max_length": 2048, "learning_rate": 5e-5, "lora_r": 8, "lora_dropout": 0.0},
}  # fmt: skip
"""Defaults that differ from TRL's."""
METHODS = {
    "axolotl": {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo", "simpo": "cpo", "grpo": "grpo"},
    "llama_factory": {"pt": "sft", "sft": "sft", "rm": "reward", "ppo": "ppo", "dpo": "dpo", "kto": "kto"},
}
"""Values of `rl` and of `stage`, and the trainer of TRL."""
ATTENTION = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
FLASH = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "disabled": "eager", "auto": None}
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@attrs.define
class Recipe:
    """A recipe as TRL's arguments.

    Attributes:
        library: its name.
        trainer: the trainer of TRL.
        arguments: TRL's arguments.
        options: options here that no argument of TRL sets.
        left: key, value and reason of what has no counterpart.
        defaults: arguments that have the library's default.
        names: the key in the file of each argument that TRL calls otherwise.
    """

    library: str
    trainer: str
    arguments: dict[str, Any] = attrs.field(factory=dict)
    options: dict[str, Any] = attrs.field(factory=dict)
    left: list[tuple[str, Any, str]] = attrs.field(factory=list)
    defaults: list[str] = attrs.field(factory=list)
    names: dict[str, str] = attrs.field(factory=dict)


@functools.cache
def _table(library: str) -> dict[str, str]:
    found: dict[str, str] = tomllib.loads(_TABLES.read_text(encoding="utf-8"))[library]
    return found


def library_of(values: Mapping[str, object]) -> str | None:
    """Return `axolotl` or `llama_factory` if a file has keys of that library alone."""
    return next((name for name, signs in SIGNS.items() if any(sign in values for sign in signs)), None)


def read_recipe(values: Mapping[str, object], library: str) -> Recipe:
    """Return TRL's arguments for a recipe.

    Raises:
        ConfigError: a value that selects the trainer or the adapter is unknown.
    """
    recipe = Recipe(NAMES[library], "sft")
    rest = {name: value for name, value in values.items() if value is not None and value != ""}
    (_read_axolotl if library == "axolotl" else _read_factory)(recipe, rest)
    for name, value in rest.items():
        theirs = _table(library).get(name, name)
        if theirs.startswith("-"):
            if value not in (False, [], {}):
                recipe.left.append((name, value, theirs.removeprefix("-")))
        elif theirs in recipe.arguments:
            recipe.left.append((name, value, f"{theirs} has another value in this file"))
        else:
            recipe.arguments[theirs] = value
            recipe.names |= {theirs: name} if theirs != name else {}
    uses_adapter = recipe.arguments.get("use_peft")
    for name, value in DEFAULTS[library].items():
        if name not in recipe.arguments and (uses_adapter or not name.startswith("lora")):
            recipe.arguments[name] = value
            recipe.defaults.append(name)
    if recipe.trainer == "sft":  # answers alone are trained on
        recipe.arguments.setdefault("assistant_only_loss", True)
    return recipe


def _chosen(library: str, name: str, value: object) -> str:
    known = METHODS[library]
    if value not in known:
        raise ConfigError(f"{name} = {value!r:.60}: must be one of {', '.join(known)}, which have a trainer here")
    return known[value]


def _read_axolotl(recipe: Recipe, rest: dict[str, object]) -> None:
    """Take what means something else than one argument of TRL from the rest of an axolotl file."""
    given = recipe.arguments
    if (method := rest.pop("rl", None)) is not None:
        recipe.trainer = _chosen("axolotl", "rl", method)
        given |= {"loss_type": method} if method in ("ipo", "simpo") else {}
    elif rest.pop("reward_model", False):
        recipe.trainer = "reward"
    options = rest.pop("trl", {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"trl = {options!r:.60}: must be a mapping of TRL's arguments")
    given |= options
    _read_adapter(recipe, rest)
    if rest.get("bf16") in ("auto", "full"):
        rest["bf16"] = True
    signs = {"wandb_project": "wandb", "use_tensorboard": "tensorboard"}
    given["report_to"] = [logger for sign, logger in signs.items() if rest.get(sign)] or ["none"]
    for name in ("use_tensorboard", "use_wandb"):
        rest.pop(name, None)
    _read_tokenizer(recipe, rest)
    kind = "prompts" if recipe.trainer == "grpo" else "samples"
    for path, name in ((f"data.{kind}", "datasets"), (f"data.eval_{kind}", "test_datasets")):
        if (entries := rest.pop(name, None)) is not None:
            sources = _sources(recipe, name, entries)
            recipe.options[path] = [{"path": source} for source in sources] if len(sources) > 1 else sources[0]


def _read_adapter(recipe: Recipe, rest: dict[str, object]) -> None:
    given, adapter = recipe.arguments, rest.pop("adapter", None)
    if adapter not in (None, "lora", "qlora"):
        raise ConfigError(f"adapter = {adapter!r:.60}: must be lora, qlora or nothing; model.peft takes others")
    if adapter is not None:
        given["use_peft"] = True
    if adapter == "qlora":
        given["load_in_4bit"] = rest.pop("load_in_4bit", True)
    if rest.pop("lora_target_linear", False):
        given["lora_target_modules"] = "all-linear"
    for name, implementation in ATTENTION.items():
        if rest.pop(name, False):
            given["attn_implementation"] = implementation


def _read_tokenizer(recipe: Recipe, rest: dict[str, object]) -> None:
    template, text = rest.pop("chat_template", None), rest.pop("chat_template_jinja", None)
    if text is not None or template not in (None, "tokenizer_default"):
        recipe.arguments["chat_template"] = template if text is None else text
    special = rest.pop("special_tokens", {})
    if not isinstance(special, Mapping):
        raise ConfigError(f"special_tokens = {special!r:.60}: must be a mapping from names to tokens")
    for name, token in special.items():
        if name in TOKENS:
            recipe.options[f"model.tokenizer.{name}"] = token
        elif token is not None:
            recipe.left.append((f"special_tokens.{name}", token, "model.tokenizer has no such token"))
    if (tokens := rest.pop("tokens", None)) is not None:
        recipe.options["model.tokenizer.extra_special_tokens"] = tokens


def _sources(recipe: Recipe, name: str, entries: object) -> list[Any]:
    """Return the sources of a list of data sets; rows are read by their keys here, whatever their `type` there."""
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(f"{name} = {entries!r:.60}: must be a list of mappings with a path")
    sources: list[object] = []
    for i, entry in enumerate(entries):
        path, files, subset = entry.get("path"), entry.get("data_files"), entry.get("name")
        if not isinstance(path, str):
            raise ConfigError(f"{name}[{i}].path = {path!r:.60}: must be a text")
        is_file = entry.get("ds_type") is not None or Path(path).suffix in (".json", ".jsonl", ".csv", ".parquet")
        split = None if is_file else entry.get("split")
        middle = f":{subset}" if subset else ""
        sources.append(files or (f"{path}{middle}:{split or 'train'}" if split or middle else path))
        used = ("path", "name", "split", "data_files", "ds_type")
        for key, value in entry.items():
            if key not in used and value not in (None, False, ""):
                recipe.left.append((f"{name}[{i}].{key}", value, "rows are read by their keys; data.columns renames"))
    return sources


def _read_factory(recipe: Recipe, rest: dict[str, Any]) -> None:
    """Take what means something else than one argument of TRL from the rest of a file of LLaMA-Factory."""
    given = recipe.arguments
    recipe.trainer = _chosen("llama_factory", "stage", rest.pop("stage", "sft"))
    if recipe.trainer == "dpo" and rest.get("pref_loss") in ("orpo", "simpo"):
        recipe.trainer = {"orpo": "orpo", "simpo": "cpo"}[rest["pref_loss"]]
        if rest["pref_loss"] == "orpo":
            rest.pop("pref_loss")
        else:
            given["cpo_alpha"] = rest.pop("pref_ftx", 0.0)
    _read_tuning(recipe, rest)
    bits = rest.pop("quantization_bit", None)
    if bits not in (None, 4, 8):
        raise ConfigError(f"quantization_bit = {bits!r:.60}: must be 4 or 8")
    if bits is not None:
        given[f"load_in_{bits}bit"] = True
    if (flash := rest.pop("flash_attn", "auto")) not in FLASH:
        raise ConfigError(f"flash_attn = {flash!r:.60}: must be one of {', '.join(FLASH)}")
    given |= {} if FLASH[flash] is None else {"attn_implementation": FLASH[flash]}
    if isinstance(thinks := rest.pop("enable_thinking", None), bool):
        given["chat_template_kwargs"] = {"enable_thinking": thinks}
    rest.pop("do_train", None)


def _read_tuning(recipe: Recipe, rest: dict[str, Any]) -> None:
    """Convert which weights train: an adapter's by default, all, or those of the top blocks."""
    given, kind = recipe.arguments, rest.pop("finetuning_type", "lora")
    if kind not in ("lora", "full", "freeze"):
        raise ConfigError(f"finetuning_type = {kind!r:.60}: must be lora, full or freeze; model.peft takes others")
    if kind == "lora":
        target = rest.pop("lora_target", "all")
        words = [word.strip() for word in target.split(",")] if isinstance(target, str) else target
        rank = rest.get("lora_rank", DEFAULTS["llama_factory"]["lora_r"])
        given |= {"use_peft": True, "lora_target_modules": "all-linear" if words == ["all"] else words}
        given["lora_alpha"] = rest.pop("lora_alpha", 2 * rank)
    elif kind == "freeze":
        recipe.options["model.unfrozen_layers"] = rest.pop("freeze_trainable_layers", 2)


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore convert` to its parser, and return the function that runs it."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML of trlX, a sweep of it too, arguments of TRL, or a recipe"
    )
    parser.add_argument("--trainer", help="trainer of a sweep or of TRL's arguments; needed if they fit several")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="processes that the file was written for, by which its batch sizes "
        "are multiplied; default: that of the file, else 1",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE.yaml", help="file to write; default: standard output")
    return partial(_convert, parser)


def _convert(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore.errors import ConfigError
    from rlcore_tools.conversion.conversion import one_line

    if arguments.processes is not None and arguments.processes < 1:
        parser.error(f"--processes {arguments.processes}: must be at least 1")
    repeats: list[str] = []
    values = _read(arguments.file, repeats)
    try:
        conversion = _conversion(parser, values, arguments)
        conversion.notes += [f"{name}: the file has this key twice, with the same value" for name in repeats]
        text = conversion.as_yaml(arguments.file.name)
    except ConfigError as error:
        lines = [line.removeprefix(f"{arguments.file}: ") for line in str(error).splitlines()]
        raise ConfigError("\n".join(f"{arguments.file}: {line}" for line in lines)) from error
    except (TypeError, ValueError, AttributeError) as error:  # text where a number is expected, for example
        raise ConfigError(f"{arguments.file}: a value has another type than that library's: {error}") from error
    if arguments.out is None:
        print(text, end="")
    else:
        _save(text, arguments.out)
    for title, lines in (("not converted", conversion.left), ("check", conversion.notes)):
        for line in lines:
            print(f"{title}: {one_line(line)}", file=sys.stderr)
    return 0


def _conversion(
    parser: argparse.ArgumentParser, values: dict[str, object], arguments: argparse.Namespace
) -> Conversion:
    """Convert the values of a file as those of the library and the trainer that they, or the command, name."""
    from rlcore.errors import ConfigError
    from rlcore.plugins.registry import all_registries
    from rlcore_tools.conversion import trl_arguments, trlx_config
    from rlcore_tools.conversion import trlx_config as trlx_sweep
    from rlcore_tools.synonyms import component_names, synonyms

    is_trlx = isinstance(values.get("train"), dict) and isinstance(values.get("method"), dict)
    is_sweep = trlx_sweep.is_sweep(values)
    library = trlx_config if is_trlx or is_sweep else trl_arguments
    other = None if library is trlx_config else library_of(values)
    recipe = read_recipe(values, other) if other is not None else None
    is_trl = library is trl_arguments and recipe is None
    keys = ", ".join(map(repr, list(values)[:5]))
    if values and is_trl and not any(name in synonyms("trl") for name in values):
        raise ConfigError(
            f"none of its keys ({keys}) is an argument of TRL; read are files of TRL, "
            "open-r1, alignment-handbook, axolotl, LLaMA-Factory and trlX"
        )
    name = arguments.trainer or (recipe.trainer if recipe is not None else library.trainer_of(values))
    if name is None:
        parser.error(
            f"{arguments.file} fits several trainers: name one with --trainer ({', '.join(library.trainers())})"
        )
    known = {each.replace("_", ""): each for each in library.trainers()}
    short = known.get(name.lower().replace("_", "").removesuffix("trainer"), name)  # such as OnlineDPOTrainer
    method = component_names("trainers").get(short) if short in library.trainers() else None
    component = all_registries().trainers.get(short if method is None else method.ours)
    options = component.config_class()
    if options is None:
        raise ConfigError(f"--trainer {name}: it has no options to convert to")
    if is_sweep:
        return trlx_sweep.convert_sweep(values, component.name, options)
    if is_trlx:
        return trlx_config.convert_trlx(values, component.name, options, arguments.processes or 1)
    chosen = {} if arguments.processes is None else {"num_processes": arguments.processes}
    given = {**(values if recipe is None else recipe.arguments), **chosen}
    conversion = trl_arguments.convert_trl(given, component.name, options, method=short, recipe=recipe)
    whose = "TRL" if recipe is None else recipe.library
    if arguments.trainer is None:
        conversion.notes.insert(
            0, f"trainer.name: the arguments are read as those of {whose}'s {name}; --trainer names another"
        )
    return conversion


def _save(text: str, out: Path) -> None:
    """Write the file, which was read and compared before, at once: an existing one is whole until then."""
    from rlcore.errors import ConfigError

    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error


def _read(file: Path, repeats: list[str]) -> dict[str, Any]:
    from rlcore.config import load_yaml
    from rlcore.errors import ConfigError

    if file.suffix == ".py":
        raise ConfigError(
            f"{file}: is a script, and arguments are read from a YAML or JSON file. TRL writes one: "
            "pathlib.Path('args.json').write_text(trainer.args.to_json_string())"
        )
    values: dict[str, Any] = _join_pairs(load_yaml(file, repeats=repeats), file)
    return values


def _join_pairs(value: object, file: Path) -> Any:
    """Return a value with its texts joined where JSON escapes a character, such as an emoji, as two surrogates."""
    from rlcore.errors import ConfigError

    if isinstance(value, dict):
        return {_join_pairs(key, file): _join_pairs(part, file) for key, part in value.items()}
    if isinstance(value, list):
        return [_join_pairs(part, file) for part in value]
    if not isinstance(value, str) or value.isascii():
        return value
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: {value!r:.60}: has half of a surrogate pair, which is no text") from error
