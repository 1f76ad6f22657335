"""Options of the sampler `openai`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore_engines.vllm.connection import check_url
from rlcore_transformers.sampling.token_options import TokenOptions

Extra = Literal["top_k", "min_tokens", "stop_token_ids", "return_token_ids", "min_p", "repetition_penalty"]
OF_TOKENS = ("logit_bias", "allowed_tokens", "forbidden_tokens")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
        if self.key_env is not None and not NAME.fullmatch(self.key_env):
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
