"""Known defects of training in episodes, each detected by a law."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from env_games import TEMPLATE, Echo, Scripted, make_player, make_policy, play, read_prompts
from episode_runs import TRAINERS, at, run

from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore.types import Episodes, PolicyOutputs, Trajectories
from rlcore_environments import dialogue
from rlcore_environments.recorded import stand_in
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.data.pipelines import PROMPTS
from rlcore_transformers.models.policy import ModelPolicy

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "warm")]

from tokenizer_fixtures import byte_tokenizer  # noqa: E402, F401

DEFECTS = {
    "The history is rendered and tokenised again, so that tokens and masks differ from those that were sampled": [
        "episodes_have_the_tokens_of_one_rendering",
        "test_turns_keep_the_tokens_that_were_sampled_although_their_text_has_others",
        "test_recorded_token_ids_are_learned_where_their_texts_have_others",
    ],
    "A template that is not append-only changes earlier turns": [
        "test_a_template_that_is_not_append_only_is_refused_with_the_reason",
        "test_a_template_that_moves_the_system_prompt_is_refused",
        "test_a_template_that_changes_in_a_later_round_is_refused",
    ],
    "Tokens between two turns are lost, or those that the template inserts are trained on": [
        "test_the_tokens_are_those_of_one_rendering_of_the_whole_dialogue",
        "test_a_turn_that_was_cut_off_is_ended_by_the_template",
        "test_tokens_that_the_template_inserts_after_a_cut_turn_are_not_chosen",
    ],
    "Tokens, masks and log-probs are edited apart; what the environment wrote is in a loss": [
        "only_sampled_tokens_are_chosen",
        "the_reward_of_a_turn_is_at_its_last_token",
        "test_nothing_of_an_environment_is_in_a_loss",
    ],
    "The KL of an environment's tokens is in a return, or a masked NaN makes a mean NaN": [
        "test_numbers_of_the_environments_tokens_change_no_step_even_if_they_are_nan",
    ],
    "Every turn renders the whole history, so that the cost grows with the square of the turns": [
        "test_an_answer_renders_and_tokenises_nothing_of_earlier_turns",
        "test_a_later_turn_reads_only_what_was_added_since_the_turn_before",
    ],
    "A template refuses the result of a tool without a call before it": [
        "test_results_of_tools_follow_the_turn_that_called_them",
    ],
    "An empty list of tools is rendered as tools": [
        "test_an_empty_list_of_tools_is_no_tools",
    ],
    "Turns of the assistant that the policy did not write are trained on": [
        "test_turns_of_the_assistant_that_the_policy_did_not_write_are_not_trained_on",
        "test_turns_of_the_assistant_that_the_policy_did_not_write_are_not_learned",
    ],
    "A failure becomes a reward of 0; one episode without a score makes the advantages of its group NaN": [
        "a_failure_is_not_a_reward_of_zero",
        "test_failed_episodes_are_left_out_of_the_baseline_of_their_group",
        "test_failed_episodes_have_no_score_and_nothing_is_learned_from_them",
    ],
    "Failures end the run without a trace of what failed": [
        "test_episodes_that_end_a_run_are_in_its_folder_even_after_its_first_round",
    ],
    "Rewards of coroutines are dropped": [
        "test_coroutines_are_awaited",
    ],
    "An environment that hangs stops the run without an error": [
        "test_an_episode_fails_and_the_others_go_on",
        "test_a_hanging_step_does_not_stop_the_loop",
        "test_a_process_that_hangs_is_replaced",
    ],
    "An environment is called after the end of its episode, or is not closed": [
        "no_step_follows_the_end",
        "test_a_step_after_the_end_is_refused",
        "it_can_be_closed_at_any_time",
    ],
    "The text of a control token in a message ends the turn, and the environment speaks as the assistant": [
        "texts_of_an_environment_are_no_control_tokens",
        "test_no_string_of_a_message_becomes_a_control_token",
    ],
    "Environments share global random numbers or other state": [
        "global_random_numbers_are_neither_read_nor_changed",
        "episodes_do_not_interfere",
        "threads_change_nothing",
        "test_an_environment_with_global_state_is_itself_again_in_a_process_of_each_episode",
    ],
    "A reward that has a name and occurs late, or a success that only wins state, is a mean over fewer episodes": [
        "test_an_episode_that_does_not_state_its_success_counts_as_none_once_another_states_it",
        "test_a_named_reward_that_occurs_late_is_a_metric_of_all_episodes_of_the_round",
        "test_a_reward_that_the_last_batch_of_an_evaluation_introduces_is_a_mean_over_all_episodes",
    ],
}
"""Known defects of training in episodes, and the laws of the conformance kit or tests that detect each."""


class Letters:
    """A sampler of turns that writes "hello" in single letters."""

    def __init__(self, tokenizer: Any) -> None:
        self.ids = [*tokenizer.convert_tokens_to_ids(list("hello")), tokenizer.eos_token_id]

    def __call__(self, policy: Any, prompts: Any, sampling: Any, *, generator: Any = None) -> Trajectories:
        rows = [[*prompt.tokens, *self.ids] for prompt in prompts]
        masks = [[False] * len(prompt.tokens) + [True] * len(self.ids) for prompt in prompts]
        return Trajectories.stack(rows, masks)


def test_turns_keep_the_tokens_that_were_sampled_although_their_text_has_others(byte_tokenizer: Any) -> None:  # noqa: F811
    byte_tokenizer.chat_template = None
    player, sampler = make_player(Echo), Letters(byte_tokenizer)
    canonical = byte_tokenizer("hello", add_special_tokens=False)["input_ids"]
    assert len(canonical) < len(sampler.ids) - 1
    policy: Any = stand_in(byte_tokenizer)
    prompts = player.pipeline(PROMPTS)(["hello"], byte_tokenizer, player.config.data, max_length=0)
    batch: Any = player.sampler(sampler)(policy, prompts, SamplingConfig(max_new_tokens=8), row_seeds=[1])  # type: ignore[arg-type]
    assert batch.arguments["turns"][0] == ["hello"] * 3
    assert batch.tokens[0][batch.action_mask[0]].tolist() == sampler.ids * 3
    assert batch.tokens.shape == batch.mask.shape == batch.action_mask.shape == batch["rewards"].shape


def test_tokens_that_the_template_inserts_after_a_cut_turn_are_not_chosen() -> None:
    """The turns end at their limit, so that the template writes the end of the first one."""
    batch = play(Echo, ["xy", "zx", "yz"], gen=SamplingConfig(max_new_tokens=2))
    tokenizer: Any = make_policy(chat=True).tokenizer
    assert tokenizer.decode(batch.tokens[0][batch.action_mask[0]]) == "xyzxyz"
    assert tokenizer.decode(batch.tokens[0][batch.mask[0]]).count("</s>") == 2
    assert not bool(batch["logprobs"][~batch.action_mask].any())


@pytest.mark.parametrize("name", TRAINERS)
def test_numbers_of_the_environments_tokens_change_no_step_even_if_they_are_nan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product with a mask would not do, since 0 times NaN is NaN; nor may their KL be in a return."""
    trainer = {"name": name, **TRAINERS[name], **({"kl_coef": 0.1} if name in ("ppo", "grpo") else {})}
    trainer["optimizer"] = {"eps": 1e-3}  # with which Adam does not amplify rounding errors

    def trained(folder: Path) -> list[torch.Tensor]:
        result = run(folder, trainer=trainer, eval={"at_end": False}, run=at(folder, steps=2))
        assert result.metrics["episode/turns"] == 3.0
        return [weight.detach().clone() for weight in result.policy.module.parameters()]

    clean, spoiled = trained(tmp_path / "clean"), list[int]()

    def spoil(column: Any, mask: torch.Tensor) -> Any:
        if not isinstance(column, torch.Tensor) or column.shape != mask.shape or not column.is_floating_point():
            return column
        spoiled.append(int((~mask).sum()))
        return torch.where(mask, column, torch.nan)

    from rlcore_environments.sampler import EpisodeSampler

    sampled, methods = EpisodeSampler.__call__, ("score", "reference_score")

    def sample(self: Any, *arguments: Any, **named: Any) -> Episodes:
        batch = sampled(self, *arguments, **named)
        columns = {name: spoil(each, batch.action_mask) for name, each in batch.columns.items()}
        return attrs.evolve(batch, columns=columns)

    monkeypatch.setattr(EpisodeSampler, "__call__", sample)
    for method in methods:
        called = getattr(ModelPolicy, method)

        def scored(self: Any, batch: Any, *arguments: Any, called: Any = called, **named: Any) -> Any:
            outputs = called(self, batch, *arguments, **named)
            assert isinstance(outputs, PolicyOutputs)
            mask = batch.action_mask
            return attrs.evolve(
                outputs, logprobs=spoil(outputs.logprobs, mask), values=spoil(outputs.values, mask),
                entropy=spoil(outputs.entropy, mask),
            )  # fmt: skip

        monkeypatch.setattr(ModelPolicy, method, scored)
    for before, after in zip(clean, trained(tmp_path / "spoiled"), strict=True):
        torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    assert sum(spoiled) > 0


