"""The sections of a run's configuration that belong to no plugin; for example, `rlcore show run` prints `run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlcore.config import config, describe, index_options, merge, option, structure, unstructure
from rlcore.safe_text import redact

INFINITE = float("inf")
ROWS = ("prompts", "samples", "eval_prompts", "eval_samples", "rewards")
"""Options of the section `data` that may be lists of rows."""


@config
class SamplingConfig:
    """How tokens are sampled, in rollouts and evaluations."""

    max_new_tokens: int = option(40, "maximum length of a continuation", ge=1, unit="tokens")
    min_new_tokens: int = option(0, "EOS is not sampled before this many tokens", ge=0, unit="tokens")
    temperature: float = option(
        1.0, "divisor of the logits before sampling, and in the log-probs that are learned from; 0 takes the most "
        "likely token (greedy)", ge=0, lt=INFINITE,
    )  # fmt: skip
    top_k: int = option(0, "sample from the k most likely tokens only; 0: from all", ge=0, source="arXiv:1805.04833")
    top_p: float = option(
        1.0, "sample from the most likely tokens whose probabilities add up to at least this; 1: from all", gt=0, le=1,
        source="arXiv:1904.09751",
    )  # fmt: skip
    beta: float | None = option(
        None, "weight of the Q-heads' advantages, which are added to the log-probs before temperature and truncation; "
        "null: 0, or the trainer's own default", gt=-INFINITE, lt=INFINITE, source="arXiv:2206.11871",
    )  # fmt: skip
    stop_sequences: tuple[str, ...] = option(
        (), "strings that end a continuation; removed from the text that reward functions receive"
    )
    eos_token_ids: tuple[int, ...] | None = option(
        None, "ids that end a continuation; default: those of the tokenizer and the generation config"
    )
    batch_size: int = option(0, "prompts continued at once; 0: all", ge=0, unit="sequences")
    reused_logprobs: bool = option(
        True, "trainers use the log-probs and values of the built-in sampler where they equal the policy's up to "
        "rounding; false computes them again"
    )  # fmt: skip

    @property
    def policy_temperature(self) -> float:
        """Temperature of the policy that samples and learns: `temperature`, or 1 if sampling is greedy."""
        return self.temperature or 1.0

    @property
    def is_plain(self) -> bool:
        """Whether tokens are sampled from softmax(logits / temperature), without truncation, advantages or argmax."""
        return self.temperature > 0 and (self.top_k, self.top_p, self.min_new_tokens, self.beta or 0) == (0, 1, 0, 0)


@config
class OptimizerConfig:
    """The optimizer, its learning-rate schedule and gradient clipping."""

    name: str = option("adamw", "name of a registered optimizer")
    lr: float | None = option(
        3e-5, "learning rate after warm-up; null: that of the trainer's paper, adapted to the model", gt=0, lt=INFINITE
    )
    published = (3e-5, 124e6)  # no option: a published learning rate, and the number of parameters of its model
    betas: tuple[float, float] | None = option(
        None, "decay rates of the running moments of the gradient; default: the optimizer's", ge=0, lt=1
    )
    eps: float | None = option(
        None, "added to the root of the second moment; default: the optimizer's", gt=0, lt=INFINITE
    )
    weight_decay: float | None = option(
        None, "weight decay of matrices; vectors have none; default: the optimizer's", ge=0, lt=INFINITE
    )
    options: Mapping[str, Any] = option({}, "options of this optimizer alone; `rlcore show NAME` lists them")
    max_grad_norm: float = option(
        1.0, "clip the gradient to this Euclidean norm over all parameters; 0: no clipping", ge=0
    )
    scheduler: str = option("constant", "name of a registered learning-rate schedule")
    warmup_steps: int = option(0, "optimizer steps made while the learning rate rises from 0", ge=0, unit="steps")
    scheduler_options: Mapping[str, Any] = option({}, "options of this schedule alone; `rlcore show NAME` lists them")


@config
class BatchOptions:
    """Options of every trainer that calls `Updater.accumulate`; the trainer's options class inherits from it."""

    micro_batch_size: int = option(
        0, "sequences in one forward pass of a rank; affects memory, not the gradient; 0: all", ge=0, unit="sequences"
    )
    micro_batch_tokens: int = option(
        0, "most tokens in one forward pass of a rank, prompts included, counted as sequences times the longest of "
        "them; a longer sequence runs alone; affects memory, not the gradient; 0: no limit", ge=0, unit="tokens",
    )  # fmt: skip
    optimizer: OptimizerConfig = option(OptimizerConfig(), "optimizer, learning-rate schedule, gradient clipping")


