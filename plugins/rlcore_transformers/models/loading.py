"""Load a language model or critic from a hub id, a folder, a GGUF file or a configuration, or take one in memory.

Also in this file: the device of a model that is not the policy, such as a reward model or a teacher; kernels of
`liger-kernel`, which run on GPUs through Triton.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlcore.checkpoints.manifest import verify_model
from rlcore.config import ConfigOnly, evolve
from rlcore.config.yaml_files import existing_path
from rlcore.errors import ConfigError, ModelError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore.sharding import PARTS
from rlcore_transformers.models import freezing
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.gguf import SUFFIX, check_gguf, find_gguf, read_config, read_model
from rlcore_transformers.models.hub import (
    DESCRIBED,
    WEIGHTS,
    base_of,
    check_reach,
    first_line,
    is_hub_id,
    quiet_transformers,
)
from rlcore_transformers.models.input_layout import DECODER_ONLY, Kind, check_kind, declared
from rlcore_transformers.models.peft.inject import activate, attach, unwrap
from rlcore_transformers.models.save_load import HEADS_FILE, quantization_options
from rlcore_transformers.models.speed.activations import fuse_activations

if TYPE_CHECKING:
    from rlcore_transformers.models.model_options import LanguageModelConfig, TransformerConfig


log = get_logger("models")

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
_OF_BIN = (TypeError, AttributeError, EOFError, IndexError, pickle.UnpicklingError)
"""Errors of files that `torch.save` wrote, and that contain something else than tensors by name."""
ALIGNMENT = 64
"""Bytes to whose multiples the addresses of weights are aligned, as those of every tensor that torch allocates are."""
ModelSpec = str | os.PathLike[str] | PretrainedConfig | PreTrainedModel


def load_model(spec: ModelSpec, config: LanguageModelConfig, kind: Kind = DECODER_ONLY) -> PreTrainedModel:
    """Load a language model and put it in evaluation mode; a model in memory is changed in place and returned.

    Raises:
        ModelError: the folder or hub id cannot be loaded, or the model is not a language model of this kind.
    """
    # This check precedes loading, because transformers would load some families partly, as a model of the wrong kind.
    if (declared_config := declared(spec, config.revision)) is not None:
        check_kind(declared_config, kind, spec if isinstance(spec, str) else type(spec).__name__)
    spec = unwrap(spec)
    quantization = quantization_options(spec, config)
    if isinstance(spec, PreTrainedModel):
        model = spec
        if config.attention is not None:
            set_attention(model, config.attention)
    elif isinstance(spec, PretrainedConfig):
        model = _from_config(spec, config, kind)
    elif isinstance(spec, (str, os.PathLike)):
        name, base = os.fspath(spec), base_of(os.fspath(spec))
        if base and isinstance(name, ConfigOnly):
            base = ConfigOnly(base)
        as_in_files = None if base else _as_in_files(kind, name, config)
        model = as_in_files or from_pretrained(kind.loader, base or name, config, **quantization)
        attach(model, spec) if base else activate(model)
    else:
        raise ModelError(
            f"model = {spec!r:.80}: give a hub id, a folder, a GGUF file, a PretrainedConfig or a PreTrainedModel"
        )
    check_kind(model.config, kind, type(model).__name__)
    if model.get_output_embeddings() is None:
        suffix = "ForCausalLM" if kind is DECODER_ONLY else "ForConditionalGeneration"
        raise ModelError(f"{type(model).__name__} has no language-model head: load it as ...{suffix}")
    _make_savable(model)
    if freezing.MARK not in vars(model):  # whose weights are in their files until they are divided
        align(model)
    if config.speed.fused_activations:
        fuse_activations(model)
    model.eval()
    return model


def _as_in_files(kind: Kind, name: str, config: LanguageModelConfig) -> PreTrainedModel | None:
    """Return a model that the run divides, in the dtype of its files; None if it is to be loaded as usual."""
    has_heads = existing_path(Path(name, HEADS_FILE)) is not None
    options = freezing.options_in_files(name, config, has_heads=has_heads)
    if options is None:
        return None
    model: PreTrainedModel = from_pretrained(kind.loader, name, options)
    return model if freezing.mark(model, config.dtype, adapted=config.peft is not None) else None


def set_attention(model: PreTrainedModel, attention: str) -> None:
    """Switch a loaded model to another attention implementation.

    Raises:
        ModelError: the model does not support it.
    """
    try:
        with quiet_transformers():
            model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise ModelError(
            f"model.attention = {attention!r}: {type(model).__name__} cannot be switched to it: {first_line(error)}"
        ) from error


def _from_config(spec: PretrainedConfig, config: LanguageModelConfig, kind: Kind) -> PreTrainedModel:
    """Build a model with random weights from a copy of its configuration.

    Raises:
        ModelError: the configuration does not fit this kind of model or the options.
    """
    try:
        with quiet_transformers():
            model: PreTrainedModel = kind.loader.from_config(
                copy.deepcopy(spec), trust_remote_code=config.trust_remote_code, **build_options(config)
            )
    except (ValueError, ImportError) as error:
        raise ModelError(f"model = {type(spec).__name__}: cannot be built: {first_line(error)}") from error
    return model


def _make_savable(model: PreTrainedModel) -> None:
    """Make the generation configuration valid for saving, so that an invalid one fails before training, not after it.

    transformers loads sampling options beside `do_sample=False`, which many models are published with, but refuses to
    save them; `do_sample` is then set to True.

    Raises:
        ModelError: transformers refuses the configuration for another reason.
    """
    generation: GenerationConfig | None = model.generation_config
    if generation is None:
        return
    try:
        with quiet_transformers():
            generation.validate(strict=True)
        return
    except ValueError:
        generation.do_sample = True
    try:
        with quiet_transformers():
            generation.validate(strict=True)
    except ValueError as error:
        raise ModelError(f"model.generation_config cannot be saved: {error}") from error


def build_options(config: TransformerConfig) -> dict[str, object]:
    """Return the arguments for `from_config` and `from_pretrained`; transformers chooses those that are left out."""
    options: dict[str, object] = {}
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    return options


def from_pretrained(kind: Any, name: str, config: TransformerConfig, *, what: str = "model", **options: Any) -> Any:
    """Call `kind.from_pretrained` with the folder or GGUF file `name` if it exists, else with the hub id `name`.

    Args:
        kind: auto class of `transformers`.
        name: folder, GGUF file or hub id; for a `ConfigOnly`, the model is built from its configuration with random
            weights.
        config: options of the architecture.
        what: first word of error messages.
        options: further arguments of the auto class.

    Raises:
        ModelError: the model or configuration cannot be loaded.
        CheckpointError: the weights in a folder are not those that its manifest lists.
    """
    is_config_only = isinstance(name, ConfigOnly)
    folder, gguf = _find(name, what, is_config=kind is AutoConfig)
    check_reach(name, config.revision, DESCRIBED if is_config_only else WEIGHTS, what=what)
    if kind is not AutoConfig:
        options |= build_options(config)
        if is_config_only:
            model_config: PretrainedConfig = from_pretrained(AutoConfig, name, config, what=what)
            return kind.from_config(model_config, **({"dtype": model_config.dtype} | options))
        if folder is not None and gguf is None:
            verify_model(folder)
        options["output_loading_info"] = True
    hub = {"revision": config.revision or "main", "trust_remote_code": config.trust_remote_code}
    try:
        with quiet_transformers():
            if gguf is not None:
                loaded = read_config(gguf) if kind is AutoConfig else read_model(kind, gguf, name, options)
            else:
                loaded = kind.from_pretrained(str(folder or name), **hub, **options)
    except OSError as error:  # a missing file or the network: the traceback adds nothing to the message
        raise ModelError(f"{what} = {name!r}: cannot be loaded: {first_line(error)}") from None
    except (ValueError, KeyError, RuntimeError, ImportError, SafetensorError, *_OF_BIN) as error:
        raise ModelError(f"{what} = {name!r}: cannot be loaded: {_reason(error, folder)}") from error
    if kind is AutoConfig:
        return loaded
    model, missing = loaded
    return _complete(model, missing, f"{what} = {name!r}")


def _find(name: str, what: str, *, is_config: bool) -> tuple[Path | None, Path | None]:
    """Return the folder or file of a name, None for a hub id; and the GGUF file in it, or None.

    Raises:
        ModelError: there is neither, or the weights that are needed are in a form that cannot be loaded.
    """
    folder = existing_path(name)
    if folder is None and (not is_hub_id(name) or name.endswith(SUFFIX)):
        place = "" if str(name).startswith(("/", "~")) else f" under {Path.cwd()}"
        form = "file" if name.endswith(SUFFIX) else "folder"
        raise ModelError(
            f"{what} = {shorten(str(name), 200)}: there is no such {form}{place}, and no model on the hub can have "
            "this name; give a folder, a GGUF file or a hub id"
        )
    gguf = find_gguf(name)
    if gguf is not None:
        check_gguf(gguf, f"{what} = {name!r}")
    if folder is not None and not is_config and (folder / PARTS).is_dir():
        raise ModelError(
            f"{what} = {name!r}: its weights are in {PARTS}, where checkpoint.format=dcp writes them: rlcore export "
            f"{folder.parent} --out FOLDER writes FOLDER/model, which can be loaded"
        )
    return folder, gguf


def _reason(error: Exception, folder: Path | None) -> str:
    """Return why a model cannot be loaded; of a file that `torch.save` wrote, what it must contain."""
    files = [] if folder is None or any(folder.glob("*.safetensors")) else sorted(folder.glob("*.bin"))
    if not files:
        return first_line(error)
    found = "" if isinstance(error, (pickle.UnpicklingError, KeyError)) else f" ({type(error).__name__}: {error})"
    return (
        f"{files[0].name} is not a mapping from names to tensors that torch.save wrote{found}; other objects are not "
        "read from pickles, because these may run code. Save the model with save_pretrained"
    )


def _complete(model: Any, info: Mapping[str, Any], what: str) -> Any:
    """Return a loaded model, with a warning if some of its weights were in no file.

    Raises:
        ModelError: none of its weights was in a file.
    """
    missing = set(info["missing_keys"])
    names = {name for name, _ in model.named_parameters()}
    if names and names <= missing:
        raise ModelError(
            f"{what}: its files contain none of the weights of a {type(model).__name__}, such as {min(names)}"
        )
    if missing and not type(model).__name__.endswith(CLASSIFIERS):  # whose heads are new
        log.warning("weights are in no file of the model and begin random", model=what, weights=sorted(missing)[:5])
    return model


def align(model: nn.Module) -> None:
    """Move weights that lie at other addresses than torch allocates into memory of their own, in place.

    `from_pretrained` leaves weights in the mapped file, wherever they lie in it, and kernels that process several
    numbers at once round sums otherwise there. Tensors that are the same memory are the same memory afterwards.
    """
    moved: dict[tuple[object, ...], Tensor] = {}
    for each in (*model.parameters(), *model.buffers()):
        if each.device.type == "cpu" and each.layout is torch.strided and each.data_ptr() % ALIGNMENT:
            place = (each.data_ptr(), each.shape, each.stride(), each.dtype)
            if place not in moved:
                moved[place] = each.data.clone()
            each.data = moved[place]


def load_critic(name: str, config: LanguageModelConfig, kind: Kind = DECODER_ONLY) -> PreTrainedModel:
    """Load a critic from a hub id or folder and put it in evaluation mode.

    A decoder-only sequence classifier is loaded with its head, any other model as a language model.

    Raises:
        ModelError: the critic cannot be loaded, is not of this kind, or is a classifier of several labels.
    """
    config = evolve(config, revision=None)  # the option names a revision of the policy's repository, not the critic's
    critic_config: PretrainedConfig = from_pretrained(AutoConfig, name, config, what="critic")
    check_kind(critic_config, kind, f"critic = {name!r}")
    is_classifier = any(each.endswith("ForSequenceClassification") for each in critic_config.architectures or ())
    if is_classifier and kind is DECODER_ONLY:  # an encoder-decoder's scores whole sequences, not tokens
        if critic_config.num_labels != 1:
            raise ModelError(
                f"critic = {name!r}: it scores {critic_config.num_labels} labels, and a value is one number; "
                "give a reward model (num_labels=1) or a language model"
            )
        loader: Any = AutoModelForSequenceClassification
    else:
        loader = kind.loader
    critic: PreTrainedModel = from_pretrained(loader, name, config, what="critic")
    align(critic)
    if config.speed.fused_activations:
        fuse_activations(critic)
    critic.eval()
    return critic


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a sequence: the tokenizer's EOS, then those of the generation configuration."""
    generation_ids = getattr(model.generation_config, "eos_token_id", None)
    if not isinstance(generation_ids, (list, tuple)):
        generation_ids = [generation_ids]
    vocabulary = vocabulary_size(model)
    ids = [tokenizer.eos_token_id, *generation_ids]
    return tuple(dict.fromkeys(int(i) for i in ids if i is not None and 0 <= int(i) < vocabulary))


