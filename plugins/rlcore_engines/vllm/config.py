"""Options of the sampler `vllm`.

Also in this file: the options of the sampler `openai`; what the sampler `vllm` declares to `rlcore plan`: its
servers, their devices and the weights that reach them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.safe_text import names_key
from rlcore_engines.vllm.connection import check_url
from rlcore_transformers.sampling.token_options import TokenOptions

PARALLEL = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))
"""Arguments of `vllm serve` whose product is the number of its devices."""


def serving_of(config: VLLMConfig) -> Mapping[str, object]:
    """Return attributes of `rlcore_tools.plan.serving.Serving`.

    Process 0 writes the weights to files of 256 MB, which each server reads, or sends them in buffers of that size
    (`transfer: broadcast`). Log-probs of as many rows as are asked
    for, and of those of the check before, are compared after each change.
    """
    from rlcore_engines.vllm.weight_check import CHECKED_TOKENS
    from rlcore_engines.vllm.weights import PIECE

    found: dict[str, object] = {
        "reads": "stream", "engines": len(config.urls) or 1, "chunk": PIECE, "checked": 2 * config.check_rows,
        "checked_tokens": CHECKED_TOKENS, "sleeps": config.sleep,
        "keeps": config.transfer == "broadcast", "sends": "trained" if config.lora == "adapter" else "weights",
    }  # fmt: skip
    if config.url:
        return found | {"dtype": "bfloat16"}  # or float16: a server that is started without --dtype
    count = 1
    for names in PARALLEL:
        count *= int(_value(config.args, names) or 1)
    visible = [int(each) for each in config.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip().isdecimal()]
    share = _value(config.args, ("--gpu-memory-utilization",))
    return found | {
        "devices": count, "numbers": tuple(visible[:count] or range(count)), "named": bool(visible),
        "utilisation": float(share) if share else None, "dtype": config.dtype,
    }  # fmt: skip


def _value(args: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of an argument, written as `--name value` or `--name=value`."""
    for i, each in enumerate(args):
        name, equals, value = each.partition("=")
        if name in names:
            return value if equals else (args[i + 1] if i + 1 < len(args) else None)
    return None


OF_RUN = frozenset({"--host", "--port", "--uds", "--root-path", "--ssl-keyfile", "--ssl-certfile", "--headless"})
"""Arguments of `vllm serve` with which the run would not find a server that it has started."""