@config
class RunConfig:
    """The folder, length, seed and precision of a run."""

    name: str | None = option(None, "name of the run's folder under `root`; default: the trainer's name and the time")
    root: str = option("runs", "folder of the runs")
    seed: int = option(0, "seed of every random number in the run", ge=0, le=2**32 - 1)
    steps: int | None = option(None, "stop after this many steps (yields of the trainer)", ge=0, unit="steps")
    epochs: float | None = option(None, "stop after this many passes over the prompts or samples", gt=0, le=1e12)
    time_s: float | None = option(None, "stop at the first step that ends after this much time", gt=0, unit="seconds")
    resume: str = option(
        "never",
        "`never`; `auto`: from the newest complete checkpoint of the run, if there is one; or the path of a checkpoint",
    )
    overwrite: bool = option(False, "delete the contents of an existing run folder instead of refusing to start")
    raise_on_interrupt: bool = option(
        False, "when Ctrl-C or SIGTERM has ended the run and it is saved, `rlcore.train` raises KeyboardInterrupt, so "
        "that a script of several runs ends; the command `rlcore train` does not",
    )  # fmt: skip
    accept_changes: tuple[str, ...] = option(
        (), "names of what may differ from the checkpoint that the run resumes from, such as `data.prompts` or "
        "`trainer`, and has its new value from then on; everything else that changes the result must be the same"
    )  # fmt: skip
    rollouts: int | Literal["none", "all"] = option(
        8, "how many rollouts of each step are written to rollouts.jsonl, or `none` or `all`", ge=0
    )
    asynchronous: int = option(
        0, "steps by which rounds are sampled ahead, from weights as old, while the policy learns; 0: none", ge=0, le=64
    )
    report: bool = option(True, "write report.html to the run's folder when the run ends")
    overlap_rewards: bool = option(
        False, "call reward functions on every gen.batch_size responses while the next are sampled; they receive these "
        "instead of the whole round, in a worker thread"
    )  # fmt: skip
    reward_timeout_s: float | None = option(
        None, "end the run if one call of a reward or metric function takes longer than this; functions are then "
        "called in a thread of their own", gt=0, le=1e9, unit="seconds",
    )  # fmt: skip
    check_functions: bool = option(
        True, "call each reward and metric function of your own with two rows and example answers before the model is "
        "loaded, if it is a plain function without state; false checks signatures alone"
    )  # fmt: skip
    mixed_precision: Literal["no", "bf16", "fp16"] | None = option(
        None, "precision of forward and backward passes; default: that of `accelerate launch`, else no"
    )
    shard: str = option(
        "none", "what several processes divide among themselves: `none`: nothing, each has the whole model; `fsdp`: "
        "weights, gradients and optimizer state, with torch's fully_shard; `tp`: the layers, with torch; `zero2`: "
        "gradients and optimizer state, with DeepSpeed; `zero3`: the same and the weights; or the strategy of a plugin"
    )  # fmt: skip
    shard_within: Literal["node", "world"] = option(
        "node", "whether `shard` divides the model among the processes of each machine, which then have copies of one "
        "another, or among all processes, as `tp`, `zero2` and `zero3` do"
    )  # fmt: skip
    offload: bool = option(
        False, "keep divided weights and optimizer state in the CPU's memory, where the optimizer steps; with `zero2` "
        "only the latter"
    )  # fmt: skip
    processes: int = option(
        1, "processes that `rlcore train` starts on this machine, each with a GPU of its own if there are GPUs; "
        "a program that calls rlcore.train is started with torchrun instead", ge=1, le=1024,
    )  # fmt: skip
    cluster: Any = option(
        None, "start the processes on the machines of a cluster instead: `ray`, or {name: ray, options}; one is enough"
    )
    timeout_s: float = option(
        600.0, "end a run of several processes if one of them waits longer than this for the others", gt=0, le=1e9,
        unit="seconds",
    )  # fmt: skip
    push_to_hub: str | None = option(
        None, "repository of the Hugging Face hub, `user/name`, to which the trained model is pushed when the run has "
        "ended; not if a signal ended it"
    )  # fmt: skip
    hub_private: bool | None = option(
        None, "whether a repository that `push_to_hub` creates is private; default: the hub's"
    )
    profile: bool | Literal["torch"] = option(
        False, "write the time spent in each phase of a step to profile/; `torch` adds operator traces of two steps"
    )


