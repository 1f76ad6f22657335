"""Bring the core's own components through the same door as everyone else's."""

from __future__ import annotations

from rlcore.hookspecs import Register, hookimpl

_TORCH, _SCHEDULES, _TRANSFORMERS = "torch.optim", "torch.optim.lr_scheduler", "transformers.optimization"
_OPTIMIZERS = (
    ("adamw", "rlcore.optim.builtin:build_adamw", "AMSGrad", "Adam with decoupled weight decay"),
    ("adam", "rlcore.optim.builtin:build_adam", "AMSGrad", "Adam; weight decay goes through the gradient"),
    ("nadam", f"{_TORCH}:NAdam", "NAdam", "Adam with Nesterov's momentum"),
    ("radam", f"{_TORCH}:RAdam", "RAdam", "Adam with a rectified variance"),
    ("adamax", f"{_TORCH}:Adamax", None, "Adam with the largest gradient in place of the second moment"),
    (
        "adafactor",
        "rlcore.optim.builtin:build_adafactor",
        "Adafactor",
        "second moments by rows and columns: little memory",
    ),
    (
        "adamw_8bit",
        "rlcore.optim.builtin:build_adamw_8bit",
        "EightBit",
        "AdamW with moments in 8 bits, of bitsandbytes",
    ),
    ("sgd", f"{_TORCH}:SGD", "SGD", "stochastic gradient descent, with momentum where asked for"),
    ("rmsprop", f"{_TORCH}:RMSprop", "RMSprop", "gradients divided by their running size"),
    ("adagrad", f"{_TORCH}:Adagrad", "Adagrad", "gradients divided by the root of the sum of their squares"),
    ("adadelta", f"{_TORCH}:Adadelta", "Adadelta", "steps of the size of earlier steps; lr is a factor, 1 by habit"),
)
"""The built-in optimizers: name, target, which options of `rlcore.optim.options`, summary."""
_SCHEDULERS = (
    ("constant", f"{_TRANSFORMERS}:get_constant_schedule_with_warmup", None, "lr throughout"),
    ("linear", f"{_TRANSFORMERS}:get_linear_schedule_with_warmup", None, "in a straight line to 0 at the last step"),
    ("cosine", f"{_TRANSFORMERS}:get_cosine_schedule_with_warmup", "Cosine", "along a cosine to 0 at the last step"),
    (
        "cosine_with_restarts",
        f"{_TRANSFORMERS}:get_cosine_with_hard_restarts_schedule_with_warmup",
        "Restarts",
        "along a cosine to 0, several times; needs to know the last step",
    ),
    (
        "cosine_with_min_lr",
        "rlcore.optim.builtin:build_cosine_with_min_lr",
        "MinLR",
        "along a cosine to a rate above 0 at the last step",
    ),
    ("polynomial", "rlcore.optim.builtin:build_polynomial", "Polynomial", "with a power of the steps that are left"),
    (
        "inverse_sqrt",
        f"{_TRANSFORMERS}:get_inverse_sqrt_schedule",
        "InverseSqrt",
        "with the inverse root of the step; needs no last step",
    ),
    (
        "warmup_stable_decay",
        "rlcore.optim.builtin:build_warmup_stable_decay",
        "StableDecay",
        "lr, and a fall in the last steps",
    ),
    ("step", f"{_SCHEDULES}:StepLR", "Step", "by a factor after every so many steps; no warm-up"),
    ("exponential", f"{_SCHEDULES}:ExponentialLR", "Exponential", "by a factor every step; no warm-up"),
)
"""The built-in schedules, likewise."""

COMMANDS = (
    ("train", "rlcore.cli.train:command", "train as a YAML file says"),
    (
        "list-plugins",
        "rlcore.cli.list_plugins:command",
        "list installed plugins, what they bring, and what is wrong with them",
    ),
    ("show", "rlcore.cli.show:command", "print the options of a component or a section, or what plugins wrap"),
    (
        "rollouts",
        "rlcore.cli.rollouts.rollouts_command:command",
        "print what a run sampled, in training or at evaluations",
    ),
    ("doctor", "rlcore.cli.doctor:command", "print what a bug report needs: versions, machine, plugins, and problems"),
    (
        "new-plugin",
        "rlcore.cli.new_plugin.new_plugin_command:command",
        "write a new package that works, to make your own plugin of",
    ),
)
"""The core's commands: name, target, summary. The command line reads this table, so that no plugin can hide them."""


@hookimpl
def register_pipelines(register: Register) -> None:
    """Register what turns text into tokens."""
    register("prompts", "rlcore.data.prompts:build_prompts", summary="tokenise prompts to be continued")
    register("samples", "rlcore.data.samples:build_samples", summary="tokenise demonstrations, marking the outputs")


@hookimpl
def register_architectures(register: Register) -> None:
    """Register the language models of transformers."""
    register(
        "causal_lm",
        "rlcore.models.causal:build_causal_lm",
        config="rlcore.models.settings:CausalLMConfig",
        summary="any AutoModelForCausalLM, with a value head and a reference where the algorithm asks for them",
    )
    register(
        "seq2seq_lm",
        "rlcore.models.seq2seq:build_seq2seq_lm",
        config="rlcore.models.settings:Seq2SeqLMConfig",
        summary="any AutoModelForSeq2SeqLM: the encoder reads the prompt, the decoder what follows",
    )


@hookimpl
def register_rollout_stores(register: Register) -> None:
    """Register the store in memory."""
    register("memory", "rlcore.training.store:MemoryStore", summary="rollouts in this process's memory")


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the console and the file of metrics."""
    register(
        "console",
        "rlcore.loggers.console:ConsoleLogger",
        config="rlcore.loggers.settings:ConsoleConfig",
        summary="one line a step, with progress on a terminal",
    )
    register("jsonl", "rlcore.loggers.jsonl:JsonlLogger", summary="metrics.jsonl and completions.jsonl; always on")


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the built-in sampler."""
    register(
        "default",
        "rlcore.sampling.loop:build_sampler",
        config="rlcore.sampling.settings:SamplerConfig",
        summary="token by token with any policy; finished sequences leave the batch",
    )


@hookimpl
def register_optimizers(register: Register) -> None:
    """Register optimizers of torch, transformers and bitsandbytes."""
    for name, target, options, summary in _OPTIMIZERS:
        config = options and f"rlcore.optim.options:{options}Options"
        register(name, target, config=config, summary=summary)


@hookimpl
def register_schedulers(register: Register) -> None:
    """Register learning-rate schedules of transformers and torch."""
    for name, target, options, summary in _SCHEDULERS:
        config = options and f"rlcore.optim.options:{options}Options"
        register(name, target, config=config, summary=summary)


@hookimpl
def register_commands(register: Register) -> None:
    """Register the core's commands, so that a plugin's of the same name is a conflict."""
    for name, target, summary in COMMANDS:
        register(name, target, summary=summary)
