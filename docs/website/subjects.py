"""What people search for, in their own words, and the page that answers it; the site's search lists these first."""

from __future__ import annotations

from pathlib import Path

SUBJECTS: dict[str, tuple[str, ...]] = {
    "README.md": ("install", "quick start"),
    "docs/algorithms.md": ("kl", "kl penalty", "advantage", "loss", "clip"),
    "docs/configuration.md": ("temperature", "top_p", "max_new_tokens", "batch size", "options"),
    "docs/data.md": (
        "reward columns", "reward function", "custom reward function", "reward_fn", "data set", "chat template",
        "packing",
    ),
    "docs/engines.md": ("vllm", "serving engine", "inference server"),
    "docs/environments.md": ("environment", "tools", "tool calls", "agent", "multi-turn", "mcp", "episodes"),
    "docs/formats.md": (
        "columns", "prompts", "messages", "csv", "parquet", "sharegpt", "alpaca", "dolly", "demonstrations",
        "preferences", "data format",
    ),
    "docs/gpus.md": ("cuda", "bf16", "flash attention", "mac", "mps"),
    "docs/guides/chat-sft-lora.md": ("lora", "adapter", "chat model", "quantization"),
    "docs/guides/reward-model.md": ("reward model",),
    "docs/guides/resuming.md": ("resume", "continue a run", "crash"),
    "docs/hub.md": ("hub", "push to hub", "model card", "upload"),
    "docs/loggers.md": ("wandb", "tensorboard", "mlflow", "logging"),
    "docs/memory.md": ("out of memory", "oom", "memory", "gradient checkpointing"),
    "docs/performance.md": ("speed", "faster", "slow", "throughput"),
    "docs/rewards.md": ("verifiable reward", "math", "llm judge", "json"),
    "docs/runs.md": (
        "completions", "rollouts", "checkpoint", "checkpoints", "best checkpoint", "load a model", "export model",
        "report", "metrics",
    ),
    "docs/scaling.md": (
        "two gpus", "several gpus", "multiple gpus", "multi-gpu", "multi-node", "fsdp", "deepspeed", "zero3",
        "torchrun", "tensor parallel", "cluster",
    ),
    "docs/sweeps.md": ("sweep", "hyperparameters", "hyperparameter search", "optuna"),
    "docs/training.md": ("evaluation", "epochs", "steps", "seed"),
    "docs/training.md#Steps, rounds, epochs and batches": ("gradient accumulation", "effective batch size"),
    "docs/training.md#The optimizer": ("learning rate", "weight decay"),
    "docs/training.md#Learning rates by the size of the model": ("learning rate too high", "learning rate too low"),
    "docs/training.md#Stopping": ("early stopping", "stop a run"),
    "docs/tutorial.md": ("publish a plugin", "write a trainer", "own algorithm", "custom trainer"),
    "plugins/rlcore_rewards/human/README.md": ("human feedback", "rlhf", "annotation"),
}  # fmt: skip
"""The file of each page, or one of its headings after a #, and the subjects that it answers, in lower case."""


def index_entries(page: Path, heading: str = "") -> str:
    """Return the directive by which Sphinx indexes a page, or a section, under its subjects; empty if it has none."""
    subjects = SUBJECTS.get(f"{page.as_posix()}#{heading}" if heading else page.as_posix(), ())
    return f"```{{index}} {', '.join(f'! {each}' for each in subjects)}\n```\n" if subjects else ""  # !: listed first