@config
class VLLMConfig(TokenOptions):
    """Options of the sampler `vllm`; either `url` or `python` is set."""

    url: str | tuple[str, ...] = option(
        (), "address of a running server, such as http://127.0.0.1:8000, or a list of several, among which prompts are "
        "dealt",
    )  # fmt: skip
    python: str | None = option(
        None, "Python of an environment with vLLM, in which the run starts a server of its own, and ends it"
    )
    args: tuple[str, ...] = option(
        (), "further arguments of `vllm serve` for a server that the run starts, such as [--tensor-parallel-size, '2']"
    )
    env: Mapping[str, str] = option(
        attrs.Factory(dict),
        "environment variables of a server that the run starts, such as {CUDA_VISIBLE_DEVICES: '1'}",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "precision of a server that the run starts; default: that of the policy's weights"
    )
    headers: Mapping[str, str] = option(attrs.Factory(dict), "HTTP headers of every request, such as Authorization")
    lora: Literal["merged", "adapter"] = option(
        "merged", "what a server receives of a policy with a LoRA adapter: the weights with the adapter merged into "
        "them, or the adapter alone, for a server that the run starts",
    )  # fmt: skip
    transfer: Literal["files", "broadcast"] = option(
        "files", "how weights reach the servers: through files, or from the memory of process 0, which keeps a copy of "
        "them there, by NCCL if policy and server have GPUs of their own, otherwise by gloo",
    )  # fmt: skip
    weights_dir: str | None = option(
        None, "folder through which weights reach the servers, which must be able to read it; each run has a folder of "
        "its own there; default: `vllm` in the run's folder",
    )  # fmt: skip
    concurrency: int = option(256, "most requests at a time to one server", ge=1, le=65_536)
    timeout_s: float = option(
        300.0, "longest time for the answer to a prompt, which is asked again afterwards", gt=0, le=1e9, unit="seconds"
    )
    start_timeout_s: float = option(
        900.0, "longest time for a server to start, to come back and to load new weights", gt=0, le=1e9, unit="seconds"
    )
    continue_responses: bool = option(
        False, "with run.asynchronous, whether responses under way when the weights change go on with the new ones; "
        "the run waits for them otherwise",
    )  # fmt: skip
    sleep: bool = option(
        False, "whether servers give up the memory of their GPU while the policy learns, and take it again before the "
        "next prompts; for servers that share GPUs with the run",
    )  # fmt: skip
    restarts: int = option(3, "most times in a run that a server is started again that has died", ge=0)
    check_rows: int = option(
        4, "prompts on which the server's log-probs are compared with the policy's after each change of the weights; "
        "0: none", ge=0,
    )  # fmt: skip
    tolerance: float | None = option(
        None, "largest difference of a log-prob in that comparison; default: 1e-3 if both compute in float32, else 0.5",
        gt=0, unit="nats",
    )  # fmt: skip

    def __attrs_post_init__(self) -> None:
        """Check the options against one another."""
        super().__attrs_post_init__()
        if self.forbidden_tokens:
            raise ConfigError(
                f"forbidden_tokens = {list(self.forbidden_tokens)}: vLLM has no such parameter; list the others in "
                "allowed_tokens, or make these improbable with logit_bias: -100"
            )
        if self.url and self.python is not None:
            raise ConfigError(
                f"python = {self.python!r}: a server that the run starts, and url = {self.url!r} names one that runs "
                "already; leave one of them out"
            )
        for url in self.urls:
            check_url(url, example="http://127.0.0.1:8000", instead="set the header Authorization in headers")
        if twice := sorted({url for url in self.urls if self.urls.count(url) > 1}):
            raise ConfigError(f"url: lists {twice[0]} twice; list each server once")
        self._check_requests()
        if self.continue_responses and self.lora == "adapter":
            raise ConfigError(
                "continue_responses with lora = 'adapter': a server keeps the states of earlier tokens when an adapter "
                "is replaced; set lora: merged, or leave continue_responses out"
            )
        if self.transfer == "broadcast" and self.lora == "adapter":
            raise ConfigError(
                "transfer = 'broadcast' with lora = 'adapter': an adapter reaches a server through files; set lora: "
                "merged, or leave transfer out"
            )
        own = {"args": self.args, "env": self.env, "dtype": self.dtype}
        if self.url and (given := [name for name, value in own.items() if value]):
            raise ConfigError(f"{given[0]}: is about a server that the run starts (python), and url is set")
        if self.url and self.lora == "adapter":
            raise ConfigError("lora = 'adapter': needs a server that the run starts (python), and url is set")

    def _check_requests(self) -> None:
        """Check headers, whose values are not shown, and the arguments by which a run finds its own server."""
        for name, value in self.headers.items():
            if not (name + value).isascii() or not (name + value).isprintable() or ":" in name or not name:
                raise ConfigError(
                    f"headers: {name!r} or its value has characters that no header has, such as a line break; remove "
                    "them"
                )
        for each in self.args:
            name = each.partition("=")[0].replace("_", "-")
            if name == "--api-key":
                raise ConfigError(
                    "args: --api-key: arguments are written to the files of the run, and shown to all users of the "
                    "machine; set VLLM_API_KEY in env, and the header Authorization in headers"
                )
            if name in OF_RUN:
                raise ConfigError(
                    f"args: {name}: the run sets where its server listens, and would not find it; remove it"
                )

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the addresses of running servers, without a slash at the end."""
        urls = (self.url,) if isinstance(self.url, str) else self.url
        return tuple(url.rstrip("/") for url in urls)

    def serving(self) -> Mapping[str, Any]:
        """Return where servers sample and what they need of the ranks, for `rlcore plan`."""
        return serving_of(self)


Extra = Literal["top_k", "min_tokens", "stop_token_ids", "return_token_ids", "min_p", "repetition_penalty"]
OF_TOKENS = ("logit_bias", "allowed_tokens", "forbidden_tokens")


@config
class OpenAIConfig(TokenOptions):
    """Options of the sampler `openai`; `url` and `model` are required."""

    url: str = option("", "address of the API, up to /completions, such as http://127.0.0.1:8000/v1")
    model: str = option("", "name by which the server knows its model")
    key_env: str | None = option(
        None, "name of the environment variable with the key; the key itself does not belong in a configuration; "
        "default: requests without a key",
    )  # fmt: skip
    prompts: Literal["auto", "tokens", "text"] = option(
        "auto", "how prompts are sent: as token ids, as text, or as token ids if the server echoes them as the "
        "policy's tokenizer decodes them, and otherwise as text",
    )  # fmt: skip
    extra: tuple[Extra, ...] = option(
        (), "fields beyond the API of OpenAI that the server accepts, as vLLM does; without top_k, min_tokens, "
        "stop_token_ids, min_p or repetition_penalty, gen.top_k, gen.min_new_tokens, gen.eos_token_ids, sampler.min_p "
        "and sampler.repetition_penalty are refused; with return_token_ids, "
        "completions are not tokenised again",
    )  # fmt: skip
    concurrency: int = option(32, "most requests at a time", ge=1, le=65_536)
    timeout_s: float = option(
        300.0, "longest time for the answer to a prompt, which is asked again afterwards", gt=0, le=1e9, unit="seconds"
    )
    retries: int = option(
        4, "how often a request is repeated that got no answer, or the status 408, 409, 429 or 5xx", ge=0, le=100
    )
    backoff_s: float = option(
        1.0, "pause before the first repetition, doubled for each further one, up to a minute; the server may ask for "
        "a longer one, up to a minute too", ge=0, le=60, unit="seconds",
    )  # fmt: skip

    def __attrs_post_init__(self) -> None:
        """Check the form of the options; no message shows what may be a key."""
        super().__attrs_post_init__()
        if of_tokens := [name for name in OF_TOKENS if name in self.reshaping]:
            raise ConfigError(
                f"{of_tokens[0]}: tokens are those of the policy's tokenizer, and the model of the server may have "
                "another; leave it out, or use sampler: default or vllm"
            )
        if missing := [name for name in self.reshaping if name not in self.extra]:
            raise ConfigError(
                f"{missing[0]} = {getattr(self, missing[0]):g}: the API of OpenAI has no such option; leave it out, or "
                f"add '{missing[0]}' to sampler.extra if the server accepts that field, as vLLM does"
            )
        if self.key_env is not None and not names_key(self.key_env):
            raise ConfigError(
                "key_env: is no name of an environment variable; set it to the name, such as OPENAI_API_KEY, and the "
                "variable to the key"
            )
        if not self.url:
            return
        check_url(self.url, example="http://127.0.0.1:8000/v1", instead="name a variable in key_env")

    def serving(self) -> Mapping[str, Any]:
        """Return that the server has a model of its own, and needs no weights, for `rlcore plan`."""
        return {"reads": "nothing"}
