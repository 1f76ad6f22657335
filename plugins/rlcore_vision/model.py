"""The architecture `vision_language`: any `AutoModelForImageTextToText` as a policy that sees images.

Also in this file: the kind of models that read texts and images, and which models are of this kind; the policy that
sees: one of rlcore-transformers that keeps small copies of the images of its run's completions; small copies of the
images that prompts of completions show, in the run's folder, for its report.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from rlcore.errors import DataError, ModelError
from rlcore.logging import get_logger
from rlcore.ops import eval_mode
from rlcore.protocols import HeadBuilder
from rlcore.types import Trajectories
from rlcore_transformers.models import loading
from rlcore_transformers.models.freezing import FROZEN
from rlcore_transformers.models.input_layout import FURTHER, Kind, declared
from rlcore_transformers.models.peft.adapters import find_adapters, keep_reference
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.policy_parts import add_heads, check_vocabulary, make_value, prepare
from rlcore_transformers.models.save_load import starting_point
from rlcore_transformers.models.speed import SpeedReport
from rlcore_transformers.models.tokenizers import carry_special_tokens
from rlcore_vision.image_rows import MARK
from rlcore_vision.image_store import FIRST, STORES, ImageStore
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.seeing import SeeingLayout, let_see, require_own_reading, require_same_images
from rlcore_vision.tokenizer import Seeing, TextsOnly, read_processor

if TYPE_CHECKING:
    from rlcore.protocols import RunView

FOLDER = "thumbnails"
"""Folder in the run's folder; a file is called as its image in prompts: `<image:4f0c21a9>` is 4f0c21a9.png."""
SIDE = 96
MAX_BYTES = 2_000_000
"""Bytes of all files of a run; images beyond them are named only."""
MAX_ROWS = 64
"""Rows of a batch of rollouts whose images are copied; a report shows as many."""
TAIL = 2**20
"""Bytes at the end of completions.jsonl that are searched for images."""


def images_of(batch: Trajectories) -> list[int]:
    """Return the numbers of the images of the first rows of a batch."""
    tokens = batch.tokens[:MAX_ROWS]
    found: list[int] = tokens[tokens >= FIRST].unique().tolist()
    return found


def copy_images(run_dir: Path, numbers: Iterable[int]) -> None:
    """Copy images, given by their numbers."""
    _copy(run_dir / FOLDER, dict.fromkeys(numbers))


def copy_of_completions(run_dir: Path) -> None:
    """Copy the images of the last completions of evaluations."""
    path = run_dir / "completions.jsonl"
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        text = file.read().decode("utf-8", errors="replace")
    _copy(run_dir / FOLDER, (int(digits, 16) for digits in dict.fromkeys(MARK.findall(text))))


def _copy(folder: Path, tokens: Iterable[int]) -> None:
    room = MAX_BYTES - sum(file.stat().st_size for file in folder.glob("*.png"))
    for token in tokens:
        file = folder / f"{token:08x}.png"
        content = b"" if file.exists() else _thumbnail(token)
        if len(content) > room:
            return
        if content:
            folder.mkdir(exist_ok=True)
            file.write_bytes(content)
            room -= len(content)


def _thumbnail(token: int) -> bytes:
    """Return an image as a small PNG; nothing if it cannot be opened any more, or would have to be downloaded."""
    store = next((each for each in STORES if token in each), None)
    if store is None or str(store[token].source).startswith(("http://", "https://")):
        return b""
    try:
        image = store.open(token)
    except DataError:
        return b""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class SeeingPolicy(ModelPolicy):
    """A policy whose prompts may show images, of which the run's report shows small copies."""

    def on_rollout(self, run: RunView, batch: Trajectories) -> None:
        """Copy the images of rollouts, small, into the run's folder; collective, as each rank may have its own rows."""
        images = run.ranks.gather_to_main(images_of(batch))
        if run.ranks.is_main:
            copy_images(run.dir, images)

    def on_evaluate(self, run: RunView) -> None:
        """Copy the images of completions, small, into the run's folder."""
        if run.ranks.is_main:
            copy_of_completions(run.dir)


VISION_LANGUAGE = Kind("vision_language", "vision-language", "qwen2_vl or llava", AutoModelForImageTextToText)


