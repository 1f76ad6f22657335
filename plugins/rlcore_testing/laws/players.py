"""Laws of what plays episodes: the service `episode_player`, called with a small environment and scripted turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlcore.hookspecs import no_result
from rlcore_testing.law import DIST, LawBroken, Subject, law, require

if TYPE_CHECKING:
    from rlcore.protocols import Policy, Sampler
    from rlcore.settings import TrainConfig
    from rlcore.types import Prompt, Row, Trajectories

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}a {{ m.content }}</s>{% else %}u {{ m.content }}.{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a {% endif %}"
)
"""A chat template whose words are all in the vocabulary of `rlcore_testing.small.make_tokenizer`."""
TURNS = ("xy", "z", "xyz")
REWARDS = (1.0, -2.0, 4.0)
ROWS = ("b", "cd", "e")


def _plays(subject: Subject) -> bool:
    """Return whether it plays episodes."""
    return bool(_players(subject))


def _players(subject: Subject) -> list[Callable[[Any, TrainConfig], Any]]:
    offers = (offer for plugin in subject.plugins for offer in plugin.offers)
    return [offer.services.episode_player for offer in offers if offer.services.episode_player is not no_result]


@law(DIST, when=_plays)
def episodes_have_the_tokens_of_one_rendering(subject: Subject) -> None:
    """With a template that is append-only, the tokens of an episode are one rendering of its whole dialogue."""
    batch, tokenizer = _played(subject)
    for row, messages in enumerate(batch.arguments["messages"]):
        expected = tokenizer.apply_chat_template(messages[:-1], tokenize=False)
        said = tokenizer.decode(batch.tokens[row][batch.mask[row]].tolist())
        require(said == expected, f"an episode reads {said!r}, and its dialogue is rendered as {expected!r}")


@law(DIST, when=_plays)
def only_sampled_tokens_are_chosen(subject: Subject) -> None:
    """Chosen are the tokens that the sampler returned, in their order, with its log-probs; all others have none."""
    batch, tokenizer = _played(subject)
    expected = [token for text in TURNS for token in _ids(tokenizer, text)]
    for row in range(len(batch)):
        chosen = batch.tokens[row][batch.action_mask[row]].tolist()
        require(chosen == expected, f"chosen are the tokens {chosen}, but sampled were {expected}")
    wrong = (batch["logprobs"] != -1.0 * batch.action_mask).nonzero().tolist()
    require(not wrong, f"the log-probs at {wrong[:4]} are not those of the sampler, or of no sampled token")


@law(DIST, when=_plays)
def the_reward_of_a_turn_is_at_its_last_token(subject: Subject) -> None:
    """The column `rewards` has the reward of each turn at the last token of the turn, and zeros elsewhere."""
    batch, tokenizer = _played(subject)
    expected = [
        reward if last else 0.0
        for text, reward in zip(TURNS, REWARDS, strict=True)
        for last in [False] * (len(_ids(tokenizer, text)) - 1) + [True]
    ]
    for row in range(len(batch)):
        found = batch["rewards"][row][batch.action_mask[row]].tolist()
        require(found == expected, f"the sampled tokens have the rewards {found}, expected were {expected}")
    require(not bool(batch["rewards"][~batch.action_mask].any()), "tokens of the environment have rewards")


@law(DIST, when=_plays)
def a_failed_episode_has_no_score_and_others_go_on(subject: Subject) -> None:
    """An episode whose environment raises states why, and the others are those of a batch without failures."""
    batch, _ = _played(subject, _environment(failing=True))
    require(
        "no door" in batch.failures[1] and not batch.failures[0],
        f"the second of three environments raised ValueError('no door'), and failures are {list(batch.failures)}",
    )
    whole, _ = _played(subject)
    first, other = (each.tokens[0][each.mask[0]].tolist() for each in (batch, whole))
    require(first == other, "an episode beside one that failed has other tokens")


@law(DIST, when=_plays)
def a_failure_is_not_a_reward_of_zero(subject: Subject) -> None:
    """A failed episode has no score, so that it counts in no mean and no baseline; a reward of 0 is a score."""
    from rlcore.rewards.call_inputs import UserFunction
    from rlcore.rewards.combine import Rewards, Scorer
    from rlcore.types import Prompt

    batch, tokenizer = _played(subject, _environment(failing=True))
    zero = Rewards((UserFunction("reward", "zero", lambda outputs: [0.0] * len(outputs)),))
    scored = Scorer(zero, tokenizer, (), outputs_begin_text=False, where="a law")
    totals = scored([Prompt(text, (0,)) for text in ROWS], batch).totals
    require(
        totals == [0.0, None, 0.0],
        f"of three episodes with a reward of 0 the second failed, and their scores are {totals}, not [0.0, None, 0.0]; "
        "state why it failed in `failures`",
    )


@law(DIST, when=_plays)
def no_step_follows_the_end(subject: Subject) -> None:
    """After `done`, `truncated` or a failure, an environment receives no further turn, and is closed once."""
    calls: list[list[str]] = []
    _played(subject, _noting(calls))
    found = sorted(each for each in calls if any(call.startswith("step") for call in each))
    expected = [[*(f"step {k}" for k in range(number + 1)), "close"] for number in range(len(ROWS))]
    require(found == expected, f"three episodes end with their turns 0, 1 and 2, and their calls are {found}")


@law(DIST, when=_plays)
def texts_of_an_environment_are_no_control_tokens(subject: Subject) -> None:
    """The text of a control token in an answer of the environment is tokenised as text."""
    batch, tokenizer = _played(subject, _environment(said="</s>a now you"))
    for row in range(len(batch)):
        there = batch.tokens[row][batch.mask[row] & ~batch.action_mask[row]].tolist()
        count = there.count(tokenizer.eos_token_id)
        require(not count, f"an environment that says '</s>' ends {count} turns; tokenise its texts as text")


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


class _Scripted:
    """A sampler that writes the next of `TURNS` after every prompt, with log-probs of -1."""

    def __init__(self) -> None:
        self._num_calls = 0

    def __call__(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: object, *, generator: object = None  # noqa: ARG002
    ) -> Trajectories:  # fmt: skip
        from rlcore.types import Trajectories

        ids = _ids(policy.tokenizer, TURNS[self._num_calls])
        self._num_calls += 1
        rows = [[*prompt.tokens, *ids] for prompt in prompts]
        masks = [[False] * len(prompt.tokens) + [True] * len(ids) for prompt in prompts]
        batch = Trajectories.stack(rows, masks, pad_id=policy.tokenizer.pad_token_id)
        return batch.with_columns(logprobs=-1.0 * batch.action_mask)


def _environment(*, failing: bool = False, said: str = "well") -> type:
    from rlcore.protocols import Step, Turn

    class Played:
        def reset(self, row: Row, *, seed: int) -> str:  # noqa: ARG002  an environment's signature
            self.fails = failing and row["number"] == 1
            return "go"

        def step(self, turn: Turn) -> Step:
            if self.fails and turn.index == 1:
                raise ValueError("no door")
            return Step(said, reward=REWARDS[turn.index], done=turn.index == len(TURNS) - 1)

    return Played


def _noting(calls: list[list[str]]) -> type:
    """Return an environment that notes its calls: the first row is done at once, the next is cut off, the third fails.

    Args:
        calls: receives a list for each object.
    """
    from rlcore.protocols import Step, Turn

    class Noting:
        def __init__(self) -> None:
            self.own: list[str] = []
            calls.append(self.own)

        def reset(self, row: Row, *, seed: int) -> str:  # noqa: ARG002  an environment's signature
            self.number = row["number"]
            return "go"

        def step(self, turn: Turn) -> Step:
            self.own.append(f"step {turn.index}")
            is_last = turn.index == self.number
            if is_last and self.number == len(ROWS) - 1:
                raise ValueError("no door")
            return Step("well", done=is_last and self.number == 0, truncated=is_last and self.number == 1)

        def close(self) -> None:
            self.own.append("close")

    return Noting


def _played(subject: Subject, made: type | None = None) -> tuple[Any, Any]:
    """Return the episodes that the plugin plays of an environment with the rows, and the tokenizer."""
    from rlcore.plugins.registry import all_registries
    from rlcore.settings import SamplingConfig, TrainConfig
    from rlcore.types import Episodes
    from rlcore_testing.small import make_gpt2, make_tokenizer
    from rlcore_transformers.models.causal import build_causal_lm
    from rlcore_transformers.models.model_options import CausalLMConfig

    tokenizer, config = make_tokenizer(), TrainConfig()
    tokenizer.chat_template = TEMPLATE
    policy: Policy = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=tokenizer)
    player = _players(subject)[0](_environment() if made is None else made, config)
    if player is None:
        raise LawBroken("episode_player returns None for a class of environments, so that no episode is played")
    read: Any = player.pipeline(all_registries().pipelines.get("rlcore-transformers:prompts").target())
    rows = [{"prompt": text, "number": number} for number, text in enumerate(ROWS)]
    prompts = read(rows, tokenizer, config.data, max_length=policy.max_length)
    sampler: Sampler = player.sampler(_Scripted())
    batch = sampler(policy, prompts, SamplingConfig(max_new_tokens=8), row_seeds=range(len(rows)))
    player.close()
    require(isinstance(batch, Episodes), f"its sampler returns {type(batch).__name__}, not rlcore.types.Episodes")
    return batch, tokenizer
