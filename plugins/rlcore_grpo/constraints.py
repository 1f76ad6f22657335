"""Which options of GRPO go together."""

from __future__ import annotations

from rlcore.config import unstructure
from rlcore.errors import ConfigError
from rlcore.training import Run
from rlcore_grpo.config import GRPOConfig

OF_SURROGATES = (
    "sapo_tau", "sapo_tau_negative", "vespo_k", "vespo_lambda", "vespo_k_negative", "vespo_lambda_negative",
)  # fmt: skip
"""Options of one surrogate, whose name they begin with."""


def check(config: GRPOConfig, world: int) -> None:
    """Check options against each other.

    Raises:
        ConfigError: two options contradict each other; the message names the one to change.
    """
    size, num_prompts = config.num_generations, config.rollouts // config.num_generations
    if size < 2:
        raise ConfigError(
            f"trainer.num_generations = {size}: a response is compared with others to its prompt; set at least 2"
        )
    if config.rollouts % size:
        raise ConfigError(
            f"trainer.rollouts = {config.rollouts}: is not a multiple of trainer.num_generations = {size}; set it to "
            f"{max(num_prompts, 1) * size} or {(num_prompts + 1) * size}"
        )
    if num_prompts < world:
        raise ConfigError(
            f"trainer.rollouts = {config.rollouts}: these are {num_prompts} groups, and each of the {world} processes "
            "needs one; raise it, or lower trainer.num_generations"
        )
    if config.minibatches > num_prompts:
        raise ConfigError(
            f"trainer.minibatches = {config.minibatches}: a round has {num_prompts} groups; set at most as many"
        )
    if config.kl_coef and config.kl_in == "loss" and config.kl_estimator == "k1":
        raise ConfigError(
            "trainer.kl_estimator = 'k1': its gradient in the loss is 0 on average; use k2 or k3, or kl_in: reward"
        )
    if config.combine == "normalize_then_sum" and config.scale != "group":
        raise ConfigError(
            f"trainer.scale = {config.scale!r}: combine: normalize_then_sum divides each reward function by the "
            "deviation of its group and their sum by that of the round; set scale to group"
        )
    if config.credit == "turn":
        _check_credit(config)
    if config.surrogate == "vespo" and config.is_correction not in ("off", "token_truncate", "token_mask"):
        raise ConfigError(
            f"trainer.is_correction = {config.is_correction!r}: surrogate: vespo multiplies the ratio of a response by "
            "the weights of its tokens; set is_correction to token_truncate or token_mask"
        )
    if config.is_low > config.is_high:
        raise ConfigError(f"trainer.is_low = {config.is_low}: is above trainer.is_high = {config.is_high}")
    _check_effects(config)


def _check_credit(config: GRPOConfig) -> None:
    """Refuse options of which `credit: turn` has no form."""
    refused = {
        "combine": (config.combine != "sum", "rewards of turns are sums over the reward functions; set it to sum"),
        "level": (config.level != "token", "one ratio for a whole episode mixes its turns; set it to token"),
        "surrogate": (config.surrogate == "vespo", "one weight for a whole episode mixes its turns; set it to clip"),
        "kl_in": (config.kl_coef > 0 and config.kl_in == "reward", "the KL is that of a whole episode; set it to loss"),
    }
    for name, (is_set, reason) in refused.items():
        if is_set:
            raise ConfigError(
                f"trainer.{name} = {getattr(config, name)!r}: with trainer.credit = 'turn' {reason}, or set "
                "trainer.credit to episode"
            )