@config
class EvalConfig:
    """When and how the policy is evaluated."""

    every: int = option(0, "steps between evaluations; 0: none before the end", ge=0, unit="steps")
    at_start: bool = option(False, "also evaluate before the first step")
    at_end: bool = option(True, "evaluate after the last step")
    batch_size: int = option(64, "prompts continued at once", ge=1, unit="sequences")
    num_prompts: int = option(64, "number of training prompts to evaluate on if there are no eval_prompts", ge=1)
    samples: int = option(1, "continuations per evaluation prompt", ge=1)
    show: int = option(5, "number of completions shown on the console; completions.jsonl contains all", ge=0)
    gen: Mapping[str, Any] = option(
        {}, "sampling options that differ in evaluations; options may be lists, and every combination of their values "
        "is evaluated"
    )  # fmt: skip


@config
class CheckpointConfig:
    """When checkpoints are written and which are kept."""

    every: int = option(0, "steps between checkpoints; 0: none before the end", ge=0, unit="steps")
    at_end: bool = option(True, "write a checkpoint after the last step")
    keep_last: int = option(2, "number of newest checkpoints to keep", ge=1)
    keep_best: int = option(
        0, "number of best checkpoints by `metric` to keep as well; if not 0, each evaluation writes a checkpoint", ge=0
    )
    metric: str | None = option(
        None, "evaluation metric that ranks checkpoints; by default the one that the trainer names, such as "
        "eval/loss, or eval/reward/mean if no samples are held out; if eval.gen has lists, the best value over all "
        "combinations, or that of the combination named as in `eval/reward/mean@temperature=1`"
    )  # fmt: skip
    mode: Literal["max", "min"] | None = option(
        None, "whether a higher or a lower `metric` is better; by default a lower one if it is a loss"
    )
    format: Literal["safetensors", "dcp"] = option(
        "safetensors", "files of weights and moments that run.shard=fsdp divides: whole tensors, written by process 0, "
        "or torch.distributed.checkpoint, with which each process writes its parts (`rlcore export` completes them)"
    )  # fmt: skip


@config
class DataConfig:
    """Data sources, reward functions and tokenisation."""

    prompts: Any = option(
        None, "list of rows, path of a .jsonl, .json, .csv, .tsv, .parquet or .txt file, pattern or list of such "
        "paths, `module:function`, hub data set, or mixture, a list of {path, name, weight, limit, columns}"
    )  # fmt: skip
    samples: Any = option(None, "demonstrations, in the same forms as `prompts`")
    eval_prompts: Any = option(None, "evaluation prompts, in the same forms; default: the first training prompts")
    eval_samples: Any = option(None, "demonstrations held out for the validation loss, in the same forms")
    rewards: Any = option(None, "per sample one number, one per output, or one per chosen token; in the same forms")
    reward_fn: Any = option(
        None, "`module:function`, name of a registered reward, or a list of these or of {fn, weight, name, options}"
    )
    metric_fn: Any = option(None, "`module:function` that computes metrics of completions")
    logit_mask: Any = option(
        None, "which tokens may follow each token: bool[V, V], one row per preceding token; `module:function`, or the "
        "path of a .json or .npy file"
    )  # fmt: skip
    environment: Any = option(
        None, "name of a registered environment, {name, options}, or `module:attribute`, with which the policy talks "
        "in episodes of several turns; its rewards count as the reward `environment`"
    )  # fmt: skip
    episodes: Mapping[str, Any] = option(
        {}, "limits of episodes, such as `max_turns`, and what happens to those that fail"
    )
    prompt_pipeline: Any = option(
        None, "name of the registered pipeline that tokenises prompts, or {name, options}; default: the trainer's, "
        "else `prompts`"
    )  # fmt: skip
    sample_pipeline: Any = option(
        None, "name of the registered pipeline that tokenises demonstrations or other training rows, or {name, "
        "options}; default: the trainer's, else `samples`"
    )  # fmt: skip
    prompt_column: str = option("prompt", "column of the prompts")
    columns: Mapping[str, str] = option(
        {}, "columns to rename, our name: theirs, such as {prompt: question, output: answer}"
    )
    column_types: Mapping[str, Literal["int", "float", "bool", "json"]] = option(
        {}, "types of columns whose texts are read as `int`, `float`, `bool` or `json`, by our name, such as {label: "
        "bool}; cells of .csv and .tsv files are texts otherwise"
    )  # fmt: skip
    as_messages: bool = option(
        False, "read plain texts as messages, prompts as the user's and answers as the assistant's"
    )
    streaming: bool = option(
        False, "read and tokenise `samples` while training, row by row, with trainers that allow it"
    )
    shuffle_buffer: int = option(
        0, "streamed rows come in random order from a buffer of this size; 0: in the order of the data set", ge=0,
        unit="rows",
    )  # fmt: skip
    system_prompt: str | None = option(
        None, "system prompt that is put in front of conversations that have none; default: none"
    )
    chat_template_options: Mapping[str, Any] = option(
        {}, "variables of the chat template, such as `tools` and `enable_thinking`; a row's columns `tools` and "
        "`chat_template_kwargs` take precedence"
    )  # fmt: skip
    turns: Literal["joint", "each"] = option(
        "joint", "samples of a conversation: `joint`, one with all of the assistant's turns, if the chat template "
        "renders each of them as when the assistant is asked for it; `each`, one for every turn of the assistant",
    )  # fmt: skip
    end_token_ids: tuple[int, ...] | None = option(
        None, "ids of tokens that may end the assistant's turns; a turn is trained through the first of them; default: "
        "those at which sampling stops (`gen.eos_token_ids`)",
    )  # fmt: skip
    max_prompt_tokens: int = option(
        0, "longer prompts are truncated at `truncation_side`; 0: prompts that do not fit the model are an error", ge=0,
        unit="tokens",
    )  # fmt: skip
    truncation_side: Literal["left", "right"] = option(
        "left", "side at which prompts are truncated; BOS is kept on either side"
    )
    max_sample_tokens: int = option(
        0, "longer samples are truncated on the right; 0: samples that do not fit the model are an error", ge=0
    )
    add_bos: bool | None = option(None, "prepend BOS to every prompt and sample; default: as the tokenizer does")
    outputs_begin_text: bool | None = option(
        None, "tokenise a sample's first output as the beginning of a text (a translation, for example) instead of as "
        "a continuation of its prompt; default: as the architecture requires",
    )  # fmt: skip
    append_eos: bool = option(True, "append EOS to every demonstration, so that the policy learns to stop")


