"""Find what makes responses differ from samples of the policy that learns from them."""

from __future__ import annotations

from rlcore.logging import get_logger
from rlcore.training.run import Run


def biases(run: Run) -> list[str]:
    """Return the options of a run because of which responses are not samples of softmax(logits / temperature).

    Trainers take log-probs at the sampling temperature and over the whole vocabulary. Truncation (`gen.top_k`,
    `gen.top_p`), `gen.min_new_tokens` and a logit mask restrict sampling to some of the tokens, `gen.beta` shifts the
    logits, greedy sampling takes only the most likely token, and a sampler may sample from another distribution.
    """
    gen = run.config.gen
    found = {
        "gen.temperature = 0": not gen.temperature,
        "gen.top_k": gen.top_k > 0,
        "gen.top_p": gen.top_p < 1,
        "gen.min_new_tokens": gen.min_new_tokens > 0,
        "gen.beta": gen.beta != 0,
        "logit_mask": run.inputs.logit_mask is not None,
        "sampler": not getattr(run.sampler, "draws_from_policy", True),
    }
    return [name for name, is_set in found.items() if is_set]


def warn_of_bias(run: Run) -> None:
    """Log a warning if the policy gradient of the run's responses is biased; a trainer calls this once, when built."""
    if found := biases(run):
        get_logger("sampling").warning(
            "responses are not sampled from the policy that learns, so its gradient is biased: leave these options out "
            "while training; eval.gen may set them for evaluations",
            because=", ".join(found),
        )