def _check_effects(config: GRPOConfig) -> None:
    """Refuse options that differ from their defaults and have no effect."""
    default = GRPOConfig(preset=config.preset)
    is_clipped, is_corrected = config.surrogate == "clip", config.is_correction != "off"
    has_kl = config.kl_coef > 0
    effects = {
        "sync_ref_every": (has_kl, "without trainer.kl_coef there is no reference; set it above 0"),
        "sync_ref_alpha": (config.sync_ref_every > 0, "the reference stays; set trainer.sync_ref_every above 0"),
        "kl_in": (has_kl, "there is no KL; set trainer.kl_coef above 0"),
        "kl_estimator": (has_kl, "there is no KL; set trainer.kl_coef above 0"),
        "kl_ratio": (
            has_kl and config.kl_in == "loss",
            "there is no KL in the loss; set trainer.kl_coef above 0 and kl_in to loss",
        ),
        "clip_low": (is_clipped, f"surrogate: {config.surrogate} has other bounds; set surrogate to clip"),
        "clip_high": (is_clipped, f"surrogate: {config.surrogate} has other bounds; set surrogate to clip"),
        "dual_clip": (is_clipped, f"surrogate: {config.surrogate} has other bounds; set surrogate to clip"),
        "cispo_cap": (config.surrogate == "cispo", "it is the bound of cispo; set trainer.surrogate to cispo"),
        "level": (config.surrogate != "vespo", "surrogate: vespo has a ratio of its own; set level to token"),
        **{
            name: (config.surrogate == name.partition("_")[0], "it belongs to another surrogate; set trainer.surrogate")
            for name in OF_SURROGATES
        },
        "turn_discount": (config.credit == "turn", "turns have no advantages of their own; set trainer.credit to turn"),
        "refill_batches": (config.zero_spread == "refill", "groups are not refilled; set zero_spread to refill"),
        "overlong_penalty": (config.overlong_buffer > 0, "no length is too long; set trainer.overlong_buffer above 0"),
        "is_low": (is_corrected, "no weight is computed; set trainer.is_correction"),
        "is_high": (is_corrected, "no weight is computed; set trainer.is_correction"),
    }
    for name, (has_effect, reason) in effects.items():
        value = getattr(config, name)
        if not has_effect and value != getattr(default, name):
            raise ConfigError(f"trainer.{name} = {value!r}: {reason}, or leave this out")


def longest_response(config: GRPOConfig, run: Run) -> int:
    """Return the most tokens that the policy chooses in a response, or in all turns of an episode together.

    Raises:
        ConfigError: an option is about this limit, and the episodes of the run have none, or it is about turns, and
            there are no episodes.
    """
    longest = run.config.gen.max_new_tokens
    if run.data.inputs.environment is None:
        if config.credit == "turn":
            raise ConfigError(
                "trainer.credit = 'turn': the responses of this run have one turn; set data.environment, or leave this "
                "out"
            )
        return longest
    episodes = dict(unstructure(run.config.data.episodes) or {})
    max_turns = int(episodes.get("max_turns") or getattr(run.sampling.sampler, "max_turns", 0) or 0)
    limit = int(episodes.get("max_new_tokens") or max_turns * longest)
    if not limit and (config.overlong_buffer or config.norm == "constant"):
        name = "overlong_buffer" if config.overlong_buffer else "norm"
        raise ConfigError(
            f"trainer.{name} = {getattr(config, name)!r}: is about the longest episode, and these have no limit; set "
            "data.episodes.max_new_tokens, the most tokens of all turns together"
        )
    return limit


def check_sampling(config: GRPOConfig, run: Run, longest: int) -> None:
    """Check options against those of sampling; `longest` is the most tokens of a response.

    Raises:
        ConfigError: two options contradict each other.
    """
    gen = run.config.gen
    differs = gen.top_k or gen.top_p < 1 or not run.sampling.traits.draws_from_policy
    if config.is_correction != "off" and differs:
        raise ConfigError(
            f"trainer.is_correction = '{config.is_correction}': with gen.top_k, gen.top_p, or options of the sampler "
            "such as min_p, the log-probs of sampler and trainer are those of different distributions; leave these "
            "options out, or set it to off"
        )
    if config.overlong_buffer > longest:
        name = "gen.max_new_tokens" if longest == gen.max_new_tokens else "the longest episode"
        raise ConfigError(
            f"trainer.overlong_buffer = {config.overlong_buffer:g}: is above {name} = {longest}, so that every "
            "response has a penalty; set at most as many tokens"
        )
