"""Registration of pipelines, architectures, the sampler, optimizers, schedules and learning rates; light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore import hookimpl
from rlcore.hookspecs import Register, RegisterServices, Services

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlcore.components import Component
    from rlcore.protocols import Learner
    from rlcore.settings import OptimizerConfig, TrainConfig

_TORCH, _SCHEDULES, _TRANSFORMERS = "torch.optim", "torch.optim.lr_scheduler", "transformers.optimization"
_OPTIMIZERS = (
    (
        "adamw",
        "rlcore_transformers.optimizers.builtin_optimizers:build_adamw",
        "AMSGrad",
        "Adam with decoupled weight decay",
    ),
    (
        "adam",
        "rlcore_transformers.optimizers.builtin_optimizers:build_adam",
        "AMSGrad",
        "Adam; weight decay is added to the gradient",
    ),
    ("nadam", f"{_TORCH}:NAdam", "NAdam", "Adam with Nesterov's momentum"),
    ("radam", f"{_TORCH}:RAdam", "RAdam", "Adam with a rectified variance"),
    ("adamax", f"{_TORCH}:Adamax", None, "Adam with the maximum norm instead of the second moment"),
    (
        "adafactor",
        "rlcore_transformers.optimizers.builtin_optimizers:build_adafactor",
        "Adafactor",
        "factored second moments, which need little memory",
    ),
    (
        "adamw_8bit",
        "rlcore_transformers.optimizers.builtin_optimizers:build_adamw_8bit",
        "EightBit",
        "AdamW with 8-bit moments, by bitsandbytes",
    ),
    ("sgd", f"{_TORCH}:SGD", "SGD", "stochastic gradient descent, optionally with momentum"),
    ("rmsprop", f"{_TORCH}:RMSprop", "RMSprop", "gradients divided by the root of a running mean of their squares"),
    ("adagrad", f"{_TORCH}:Adagrad", "Adagrad", "gradients divided by the root of the sum of their squares"),
    ("adadelta", f"{_TORCH}:Adadelta", "Adadelta", "steps scaled by the size of earlier steps; lr multiplies them"),
)
"""The built-in optimizers: name, target, prefix of the class in `optimizer_options`, summary."""
_SCHEDULERS = (
    ("constant", "rlcore_transformers.optimizers.builtin_optimizers:build_constant", None, "constant lr"),
    ("linear", f"{_TRANSFORMERS}:get_linear_schedule_with_warmup", None, "linear decay to 0 at the last step"),
    ("cosine", f"{_TRANSFORMERS}:get_cosine_schedule_with_warmup", "Cosine", "cosine decay to 0 at the last step"),
    (
        "cosine_with_restarts",
        f"{_TRANSFORMERS}:get_cosine_with_hard_restarts_schedule_with_warmup",
        "Restarts",
        "cosine decay to 0, with restarts; requires a known last step",
    ),
    (
        "cosine_with_min_lr",
        "rlcore_transformers.optimizers.builtin_optimizers:build_cosine_with_min_lr",
        "MinLR",
        "cosine decay to a rate above 0 at the last step",
    ),
    (
        "polynomial",
        "rlcore_transformers.optimizers.builtin_optimizers:build_polynomial",
        "Polynomial",
        "decay with a power of the remaining steps",
    ),
    (
        "inverse_sqrt",
        f"{_TRANSFORMERS}:get_inverse_sqrt_schedule",
        "InverseSqrt",
        "decay with the inverse root of the step; requires no last step",
    ),
    (
        "warmup_stable_decay",
        "rlcore_transformers.optimizers.builtin_optimizers:build_warmup_stable_decay",
        "StableDecay",
        "constant lr, with a decay over the last steps",
    ),
    ("step", f"{_SCHEDULES}:StepLR", "Step", "decay by a factor every few steps; no warm-up"),
    ("exponential", f"{_SCHEDULES}:ExponentialLR", "Exponential", "decay by a factor every step; no warm-up"),
)
"""The built-in learning-rate schedules, in the same form."""


@hookimpl
def register_pipelines(register: Register) -> None:
    """Register the tokenisation of prompts and demonstrations."""
    register("prompts", "rlcore_transformers.data.pipelines:PROMPTS", summary="tokenise prompts")
    register(
        "samples",
        "rlcore_transformers.data.pipelines:SAMPLES",
        summary="tokenise demonstrations and mark their outputs",
    )


@hookimpl
def register_architectures(register: Register) -> None:
    """Register policies built from models of transformers."""
    register(
        "causal_lm",
        "rlcore_transformers.models.causal:build_causal_lm",
        config="rlcore_transformers.models.model_options:CausalLMConfig",
        summary="any AutoModelForCausalLM, with the heads and reference that the algorithm requests",
        fits="rlcore_transformers.models.input_layout:fits_causal_lm",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )
    register(
        "seq2seq_lm",
        "rlcore_transformers.models.causal:build_seq2seq_lm",
        config="rlcore_transformers.models.model_options:Seq2SeqLMConfig",
        summary="any AutoModelForSeq2SeqLM; the encoder reads the prompt, the decoder the output",
        fits="rlcore_transformers.models.input_layout:fits_seq2seq_lm",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the built-in sampler."""
    register(
        "default",
        "rlcore_transformers.sampling.sampler:build_sampler",
        config="rlcore_transformers.sampling.token_options:SamplerConfig",
        summary="decodes token by token with any policy; finished sequences leave the batch",
    )


@hookimpl
def register_optimizers(register: Register) -> None:
    """Register optimizers of torch, transformers and bitsandbytes."""
    for name, target, options, summary in _OPTIMIZERS:
        config = options and f"rlcore_transformers.optimizers.optimizer_options:{options}Options"
        register(name, target, config=config, summary=summary)


@hookimpl
def register_schedulers(register: Register) -> None:
    """Register learning-rate schedules of transformers and torch."""
    for name, target, options, summary in _SCHEDULERS:
        config = options and f"rlcore_transformers.optimizers.optimizer_options:{options}Options"
        register(name, target, config=config, summary=summary)


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Register learning rates: the published one, adapted to the size of the model and to adapters."""
    register(Services(learning_rate=_find_rate), order="last")


def _find_rate(config: OptimizerConfig, learner: Learner) -> float:
    from rlcore_transformers.optimizers.learning_rates import find_rate

    return find_rate(config, learner)


@hookimpl
def wrap_component(component: Component[object], config: TrainConfig | None) -> Callable[[Any], object] | None:
    """Note, before anything is built, which model a run divides, so that processes read their own parts of it."""
    is_own = component.kind == "architectures" and component.dist == "rlcore-transformers"
    if not is_own or config is None or config.run.shard not in ("fsdp", "tp", "zero3"):
        return None
    from rlcore_transformers.models import freezing

    freezing.expect(config.model.get("path"))
    return freezing.forget
