"""The plugin of the core, which registers the built-in components."""

from __future__ import annotations

from rlcore.hookspecs import Register, hookimpl

_TORCH, _SCHEDULES, _TRANSFORMERS = "torch.optim", "torch.optim.lr_scheduler", "transformers.optimization"
_OPTIMIZERS = (
    ("adamw", "rlcore.optim.builtin_optimizers:build_adamw", "AMSGrad", "Adam with decoupled weight decay"),
    ("adam", "rlcore.optim.builtin_optimizers:build_adam", "AMSGrad", "Adam; weight decay is added to the gradient"),
    ("nadam", f"{_TORCH}:NAdam", "NAdam", "Adam with Nesterov's momentum"),
    ("radam", f"{_TORCH}:RAdam", "RAdam", "Adam with a rectified variance"),
    ("adamax", f"{_TORCH}:Adamax", None, "Adam with the maximum norm instead of the second moment"),
    (
        "adafactor",
        "rlcore.optim.builtin_optimizers:build_adafactor",
        "Adafactor",
        "factored second moments, which need little memory",
    ),
    (
        "adamw_8bit",
        "rlcore.optim.builtin_optimizers:build_adamw_8bit",
        "EightBit",
        "AdamW with 8-bit moments, by bitsandbytes",
    ),
    ("sgd", f"{_TORCH}:SGD", "SGD", "stochastic gradient descent, optionally with momentum"),
    ("rmsprop", f"{_TORCH}:RMSprop", "RMSprop", "gradients divided by the root of a running mean of their squares"),
    ("adagrad", f"{_TORCH}:Adagrad", "Adagrad", "gradients divided by the root of the sum of their squares"),
    ("adadelta", f"{_TORCH}:Adadelta", "Adadelta", "steps scaled by the size of earlier steps; lr multiplies them"),
)
"""The built-in optimizers: name, target, prefix of the class in `rlcore.optim.optimizer_options`, summary."""
_SCHEDULERS = (
    ("constant", "rlcore.optim.builtin_optimizers:build_constant", None, "constant lr"),
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
        "rlcore.optim.builtin_optimizers:build_cosine_with_min_lr",
        "MinLR",
        "cosine decay to a rate above 0 at the last step",
    ),
    (
        "polynomial",
        "rlcore.optim.builtin_optimizers:build_polynomial",
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
        "rlcore.optim.builtin_optimizers:build_warmup_stable_decay",
        "StableDecay",
        "constant lr, with a decay over the last steps",
    ),
    ("step", f"{_SCHEDULES}:StepLR", "Step", "decay by a factor every few steps; no warm-up"),
    ("exponential", f"{_SCHEDULES}:ExponentialLR", "Exponential", "decay by a factor every step; no warm-up"),
)
"""The built-in learning-rate schedules, in the same form."""

COMMANDS = (
    ("train", "rlcore.cli.train:command", "train with the configuration of a YAML file"),
    (
        "list-plugins",
        "rlcore.cli.list_plugins:command",
        "list installed plugins, their components and their problems",
    ),
    ("show", "rlcore.cli.show:command", "print the options of a component or section, or the wrappers of components"),
    ("export", "rlcore.cli.export_command:command", "copy a checkpoint of several processes with whole tensors"),
    ("init", "rlcore.cli.init_command:command", "write a configuration file with every option as a comment"),
)
"""The core's commands: name, target, summary. The command line reads this table first; no plugin can override it."""


@hookimpl
def register_pipelines(register: Register) -> None:
    """Register the tokenisation of prompts and demonstrations."""
    register("prompts", "rlcore.data.pipelines:PROMPTS", summary="tokenise prompts")
    register("samples", "rlcore.data.pipelines:SAMPLES", summary="tokenise demonstrations and mark their outputs")


@hookimpl
def register_architectures(register: Register) -> None:
    """Register policies built from models of transformers."""
    register(
        "causal_lm",
        "rlcore.models.causal:build_causal_lm",
        config="rlcore.models.model_options:CausalLMConfig",
        summary="any AutoModelForCausalLM, with the heads and reference that the algorithm requests",
        fits="rlcore.models.kind:fits_causal_lm",
        sections={"tokenizer": "rlcore.models.model_options:TokenizerConfig"},
    )
    register(
        "seq2seq_lm",
        "rlcore.models.seq2seq:build_seq2seq_lm",
        config="rlcore.models.model_options:Seq2SeqLMConfig",
        summary="any AutoModelForSeq2SeqLM; the encoder reads the prompt, the decoder the output",
        fits="rlcore.models.kind:fits_seq2seq_lm",
        sections={"tokenizer": "rlcore.models.model_options:TokenizerConfig"},
    )
    register(
        "sequence_scorer",
        "rlcore.models.scorer:build_sequence_scorer",
        config="rlcore.models.model_options:SequenceScorerConfig",
        summary="any AutoModelForSequenceClassification with one label, such as a reward model",
        sections={"tokenizer": "rlcore.models.model_options:TokenizerConfig"},
    )


@hookimpl
def register_rollout_stores(register: Register) -> None:
    """Register the in-memory rollout store."""
    register("memory", "rlcore.training.store:MemoryStore", summary="keeps rollouts in the memory of the process")


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the console and JSON Lines loggers."""
    register(
        "console",
        "rlcore.loggers.console:ConsoleLogger",
        config="rlcore.loggers.console_options:ConsoleConfig",
        summary="one line per step, with a progress bar on a terminal",
    )
    register("jsonl", "rlcore.loggers.jsonl:JsonlLogger", summary="metrics.jsonl and completions.jsonl; always enabled")


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the built-in sampler."""
    register(
        "default",
        "rlcore.sampling.sampler:build_sampler",
        config="rlcore.sampling.sampler_options:SamplerConfig",
        summary="decodes token by token with any policy; finished sequences leave the batch",
    )


@hookimpl
def register_optimizers(register: Register) -> None:
    """Register optimizers of torch, transformers and bitsandbytes."""
    for name, target, options, summary in _OPTIMIZERS:
        config = options and f"rlcore.optim.optimizer_options:{options}Options"
        register(name, target, config=config, summary=summary)


@hookimpl
def register_schedulers(register: Register) -> None:
    """Register learning-rate schedules of transformers and torch."""
    for name, target, options, summary in _SCHEDULERS:
        config = options and f"rlcore.optim.optimizer_options:{options}Options"
        register(name, target, config=config, summary=summary)


@hookimpl
def register_shardings(register: Register) -> None:
    """Register strategies of torch and DeepSpeed."""
    register("none", "rlcore.sharding.whole:build_none", summary="every process has the whole model")
    register("fsdp", "rlcore.sharding.fsdp:build_fsdp", summary="weights, gradients and optimizer state, with torch")
    register("zero2", "rlcore.sharding.zero:build_zero2", summary="gradients and optimizer state, with DeepSpeed")
    register("zero3", "rlcore.sharding.zero:build_zero3", summary="as zero2, and the weights")


@hookimpl
def register_commands(register: Register) -> None:
    """Register the core's commands, so that plugin commands of the same name are reported as conflicts."""
    for name, target, summary in COMMANDS:
        register(name, target, summary=summary)
