"""The sections of a run's configuration that belong to no plugin; `rlcore show run` and its like print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlcore.config import config, option, structure

INFINITE = float("inf")


@config
class SamplingConfig:
    """How tokens are drawn, in rollouts and at evaluation."""

    max_new_tokens: int = option(40, "longest continuation of a prompt", ge=1, unit="tokens")
    min_new_tokens: int = option(0, "EOS cannot be drawn before this many tokens", ge=0, unit="tokens")
    temperature: float = option(
        1.0, "logits are divided by this before drawing; 0 takes the likeliest token", ge=0, lt=INFINITE
    )
    top_k: int = option(0, "draw among the k likeliest tokens only; 0 draws among all", ge=0, source="arXiv:1805.04833")
    top_p: float = option(
        1.0,
        "draw among the likeliest tokens whose probabilities first reach this sum; 1 draws among all",
        gt=0,
        le=1,
        source="arXiv:1904.09751",
    )
    beta: float = option(
        0.0,
        "the advantages that Q-heads give the next tokens are added to its log-probs with this weight before all else; "
        "needs a policy with Q-heads",
        gt=-INFINITE,
        lt=INFINITE,
        source="arXiv:2206.11871",
    )
    stop_sequences: tuple[str, ...] = option(
        (), "strings that end a continuation; the text handed to reward functions is trimmed of them"
    )
    eos_token_ids: tuple[int, ...] | None = option(
        None, "ids that end a continuation; the tokenizer's and the generation config's when left out"
    )
    batch_size: int = option(0, "prompts continued at once; 0 takes all that are given", ge=0, unit="sequences")

    @property
    def is_plain(self) -> bool:
        """Tell whether tokens are drawn from the policy itself: untempered, untruncated and unsteered."""
        return (self.temperature, self.top_k, self.top_p, self.min_new_tokens, self.beta) == (1.0, 0, 1.0, 0, 0.0)


@config
class OptimizerConfig:
    """The optimizer, its learning-rate schedule, and the bound on gradients."""

    name: str = option("adamw", "registered optimizer")
    lr: float = option(3e-5, "learning rate after warm-up", gt=0, lt=INFINITE)
    betas: tuple[float, float] | None = option(
        None, "decay of the running moments of the gradient; the optimizer's own when left out", ge=0, lt=1
    )
    eps: float | None = option(
        None, "added to the root of the second moment; the optimizer's own when left out", gt=0, lt=INFINITE
    )
    weight_decay: float | None = option(
        None, "weight decay, of matrices only; the optimizer's own when left out", ge=0, lt=INFINITE
    )
    options: Mapping[str, Any] = option({}, "what only this optimizer takes; `rlcore show` and its name list it")
    max_grad_norm: float = option(
        0.0, "gradients are scaled down to this Euclidean norm over all parameters; 0 leaves them alone", ge=0
    )
    scheduler: str = option("constant", "registered course of the learning rate")
    warmup_steps: int = option(0, "optimizer steps in which the learning rate rises from 0", ge=0, unit="steps")
    scheduler_options: Mapping[str, Any] = option({}, "what only this schedule takes, likewise")


@config
class BatchOptions:
    """Options of every trainer that learns by `Updater.accumulate`: a trainer's own options class derives from it."""

    micro_batch_size: int = option(
        0, "sequences of one forward pass on a rank; changes memory, never the gradient; 0 takes all", ge=0,
        unit="sequences",
    )  # fmt: skip
    micro_batch_tokens: int = option(
        0, "tokens of one forward pass on a rank, prompts included, counted as its sequences times the longest of "
        "them; a longer sequence has a pass of its own; changes memory, never the gradient; 0 sets no bound",
        ge=0, unit="tokens",
    )  # fmt: skip
    optimizer: OptimizerConfig = option(OptimizerConfig(), "optimizer, learning-rate schedule, bound on gradients")


@config
class RunConfig:
    """Where a run lies, how long it goes on, and what makes it repeatable."""

    name: str | None = option(None, "folder name under `root`; trainer's name and the time when left out")
    root: str = option("runs", "folder that holds the runs")
    seed: int = option(0, "seeds every random number of the run", ge=0, le=2**32 - 1)
    steps: int | None = option(None, "stop after this many steps (yields of the trainer)", ge=0, unit="steps")
    epochs: float | None = option(None, "stop after this many passes over the prompts or samples", gt=0)
    time_s: float | None = option(None, "stop at the first step that ends after this much time", gt=0, unit="seconds")
    resume: str = option(
        "never",
        "`auto` goes on from the newest whole checkpoint of the run, or starts; a path names the checkpoint; `never`",
    )
    overwrite: bool = option(False, "delete what the run's folder holds, instead of refusing to start")
    rollouts: int | Literal["none", "all"] = option(
        8, "rollouts of each step kept in rollouts.jsonl, the first ones; or none, or all", ge=0
    )
    overlap_rewards: bool = option(
        False,
        "ask reward functions about each gen.batch_size responses while the next are sampled; they then see these, not "
        "the round, and run in another thread",
    )
    mixed_precision: Literal["no", "bf16", "fp16"] | None = option(
        None, "precision of forward and backward passes; what accelerate launch says, else no, when left out"
    )
    profile: bool | Literal["torch"] = option(
        False, "write where the time of steps goes to profile/; `torch` adds a trace of its operators in two of them"
    )


