"""The options of distillation; light, so that `rlcore show distill` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.safe_text import names_key
from rlcore.settings import BatchOptions, OptimizerConfig

GKD = "Agarwal et al. 2024, arXiv:2306.13649"
SEQUENCE = "Kim & Rush 2016, arXiv:1606.07947"
BASE = "base"
"""Value of `teacher` for the model beneath the policy's adapter."""


@config
class ServerOptions:
    """A server with the API of OpenAI, such as vLLM's, that returns the log-probs of a prompt's tokens."""

    url: str = option("", "address of the API, up to /completions, such as http://127.0.0.1:8000/v1; empty: no server")
    model: str = option("", "name by which the server knows the teacher")
    key_env: str | None = option(
        None, "name of the environment variable with the key; the key itself does not belong in a configuration"
    )
    top_k: int = option(
        20, "most likely tokens of each distribution that are requested; vLLM allows 20 unless it is started with "
        "--max-logprobs", ge=1, le=100_000, unit="tokens",
    )  # fmt: skip
    tail: Literal["renormalise", "bucket"] = option(
        "renormalise", "what is assumed of the tokens beyond top_k: that the teacher never chooses them, so that its "
        "probabilities are divided by their sum; or that all of them together are one outcome, with what is missing "
        "from 1",
    )  # fmt: skip
    concurrency: int = option(32, "most requests at a time", ge=1, le=65_536)
    timeout_s: float = option(300.0, "longest time for an answer", gt=0, le=1e9, unit="seconds")
    retries: int = option(4, "how often a request without an answer is repeated", ge=0, le=100)


@config
class DistillOptimizer(OptimizerConfig):
    """The optimizer of distillation; other options than `lr` have their usual defaults."""

    lr: float | None = option(
        2e-5, "learning rate after warm-up; null: follows the size of the model (docs/training.md)", gt=0,
        lt=float("inf"), source="default of TRL 1.16 for generalised knowledge distillation",
    )  # fmt: skip


@config
class DistillConfig(BatchOptions):
    """Distillation on demonstrations and on the policy's own outputs to their prompts."""

    teacher: str = option(
        "", "folder or hub id of the teacher, a model with the policy's tokenizer; `base`: the model beneath the "
        "policy's adapter (model.peft)",
    )  # fmt: skip
    server: ServerOptions = option(ServerOptions(), "a server with the teacher, in place of `teacher`")
    divergence: Literal["forward_kl", "reverse_kl", "jsd", "nll"] = option(
        "jsd", "loss of a token: divergence of the policy's distribution from the teacher's, or the negative "
        "log-likelihood of the teacher's token", source=GKD,
    )  # fmt: skip
    beta: float = option(
        0.5, "weight of the teacher in the mixture of `jsd`; near 0 its gradient is in proportion to that of the "
        "forward KL, near 1 to that of the reverse KL", gt=0, lt=1, source=GKD,
    )  # fmt: skip
    on_policy: float = option(
        0.5, "lambda: share of the rows whose outputs the policy samples; the others are the demonstrations", ge=0,
        le=1, source=GKD,
    )  # fmt: skip
    temperature: float | None = option(
        None, "divisor of the logits of policy and teacher in the loss; default: gen.temperature", gt=0,
        lt=float("inf"),
    )  # fmt: skip
    batch_size: int = option(32, "rows of one optimizer step, on all ranks together", ge=1, unit="sequences")
    optimizer: OptimizerConfig = option(DistillOptimizer(), "optimizer, learning-rate schedule, bound on gradients")


@config
class PromptDistillConfig(DistillConfig):
    """Distillation on prompts alone: the policy and the teacher sample the outputs."""

    on_policy: float = option(
        1.0, "lambda: share of the rows whose outputs the policy samples; the teacher samples the others", ge=0, le=1,
        source=GKD,
    )  # fmt: skip
    teacher_temperature: float = option(
        0.0, "temperature at which the teacher samples; 0: its most likely tokens, in place of the beam search of the "
        "paper", ge=0, lt=float("inf"), source=SEQUENCE,
    )  # fmt: skip


@config
class TeacherRewardConfig:
    """The log-probs that a teacher gives the sampled tokens, as rewards."""

    path: str = option("", "folder or hub id of the teacher, a model with the policy's tokenizer")
    subtract_policy: bool = option(
        True, "subtract the policy's own log-probs: the sum over an output is then an estimate of minus the reverse KL"
    )
    batch_size: int = option(16, "outputs of one forward pass; they are sorted by length", ge=1, unit="sequences")
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option("float32", "dtype of the teacher's weights")
    device: str = option("auto", "device of the teacher, such as cpu or cuda:1; auto: this process's accelerator")


def check(config: DistillConfig) -> None:
    """Check the options against each other.

    Raises:
        ConfigError: two options contradict each other; the message names the one to change.
    """
    own = isinstance(config, PromptDistillConfig)
    server = config.server
    if not config.teacher and not server.url:
        raise ConfigError("trainer.teacher is empty: name the folder or hub id of the teacher, or set trainer.server")
    if config.teacher and server.url:
        raise ConfigError(
            f"trainer.teacher = {config.teacher!r}: trainer.server.url names a teacher too; leave one of them out"
        )
    if server.key_env is not None and not names_key(server.key_env):
        raise ConfigError(
            "trainer.server.key_env: is no name of an environment variable; name the variable that holds the key, "
            "as in OPENAI_API_KEY, and not the key itself"
        )
    if server.url and not server.model:
        raise ConfigError("trainer.server.model is empty: set it to the name by which the server knows the teacher")
    if config.divergence == "nll" and not own:
        raise ConfigError(
            "trainer.divergence = 'nll': is a loss of the teacher's outputs, and these rows are demonstrations: use "
            "trainer distill_prompts, or the trainer sft for demonstrations"
        )
    if config.divergence == "nll" and config.on_policy:
        raise ConfigError(
            f"trainer.on_policy = {config.on_policy:g}: divergence 'nll' imitates the teacher's outputs, and not the "
            "policy's; set it to 0"
        )
    if own and config.on_policy < 1 and (server.url or config.teacher == BASE):
        what = "a server gives log-probs here" if server.url else "the model beneath an adapter gives log-probs"
        raise ConfigError(
            f"trainer.on_policy = {config.on_policy:g}: {what} and samples nothing; set it to 1"
            + (", or imitate the server's outputs with trainer rft and sampler openai" if server.url else "")
        )
    if server.url and server.tail == "renormalise" and config.divergence == "reverse_kl":
        raise ConfigError(
            "trainer.divergence = 'reverse_kl': is infinite where the teacher never chooses a token, as beyond "
            "trainer.server.top_k; set trainer.server.tail to bucket, or choose forward_kl or jsd"
        )


def workload(config: DistillConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of a run with these options, for `rlcore plan`."""
    return {"batch_size": config.batch_size, "reference": not config.server.url}