def test_an_answer_renders_and_tokenises_nothing_of_earlier_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn costs does not depend on how many came before it."""
    rendered, encoded = list[int](), list[int]()
    render, encode = dialogue.apply_template, dialogue.encode_continuations

    def rendering(tokenizer: Any, chat: Any, **how: Any) -> Any:
        rendered.append(len(chat.messages))
        return render(tokenizer, chat, **how)

    def encoding(tokenizer: Any, texts: Any, where: Any) -> Any:
        encoded.append(sum(map(len, texts)))
        return encode(tokenizer, texts, where)

    class Long(Echo):
        def step(self, turn: Turn) -> Step:
            marks.append((len(rendered), len(encoded)))
            return Step("on", done=turn.index == 5)

    marks = list[tuple[int, int]]()
    monkeypatch.setattr(dialogue, "apply_template", rendering)
    monkeypatch.setattr(dialogue, "encode_continuations", encoding)
    play(Long, ["x"] * 6)
    turns = [(rendered[a:c], encoded[b:d]) for (a, b), (c, d) in pairwise(marks[1:])]
    assert len(turns) == 4
    assert turns[0][1]
    assert all(turn == turns[0] for turn in turns)  # the first one checks the template besides


def test_an_empty_list_of_tools_is_no_tools() -> None:
    """Templates branch on whether there are tools, and some write a heading for an empty list."""

    class Plain(Echo):
        tools: tuple[Any, ...] = ()

    class Empty(Echo):
        tools: list[Any] = []  # noqa: RUF012

    found = []
    for made in (Echo, Plain, Empty):
        player, tokenizer = make_player(made), make_tokenizer()
        tokenizer.chat_template = "{% if tools is not none %}tools {% endif %}" + TEMPLATE
        policy: Any = make_policy()
        policy.tokenizer = tokenizer
        prompts = read_prompts(player, policy, ["ab"])
        sampler: Any = player.sampler(Scripted(["a", "b", "c"]))  # type: ignore[arg-type]
        found.append(sampler(policy, prompts, SamplingConfig(max_new_tokens=8), row_seeds=[0]).tokens.tolist())
    assert found[0] == found[1] == found[2]
    tools = ({"type": "function", "function": {"name": "add"}},)
    text = make_player(type("Adds", (Echo,), {"tools": tools})).dialogue(tokenizer)._render([dialogue.QUESTION])
    assert text.startswith("tools ")


def test_an_environment_with_global_state_is_itself_again_in_a_process_of_each_episode() -> None:
    """Two episodes that share a generator read each other's numbers; alone in a process, none does."""
    turns = ["a", "b"]
    alone = [play("isolated_games:Global", turns)["rewards"].sum().item()]
    beside = play("isolated_games:Global", turns, turns, chat=True)["rewards"].sum(1).tolist()
    apart = play("isolated_games:Global", turns, turns, chat=True, isolate="episode")["rewards"].sum(1).tolist()
    assert beside[0] != pytest.approx(alone[0])
    assert apart[0] == pytest.approx(alone[0])


def test_each_known_defect_has_a_law_that_is_run() -> None:
    sources = [*(ROOT / "plugins" / "rlcore_testing" / "laws").glob("*.py"), *Path(__file__).parent.glob("test_*.py")]
    defined = {name for path in sources for name in re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE)}
    named = [name for laws in DEFECTS.values() for name in laws]
    assert [name for name in named if name not in defined] == []
    assert len(named) == len(set(named))