@config
class EvalConfig:
    """When and how the policy is evaluated."""

    every: int = option(0, "evaluate after every so many steps; 0 evaluates at the end only", ge=0, unit="steps")
    at_start: bool = option(False, "evaluate before the first step too")
    at_end: bool = option(True, "evaluate after the last step")
    batch_size: int = option(64, "prompts continued at once", ge=1, unit="sequences")
    num_prompts: int = option(64, "training prompts evaluated on where no eval_prompts are given", ge=1)
    samples: int = option(1, "continuations of each evaluation prompt", ge=1)
    show: int = option(5, "completions shown on the console; all of them are written to completions.jsonl", ge=0)
    gen: Mapping[str, Any] = option(
        {},
        "sampling options that differ at evaluation; any of them may be a list, and what is evaluated is then each "
        "combination of the lists' values",
    )


@config
class CheckpointConfig:
    """When checkpoints are written and which are kept."""

    every: int = option(0, "write a checkpoint after every so many steps; 0 writes the last only", ge=0, unit="steps")
    at_end: bool = option(True, "write a checkpoint after the last step")
    keep_last: int = option(2, "newest checkpoints kept", ge=1)
    keep_best: int = option(
        0, "best checkpoints kept besides, judged by `metric`; one is then written after every evaluation too", ge=0
    )
    metric: str = option(
        "eval/reward/mean",
        "metric of evaluations that tells the best checkpoint; where eval.gen holds lists, the best of the values it "
        "takes, or that of one combination, as in `eval/reward/mean@temperature=1`",
    )
    mode: Literal["max", "min"] = option("max", "whether more or less of `metric` is better")


@config
class DataConfig:
    """How text becomes tokens, and, in a configuration file, where it comes from."""

    prompts: Any = option(
        None, "list, path of a .jsonl, .json, .csv, .parquet or .txt file, `module:function`, or hub data set"
    )
    samples: Any = option(None, "demonstrations, in the same forms")
    eval_prompts: Any = option(None, "prompts of evaluations, in the same forms; the first training prompts if absent")
    eval_samples: Any = option(None, "demonstrations held out for the validation loss, in the same forms")
    rewards: Any = option(
        None, "for each sample a number, one for each of its outputs, or one for each chosen token; in the same forms"
    )
    reward_fn: Any = option(
        None, "`module:function`, a registered reward's name, or a list of them (or of {fn, weight, name, options})"
    )
    metric_fn: Any = option(None, "`module:function` that turns completions into metrics")
    logit_mask: Any = option(
        None,
        "which token may come next: a V x V table of booleans, row = the last token read; `module:function`, or the "
        "path of a .json or .npy file",
    )
    prompt_pipeline: Any = option("prompts", "registered pipeline that tokenises prompts, or {name, options}")
    sample_pipeline: Any = option("samples", "registered pipeline that tokenises demonstrations, or {name, options}")
    prompt_column: str = option("prompt", "key of a row's prompt")
    max_prompt_tokens: int = option(
        0, "longer prompts lose tokens at `truncation_side`; 0 refuses what does not fit", ge=0, unit="tokens"
    )
    truncation_side: Literal["left", "right"] = option(
        "left", "end at which prompts lose tokens; BOS stays in either case"
    )
    max_sample_tokens: int = option(0, "longer samples lose tokens on the right; 0 refuses what does not fit", ge=0)
    add_bos: bool | None = option(None, "put BOS before every prompt and sample; the tokenizer's habit when left out")
    outputs_begin_text: bool | None = option(
        None, "spell a sample's first output as the beginning of a text, as a translation is, and not as what goes on "
        "its prompt; as suits the architecture when left out",
    )  # fmt: skip
    append_eos: bool = option(True, "end every demonstration with EOS, so that the policy learns to stop")


@config
class PluginsConfig:
    """Which installed plugins take part in the run; they go by the name of their package or of their entry point."""

    disable: tuple[str, ...] = option((), "plugins left out, never imported")
    only: tuple[str, ...] | None = option(
        None, "plugins let in, and no others; the core always stays; all of them when left out"
    )


@config
class TrainConfig:
    """All of a run's configuration; the sections `trainer` and `model` belong to the components they name."""

    trainer: Mapping[str, Any] = option({}, "`name` of the trainer and its options")
    model: Mapping[str, Any] = option({}, "`path` of the model, `architecture` and its options, `tokenizer`")
    data: DataConfig = option(DataConfig(), "prompts, samples, rewards")
    gen: SamplingConfig = option(SamplingConfig(), "how tokens are drawn")
    eval: EvalConfig = option(EvalConfig(), "evaluation")
    checkpoint: CheckpointConfig = option(CheckpointConfig(), "checkpoints")
    run: RunConfig = option(RunConfig(), "folder, budgets, seed, resume")
    loggers: tuple[Any, ...] = option(("console",), "names of loggers, or mappings with `name` and options")
    sampler: Any = option("default", "registered sampler of rollouts and evaluations, or {name, options}")
    store: Any = option("memory", "registered store of rollouts between sampling and learning, or {name, options}")
    plugins: PluginsConfig = option(PluginsConfig(), "which installed plugins take part")


def plugins_section(values: Mapping[str, Any], where: str) -> PluginsConfig:
    """Check the section `plugins` of a configuration alone; other sections can be checked once plugins are known."""
    given = values.get("plugins")
    section: PluginsConfig = structure(PluginsConfig, {} if given is None else given, where=where, path="plugins")
    return section
