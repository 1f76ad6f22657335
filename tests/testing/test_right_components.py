"""Tests that right components keep the laws of the kit, and that a law applies only to what it is about."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
import pytest
from components_made import OPTIONS, some
from depths import SLOW_LAWS
from dists_made import DISTS
from laws_held import LAWS, assert_kept, law_called
from sites import Site, installed

from rlcore.plugins.builtin import COMMANDS
from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import dist, loggers, players, remote_samplers, submitted_rounds
from rlcore_testing.rig.worker import Spawned


@attrs.frozen
class Right:
    """A component, and the laws that it keeps.

    Attributes:
        laws: kind of the laws, a key of `LAWS`.
        name: its full name.
        options: what it is built with.
        but: laws that do not apply to it.
        only: the laws that are held; all of its kind if empty.
        kind: kind of the component, if it is another than that of the laws.
    """

    laws: str
    name: str
    options: dict[str, Any] = attrs.field(factory=dict)
    but: Collection[str] = ()
    only: Collection[str] = ()
    kind: str = ""


CLOSED, ALLOWED, SEED = (
    "it_samples_again_after_close", "only_allowed_tokens_are_sampled", "a_row_depends_on_its_own_seed",
)  # fmt: skip
FROZEN = "unfrozen_layers_are_the_top_ones"
REMOTE = [law.name for law in (*laws_in(remote_samplers), *laws_in(submitted_rounds))]
"""Laws of samplers whose test describes their workers, and of those with `submit` and `collect`."""
OF_THE_POLICY = (
    "batches_change_nothing", "beta_adds_advantages_to_the_logits", "frequencies_match_the_policy",
    "greedy_equals_transformers", "temperature_divides_the_logits", "the_generator_advances",
    "top_k_samples_the_likeliest", "top_p_samples_the_likeliest",
)  # fmt: skip
"""Laws that are not held against a sampler with `draws_from_policy = False`."""
OF_SAMPLES = {
    "the_temperature_divides_the_logits", "every_token_of_the_reference_counts",
    "the_text_of_an_environment_is_not_learned",
}  # fmt: skip
IN_PROCESSES = {
    "resume_is_exact", "two_processes_equal_one", "divided_weights_equal_whole_ones",
    "a_bad_number_on_one_rank_stops_the_run_or_is_counted",
}  # fmt: skip
OF_TRAINERS = {law.name for law in laws_in(LAWS["trainers"]) if not law.name.endswith("oracle")}
"""The others are seen to hold in test_oracle_laws.py."""
OF_GROUPS = {
    "it_learns", "losses_are_finite", "padding_changes_nothing", "micro_batches_change_nothing",
    "two_processes_equal_one",
}  # fmt: skip
OF_OTHERS = [
    FROZEN, "the_seed_determines_random_weights", "a_saved_folder_equals_its_model",
    "plain_transformers_loads_what_was_saved", "outputs_of_a_head_are_returned_by_name",
    "a_head_trains_with_the_policy", "heads_are_saved", "advantages_are_those_of_the_head_that_steers",
]  # fmt: skip
"""Laws that are not about an architecture in plain torch without further heads."""
# One process is enough: that a new one loads what was saved is seen in test_own_packages.py.
OF_ARCHITECTURES = {law.name for law in laws_in(LAWS["architectures"])} - {"plain_transformers_loads_what_was_saved"}
TOP_LAYERS = {"unfrozen_layers": 1, "value_layers": 1}
CRITIC = {"critic": "copy", "gradient_checkpointing": True}
HEADS_ONLY = {"unfrozen_layers": 0, "speed": {"packing": False}}
LORA = {"peft": {"type": "lora", "r": 2}}
RIGHT = [
    *(
        Right("architectures", "rlcore-transformers:causal_lm", options, only=OF_ARCHITECTURES)
        for options in (TOP_LAYERS, CRITIC, HEADS_ONLY)
    ),
    *(
        Right("architectures", "rlcore-transformers:seq2seq_lm", options, but=[FROZEN], only=OF_ARCHITECTURES)
        for options in (TOP_LAYERS, CRITIC)
    ),
    *(
        Right("architectures", f"acme-wrong:{model}", but=[FROZEN], only=OF_ARCHITECTURES)
        for model in ("mistral", "t5")
    ),
    Right("architectures", "acme-wrong:recurrent", but=OF_OTHERS, only=OF_ARCHITECTURES),
    Right("architectures", "acme-wrong:partly_in_eval_mode", only=["scoring_changes_nothing_else"]),
    *(
        Right("commands", name)
        for name in ("acme-wrong:right", "acme-wrong:bare", *(f"rlcore:{name}" for name, _, _ in COMMANDS))
    ),
    Right("environments", "acme-wrong:right", but=["an_episode_ends"]),  # it states a limit
    Right("learners", "acme-wrong:learns-Toy", kind="architectures"),
    *(Right("loggers", f"acme-wrong:{name}") for name in ("right", "declared", "elsewhere", "service")),
    *(Right("loggers", f"rlcore:{name}") for name in ("console", "jsonl")),
    Right("optimizers", "rlcore-transformers:sgd", {"momentum": 0.9, "nesterov": True}),
    Right("optimizers", "acme-wrong:whitening", only=["steps_lower_a_convex_loss"]),
    Right("optimizers", "acme-wrong:undecaying", but=["weight_decay_is_read_from_each_group"]),
    *(Right("pipelines", f"acme-wrong:{name}") for name in ("right", "triples", "ranked", "ranked_in_lists")),
    *(Right("pipelines", f"rlcore-transformers:{name}") for name in ("prompts", "samples")),
    *(
        Right("rewards", f"acme-wrong:{name}", but=["it_scores_again_after_close"])
        for name in ("right", "right_later", "counting")
    ),
    Right("rewards", "acme-wrong:closing"),
    Right("rollout_stores", "rlcore:memory"),
    Right("samplers", "rlcore-transformers:default", but=[CLOSED, *REMOTE]),
    Right("samplers", "acme-wrong:best_of_two", but=[*OF_THE_POLICY, ALLOWED, SEED, CLOSED, *REMOTE]),  # no mask
    Right("samplers", "acme-wrong:no_beta", only=["beta_adds_advantages_to_the_logits"]),  # it refuses the option
    Right("schedulers", "rlcore-transformers:warmup_stable_decay", {"num_decay_steps": 5}),
    Right("schedulers", "acme-wrong:no_warm_up", but=["warm_up_rises_to_lr"]),
    *(Right("scorers", "rlcore-reward:sequence_scorer", options, kind="architectures") for options in ({}, LORA)),
    *(Right("shardings", name) for name in ("rlcore:none", "rlcore-shard:fsdp")),
    Right("trainers", "acme-wrong:right", only=OF_TRAINERS),
    Right("trainers", "acme-wrong:imitates", but=OF_SAMPLES, only=OF_TRAINERS - IN_PROCESSES),
    Right("trainers", "acme-wrong:keeps-near", only=OF_SAMPLES),
    Right("trainers", "acme-wrong:ranks", only=OF_GROUPS),
    *(Right("trainers", f"acme-wrong:{name}", only=["stop_is_honoured_at_a_yield"]) for name in ("shrinks", "rests")),
    Right("trainers", "acme-wrong:prefers", only=["it_learns"]),  # it declares the metric that learning lowers
]
HELD = [
    (right, law) for right in RIGHT for law in laws_in(LAWS[right.laws]) if not right.only or law.name in right.only
]
FIRST = {(right.laws, law.name): right for right, law in reversed(HELD) if law.name not in right.but}
"""The first component of each law. By day a law is held for that alone: the packages' own tests hold it for others."""
CASES = [
    pytest.param(
        right,
        law,
        id="-".join([right.laws, right.name, *right.options, law.name]),
        marks=[pytest.mark.nightly] if law.name in SLOW_LAWS or FIRST.get((right.laws, law.name)) is not right else [],
    )
    for right, law in HELD
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker that loads the components of every installed package."""
    monkeypatch.setattr(dist, "worker", Spawned)


@pytest.mark.slow
@pytest.mark.parametrize(("right", "law"), CASES)
@pytest.mark.usefixtures("wrong_site")
def test_a_right_component_keeps_the_law(right: Right, law: Law) -> None:
    assert_kept(law, installed(right.kind or right.laws, right.name, **right.options), but=right.but)


@pytest.mark.parametrize("law", laws_in(LAWS["components"]), ids=lambda law: law.name)
def test_any_right_component_keeps_the_law(law: Law) -> None:
    of_models = law.name == "the_example_model_is_the_same_in_every_call"
    assert_kept(law, some(), but=[law.name] * of_models)
    assert_kept(law, some(kind="schedulers", target=OPTIONS + "schedule"), but=[law.name] * of_models)
    assert_kept(law, some(kind="architectures", target=OPTIONS + "same_each_time"))


def test_an_environment_without_options_and_a_method_of_a_class_are_right_targets() -> None:
    for law in ("the_target_accepts_its_arguments", "the_target_pickles"):
        law_called(LAWS["components"], law)(some(kind="environments", target="wrong_environments:Right", config=None))
        law_called(LAWS["components"], law)(some(kind="architectures", target="wrong_architectures:Wrong.build"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right", "observer", "wrapping", "plays_right"])
@pytest.mark.parametrize("law", laws_in(dist), ids=lambda law: law.name)
def test_a_right_dist_keeps_the_law(law: Law, name: str, site: Site) -> None:
    of_wrappers, of_players = law.name == "wrappers_keep_the_interface", law.name in vars(players)
    is_for_others = (of_wrappers and name != "wrapping") or (of_players and name != "plays_right")
    assert_kept(law, DISTS[name].install(site), but=[law.name] * is_for_others)


@pytest.mark.parametrize("law", laws_in(LAWS["architectures"]), ids=lambda law: law.name)
def test_every_law_of_architectures_applies_to_those_of_the_core(law: Law) -> None:
    # That they keep them, as they are without options, is seen in test_own_packages.py.
    assert law.when(installed("architectures", "rlcore-transformers:causal_lm"))
    assert law.when(installed("architectures", "rlcore-transformers:seq2seq_lm")) == (law.name != FROZEN)


@pytest.mark.usefixtures("wrong_site")
def test_laws_hold_in_an_environment_with_strict_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_STRICT_PLUGINS", "1")
    law_called(loggers, "close_releases_files_and_threads")(installed("loggers", "acme-wrong:right"))