def sees(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is that of a decoder that reads texts and images."""
    is_decoder = not getattr(config, "is_encoder_decoder", False)
    has_parts = hasattr(config, "vision_config") and hasattr(config, "text_config")
    return is_decoder and has_parts and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


FURTHER[VISION_LANGUAGE] = sees


def fits_vision_language(spec: object, revision: str | None) -> int:
    """Return 3 if a model reads texts and images, otherwise 0."""
    config = declared(spec, revision)
    return 3 if config is not None and sees(config) else 0


log = get_logger("models")

ENCODERS = ("vision_tower", "vision_model", "visual")
"""What families call their vision encoder."""
PROJECTION = "merger"
"""Part of the names of the projection to the language model in families where the encoder contains it."""
FROZEN_ADAPTER = "adapter_frozen_by_rlcore_vision"
"""Marks a parameter of an adapter that a run froze: those of the model beneath stay frozen."""


def build_vision_language(
    spec: loading.ModelSpec,
    config: VisionLanguageConfig,
    *,
    tokenizer: object = None,
    value_head: bool = False,
    reference: bool = False,
    heads: Mapping[str, HeadBuilder] | None = None,
    start: Path | None = None,
) -> SeeingPolicy:
    """Build a policy from a model specification.

    Args:
        spec: hub id, folder, `PretrainedConfig` (random weights) or a model in memory.
        config: options of the architecture.
        tokenizer: the processor, as an object, folder or hub id; the model's own if omitted.
        value_head: add a value head on the trunk.
        reference: keep the initial policy for comparison; frozen parameters are shared, not copied.
        heads: what builds each further head on the trunk, by name; heads saved with the model are loaded.
        start: folder with the model before training, of a run that is resumed (`rlcore.protocols.Restorable`).

    Raises:
        ModelError: the model, processor or options do not fit.
    """
    if config.critic is not None or config.value_layers:
        raise ModelError(
            "model.critic and model.value_layers: a model that sees images has its value head on the trunk: leave them "
            "out"
        )
    spec = starting_point(spec, start, in_place=True)
    model = loading.load_model(spec, config, VISION_LANGUAGE)
    seeing: Any = (
        tokenizer
        if isinstance(tokenizer, Seeing | TextsOnly)
        else read_processor(spec, tokenizer, config, model.config)
    )
    if isinstance(tokenizer, Seeing):
        require_same_images(spec, tokenizer.images.processor, config)
    check_vocabulary(model, seeing)
    carry_special_tokens(model, seeing, tokenizer)
    reader = let_see(model, getattr(seeing, "images", None))
    prepare(model, config)
    thaw_adapter(model)
    if config.freeze_vision:
        freeze_vision(model)
    if getattr(seeing, "images", None) is not None:
        require_own_reading(model, seeing.images)
        freeze_unused(model, seeing.images)
    speed = SpeedReport(config.speed)
    for technique in ("packing", "prefixes", "attention_groups", "frozen_trunk"):
        speed.refuse(technique, "rows may have images")
    layout = SeeingLayout(0, int(seeing.pad_token_id or 0), config.speed, reader)
    kept = keep_reference(model, layout) if reference else None
    value = make_value(model, config) if value_head else None
    module = add_heads(spec, model, layout, config, speed, value=value, heads=heads or {})
    context = loading.context_length(model)
    return SeeingPolicy(
        module, seeing, kept, max_length=context, max_prompt_length=max(context - 1, 0),
        sampling_dtype=config.sampling_dtype,
    )  # fmt: skip


def freeze_vision(model: PreTrainedModel) -> None:
    """Freeze the vision encoder for the run, with any adapter in it, but not the projection to the language model.

    The next run thaws it. In some families, such as Qwen2-VL, the projection is a part of the encoder: its merger.

    Raises:
        ModelError: the model has no part of a known name, or its adapter lies in the encoder alone.
    """
    encoders = _encoders(model)
    if not encoders:
        raise ModelError(
            f"model.freeze_vision: {type(model).__name__} has none of the parts {', '.join(ENCODERS)}; freeze the "
            "parameters yourself, and pass the model"
        )
    mark = FROZEN if find_adapters(model) is None else FROZEN_ADAPTER
    for name, parameter in (named for encoder in encoders for named in encoder.named_parameters()):
        if parameter.requires_grad and not any(PROJECTION in part for part in name.split(".")):
            parameter.requires_grad_(False)
            vars(parameter)[mark] = True
    if mark == FROZEN_ADAPTER and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            "model.freeze_vision: the whole adapter lies in the vision encoder, so nothing would train: name layers of "
            "the language model in model.peft.target_modules, or leave freeze_vision out"
        )


def thaw_adapter(model: PreTrainedModel) -> None:
    """Unfreeze what `freeze_vision` froze of an adapter in an earlier run; all else is `prepare`'s."""
    for parameter in model.parameters():
        if vars(parameter).pop(FROZEN_ADAPTER, False):
            parameter.requires_grad_(True)


def _encoders(model: PreTrainedModel) -> list[torch.nn.Module]:
    return [getattr(model.base_model, name) for name in ENCODERS if hasattr(model.base_model, name)]


def freeze_unused(model: PreTrainedModel, images: ImageStore) -> None:
    """Freeze the encoder's parameters on which no feature depends, such as layers above the one that is read.

    They would have no gradient, which several processes refuse.
    """
    trained = [weight for encoder in _encoders(model) for weight in encoder.parameters() if weight.requires_grad]
    if not trained:
        return
    seeing: Any = model
    pixels = {name: array.to(model.device) for name, array in images.probe().items()}
    with eval_mode(model), torch.enable_grad():
        total = sum(each.float().sum() for each in seeing.get_image_features(**pixels, return_dict=True).pooler_output)
        found: Any = torch.autograd.grad(total, trained, allow_unused=True) if total.requires_grad else ()
    for weight, gradient in zip(trained, found, strict=False):
        if gradient is None:
            weight.requires_grad_(False)
            vars(weight)[FROZEN] = True


def read_tokenizer(spec: object, given: object, config: VisionLanguageConfig) -> object:
    """Return the tokenizer of a run without its model, such as for `rlcore preview`.

    Raises:
        ModelError: there is none, or it processes no images.
    """
    about = declared(spec, config.revision)
    if about is None:
        raise ModelError(f"model = {spec!r:.80}: its configuration cannot be read")
    return read_processor(spec, given, config, about)


def example_model() -> PreTrainedModel:
    """Return the model that the conformance kit trains on texts: a tiny LLaVA whose encoder is frozen."""
    from rlcore_vision.tiny_families import llava

    config, _ = llava()
    config.text_config.vocab_size, config.image_token_id = 32, 31
    config.text_config.eos_token_id = config.eos_token_id = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = VISION_LANGUAGE.loader.from_config(config)
    for name in ("vision_tower", "multi_modal_projector"):
        getattr(model.base_model, name).requires_grad_(False)
    model.eval()
    return model


_of_protocol: Any = build_vision_language
_of_protocol.example_model, _of_protocol.read_tokenizer = example_model, read_tokenizer