@config
class PluginsConfig:
    """Which installed plugins the run uses, by the name of their package or entry point."""

    disable: tuple[str, ...] = option((), "plugins that are not loaded")
    only: tuple[str, ...] | None = option(None, "the only plugins to use besides the core; default: all")


@config
class TrainConfig:
    """The whole configuration; the options in `trainer` and `model` are those of the components they name."""

    trainer: Mapping[str, Any] = option({}, "`name` and options of the trainer")
    model: Mapping[str, Any] = option(
        {}, "`path` of the model (hub id, folder or GGUF file), `architecture` and its options, `tokenizer`"
    )
    data: DataConfig = option(DataConfig(), "prompts, samples, rewards, tokenisation")
    gen: SamplingConfig = option(SamplingConfig(), "sampling")
    eval: EvalConfig = option(EvalConfig(), "evaluation")
    checkpoint: CheckpointConfig = option(CheckpointConfig(), "checkpoints")
    run: RunConfig = option(RunConfig(), "folder, length, seed, resume, precision")
    loggers: tuple[Any, ...] = option(("rlcore:console",), "names of loggers, or mappings with `name` and options")
    sampler: Any = option("default", "name of the registered sampler of rollouts and evaluations, or {name, options}")
    store: Any = option("rlcore:memory", "name of the registered rollout store, or {name, options}")
    plugins: PluginsConfig = option(PluginsConfig(), "which installed plugins the run uses")


def to_record(settings: TrainConfig) -> dict[str, Any]:
    """Return a configuration as the files of a run and loggers contain it: plain values, with secrets hidden.

    Rows of data are unchanged: their keys are columns and no options.
    """
    plain = unstructure(settings)
    rows = {name: plain["data"][name] for name in ROWS if isinstance(plain["data"][name], list)}
    return merge(redact(plain), {"data": rows})


def plugins_section(values: Mapping[str, Any], where: str) -> PluginsConfig:
    """Structure the section `plugins` alone; the other sections are checked once plugins are loaded."""
    options = values.get("plugins")
    section: PluginsConfig = structure(PluginsConfig, {} if options is None else options, where=where, path="plugins")
    return section


index_options(row.path for row in describe(TrainConfig))
index_options(f"trainer.{row.path}" for row in describe(BatchOptions))