def context_length(model: PreTrainedModel) -> int:
    """Return the model's context length in tokens; 0 if its configuration sets no limit."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 0)


def device_named(name: str, option: str) -> torch.device:
    """Return the device of a name; `auto` is the accelerator of this process, or the CPU where runs use it too.

    Args:
        name: a device of torch, or `auto`.
        option: the option that holds it, for the error.

    Raises:
        ConfigError: it is no device.
    """
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise ConfigError(f"{option} = {name!r}: is no device of torch; give cpu or cuda:0") from error
    if os.environ.get("ACCELERATE_USE_CPU") or not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    if kind is None or kind.type == "mps":  # on which no run is either (docs/gpus.md)
        return torch.device("cpu")
    return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")))


LEFT_OUT = {"fused_linear_cross_entropy": False, "cross_entropy": False, "rope": False}
"""Kernels that are not used: losses are computed from hidden states (`model.speed.fused_logprobs`), and rotary
embeddings would be replaced for all models of the family, also for those on the CPU."""


def use_liger(model: PreTrainedModel) -> None:
    """Replace layers of `model` by Liger's kernels, in place.

    Raises:
        ConfigError: the machine or the model has none.
    """
    missing = [name for name in ("triton", "liger_kernel") if find_spec(name) is None]
    if not torch.cuda.is_available():
        reason = "these kernels run on GPUs through Triton, and this machine has no GPU that torch can use"
    elif missing:
        reason = f"{' and '.join(missing)} is not installed: pip install liger-kernel"
    else:
        reason = _apply(model)
    if reason:
        raise ConfigError(f"model.liger_kernel = true: {reason}; or leave it out")


def _apply(model: PreTrainedModel) -> str:
    """Replace the layers; return why that is not possible."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN  # type: ignore[import-not-found]
    from transformers.integrations.liger import apply_liger_kernel

    kind = str(model.config.model_type)
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        return f"liger-kernel has no kernels for {kind}"
    try:
        with quiet_transformers():
            apply_liger_kernel(model, LEFT_OUT)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"liger-kernel refuses {type(model).__name__}: {first_line(error)}"
    return ""
