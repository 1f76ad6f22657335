"""Tests of the reward `reward_model`: its scores are those of plain transformers on the text as it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
)

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, ModelError
from rlcore.rewards import Rewards
from rlcore.settings import DataConfig, TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import Prompt
from rlcore_reward.config import RewardModelConfig, SequenceScorerConfig
from rlcore_reward.reward_model import RewardModel
from rlcore_reward.scorer import build_sequence_scorer
from rlcore_testing.small import EOS, LETTERS, PAD, PROMPTS, make_gpt2, make_llama, make_tokenizer
from rlcore_transformers.preferences.preferences import build_preferences

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }} {{ m.content }}"
    "{% if not loop.last or not continue_final_message %}</s>{% endif %}{% endfor %}"
)
OTHER = "{% for m in messages %}{{ m.content }}!{% endfor %}"
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Save a reward model with a chat template of its own."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    build_sequence_scorer(make_llama(), SequenceScorerConfig(), tokenizer=tokenizer).export(tmp_path / "rm")
    return tmp_path / "rm"


def ids(text: str) -> list[int]:
    return [{"|": EOS, "#": PAD}[each] if each in "|#" else LETTERS.index(each) for each in text]


@torch.no_grad()
def plain(folder: Path, text: str) -> float:
    """Return the score of a text, in which | is EOS and # the padding token, in plain transformers."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return float(model(torch.tensor([ids(text)])).logits[0, 0])


def score(reward_fn: Any, prompts: list[Prompt], outputs: list[str], ended: list[bool]) -> list[float | None]:
    tokens = [
        [*(LETTERS.index(each) for each in output), *([EOS] if end else [])]
        for output, end in zip(outputs, ended, strict=True)
    ]
    rewards = Rewards.build(reward_fn)
    batch = rewards(prompts, outputs, tokenizer=make_tokenizer(), output_tokens=tokens)
    return next(iter(batch.by_name.values()))


def test_eos_is_added_where_the_policy_ended_its_answer(folder: Path) -> None:
    """NeMo-Aligner #231 hard-codes EOS off at serving."""
    prompts = [Prompt("ab", ()), Prompt("ab", ())]
    seen = score({"fn": "reward_model", "path": str(folder)}, prompts, ["cd", "cd"], [True, False])
    assert seen == pytest.approx([plain(folder, "abcd|"), plain(folder, "abcd")], abs=1e-5)


def test_a_model_in_memory_without_a_tokenizer_is_refused_with_the_form_that_has_one() -> None:
    config = make_gpt2().config
    config.num_labels = 1
    model = GPT2ForSequenceClassification(config)
    with pytest.raises(
        ModelError, match=r"comes without a tokenizer; .* a reward has it in \{fn: reward_model, path: "
    ):
        Rewards.build(model)
    found = Rewards.build({"fn": model, "tokenizer": make_tokenizer()})
    assert found.names == ("reward_model",)


def test_padding_and_tokens_that_stand_for_something_else_do_not_end_an_answer(folder: Path) -> None:
    policy = make_tokenizer()
    policy.add_special_tokens({"additional_special_tokens": ["z"]})  # such as the token of an image
    rewards = Rewards.build({"fn": "reward_model", "path": str(folder)})
    tokens = [[*ids("cd"), last] for last in (EOS, PAD, LETTERS.index("z"))]
    found = rewards([Prompt("ab", ())] * 3, ["cd"] * 3, tokenizer=policy, output_tokens=tokens)
    open_end = plain(folder, "abcd")
    assert {LETTERS.index("z"), PAD} < {*policy.all_special_ids}
    assert found.totals == pytest.approx([plain(folder, "abcd|"), open_end, open_end], abs=1e-5)
    assert abs(open_end - plain(folder, "abcd|")) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gen", "evaluated", "expected"),
    [({}, {}, {EOS, 7}), ({"eos_token_ids": [5]}, {}, {5}), ({}, {"eos_token_ids": [[5], [6]]}, {EOS, 7, 5, 6})],
    ids=["the policy's", "of the sampling", "of evaluations"],
)
def test_the_tokens_that_end_an_answer_are_those_of_the_run(
    tmp_path: Path, folder: Path, gen: Any, evaluated: Any, expected: set[int]
) -> None:
    policy = make_gpt2()
    policy.generation_config.eos_token_id = [EOS, 7]  # 7 is no special token of the tokenizer
    settings = {
        "trainer": {"name": "ppo", "rollouts": 4, "batch_size": 4}, "loggers": [], "gen": {"max_new_tokens": 3, **gen},
        "eval": {"gen": evaluated}, "run": {"root": str(tmp_path), "steps": 1},
    }  # fmt: skip
    given = Inputs(model=policy, tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=str(folder))
    run = assemble(structure(TrainConfig, settings, where="test"), given, "test").run
    texts = ["abcd|" if last in expected else "abcd" for last in range(EOS + 1)]
    call = run.data.reward_fn.functions[0].call
    found = call(["ab"] * len(texts), ["cd"] * len(texts), [None] * len(texts), [[2, i] for i in range(len(texts))])
    assert found == pytest.approx([plain(folder, text) for text in texts], abs=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
def test_scores_are_those_of_the_weights_in_the_chosen_dtype(folder: Path, dtype: str) -> None:
    reward_fn = {"name": "reward_model", "path": str(folder), "batch_size": 4, "dtype": dtype, "device": "cpu"}
    seen = score(reward_fn, [Prompt("ab", ())] * 2, ["cd", "cdefg"], [True, True])
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        expected = [float(model(torch.tensor([ids(text)])).logits[0, 0]) for text in ("abcd|", "abcdefg|")]
    assert seen == pytest.approx(expected, abs=1e-6 if dtype == "auto" else 2e-2)  # two steps of bfloat16
    if dtype != "auto":
        reward = RewardModel(RewardModelConfig(path=str(folder), dtype=dtype))  # type: ignore[arg-type]
        assert {each.dtype for each in reward.scorer.module.parameters()} == {getattr(torch, dtype)}


def test_conversations_are_rendered_with_the_reward_models_own_template(folder: Path) -> None:
    """TRL #6952 tokenises with the policy's tokenizer, GRM #6 writes BOS twice."""
    policy = make_tokenizer()
    policy.chat_template = OTHER
    prompts = [Prompt("hi!", (), messages=CHAT)] * 2
    seen = score({"fn": "reward_model", "path": str(folder)}, prompts, ["yes", "yes"], [True, False])
    assert seen == pytest.approx([plain(folder, "u hi|a yes|"), plain(folder, "u hi|a yes")], abs=1e-5)


def test_a_padding_token_within_a_conversation_is_not_its_end(folder: Path) -> None:
    """TRL #6952: `get_reward` reads the score before the first padding token, which a template may write in a turn."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<pad>{% endfor %}a</s>"
    reward = RewardModel(RewardModelConfig(path=str(folder), tokenizer=tokenizer))
    row = reward.encode("", [*CHAT, {"role": "assistant", "content": "yes"}], is_ended=True)
    assert row == ids("hi#yes#a|")
    assert reward.score([row, ids("z" * 12)])[0] == pytest.approx(plain(folder, "hi#yes#a|"), abs=1e-5)
    assert plain(folder, "hi") != pytest.approx(plain(folder, "hi#yes#a|"), abs=1e-3)


def test_the_column_tools_reaches_the_reward_models_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for t in tools or [] %}{{ t.name }}{% endfor %}" + TEMPLATE
    tokenizer.save_pretrained(folder)
    reward = RewardModel(RewardModelConfig(path=str(folder)))
    answer = [*CHAT, {"role": "assistant", "content": "yes", "name": None}]
    assert reward.encode("", answer, is_ended=True, tools='[{"name": "ab"}]') == ids("abu hi|a yes|")


@pytest.mark.parametrize("messages", [None, [*CHAT, {"role": "assistant", "content": "yes"}]], ids=["text", "chat"])
def test_a_text_has_bos_only_once(folder: Path, messages: Any) -> None:
    """GRM #6: the template writes BOS, and the tokenizer once more; a plain text has only the tokenizer's."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="? $A", special_tokens=[("?", LETTERS.index("?"))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="?", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    reward = RewardModel(RewardModelConfig(path=str(folder), tokenizer=tokenizer))
    assert reward.encode("hiyes", messages, is_ended=True) == ids("?hiyes|")


HEADED = "{% for m in messages %}<pad>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<pad>{% endif %}"
ADDED = TEMPLATE.replace("</s>", "z ")
"""Ends turns with a token and a blank; the token is added to the tokenizer, and none that it names, as EOS is."""
TEMPLATES = {"ends its turns": TEMPLATE, "ends nothing": OTHER, "begins its turns": HEADED, "has its own end": ADDED}


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_has_the_tokens_that_it_had_in_training(folder: Path, name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATES[name]
    if name == "has its own end":
        tokenizer.add_tokens([AddedToken("z", special=True)])
        assert LETTERS.index("z") not in tokenizer.all_special_ids
    reward = RewardModel(RewardModelConfig(path=str(folder), tokenizer=tokenizer))
    answers = [[{"role": "assistant", "content": text}] for text in ("no", "yes")]
    chat = {"prompt": CHAT, "chosen": answers[0], "rejected": answers[1]}
    for row, messages in ((chat, [*CHAT, *answers[0]]), ({"prompt": "hi", "chosen": "no", "rejected": "yes"}, None)):
        (pair,) = build_preferences([row], tokenizer, DataConfig(), max_length=0)
        assert reward.encode("hino", messages, is_ended=True) == list(pair.chosen.tokens)


def test_answers_are_scored_in_batches_by_length_and_returned_in_order(folder: Path) -> None:
    outputs = ["a", "bcdefgh", "ij", "klmnop", "q", "rstu"]
    seen = score(
        {"fn": "reward_model", "path": str(folder), "batch_size": 2}, [Prompt("x", ())] * 6, outputs, [True] * 6
    )
    assert seen == pytest.approx([plain(folder, f"x{output}|") for output in outputs], abs=1e-5)


@pytest.mark.parametrize("form", ["path", "model", "weighted", "several"])
def test_a_path_or_a_model_may_stand_for_the_function(folder: Path, form: str) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    forms: dict[str, Any] = {
        "path": folder, "model": {"fn": model, "tokenizer": AutoTokenizer.from_pretrained(folder)},
        "weighted": (str(folder), 0.5),
        "several": [str(folder), {"fn": "reward_model", "path": str(folder), "weight": 2.0}],
    }  # fmt: skip
    rewards = Rewards.build(forms[form])
    batch = rewards([Prompt("ab", ())], ["c"], tokenizer=make_tokenizer(), output_tokens=[[2, EOS]])
    weight = {"path": 1.0, "model": 1.0, "weighted": 0.5, "several": 3.0}[form]
    assert batch.totals == pytest.approx([weight * plain(folder, "abc|")], abs=1e-4)
    assert rewards.names == (("reward_model", "reward_model_2") if form == "several" else ("reward_model",))


def test_a_model_in_memory_brings_its_tokenizer_by_its_name(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert score(model, [Prompt("ab", ())], ["c"], [True]) == pytest.approx([plain(folder, "abc|")], abs=1e-5)
    assert all(weight.requires_grad for weight in model.parameters()) is False


def test_a_model_that_was_saved_with_eos_as_padding_is_read_where_transformers_reads_it(tmp_path: Path) -> None:
    config = make_gpt2().config
    config.num_labels, config.pad_token_id = 1, EOS
    torch.manual_seed(0)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    make_tokenizer(pad_is_eos=True).save_pretrained(tmp_path)
    seen = score(tmp_path, [Prompt("ab", ()), Prompt("abc", ())], ["cd", "e"], [True, True])
    assert seen == pytest.approx([plain(tmp_path, "abcd|"), plain(tmp_path, "abce|")], abs=1e-5)


@pytest.mark.parametrize("limit", [0, 100])
def test_an_answer_longer_than_the_context_gets_no_reward(folder: Path, limit: int) -> None:
    reward_fn = {"fn": "reward_model", "path": str(folder), "max_length": limit}
    seen = score(reward_fn, [Prompt("ab", ())] * 2, ["c" * 70, "c"], [True, True])
    assert seen[0] is None
    assert seen[1] is not None


def test_a_model_without_a_score_head_is_refused_as_a_reward_model(tmp_path: Path, folder: Path) -> None:
    make_gpt2().save_pretrained(tmp_path / "lm")
    make_tokenizer().save_pretrained(tmp_path / "lm")
    config = make_gpt2().config
    config.num_labels = 3
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "three")
    with pytest.raises(ModelError, match="is no reward model, because it has no score head"):
        Rewards.build(tmp_path / "lm")
    with pytest.raises(ModelError, match="is a classifier with 3 labels"):
        Rewards.build(tmp_path / "three")
    with pytest.raises(ModelError, match="is no reward model"):
        Rewards.build({"fn": make_gpt2(), "tokenizer": make_tokenizer()})
    with pytest.raises(ModelError, match="there is no such folder"):
        RewardModel(RewardModelConfig(path=str(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match="name the hub id or folder"):
        Rewards.build("reward_model")
    with pytest.raises(ConfigError, match="is no device of torch"):
        RewardModel(RewardModelConfig(path=str(folder), device="gpu7"))


def test_scoring_conversations_without_a_chat_template_is_refused(tmp_path: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    reward = RewardModel(RewardModelConfig(path=str(folder), tokenizer=tokenizer))
    with pytest.raises(ModelError, match="has no chat template"):
        reward(["hi"], ["yes"], [[*CHAT, {"role": "assistant", "content": "yes"}]])


def test_ppo_trains_against_a_reward_model_and_frees_it(tmp_path: Path, folder: Path) -> None:
    result = rlcore.train(
        make_gpt2(), trainer={"name": "ppo", "rollouts": 8, "batch_size": 8, "epochs": 1}, tokenizer=make_tokenizer(),
        prompts=list(PROMPTS), reward_fn=str(folder), gen={"max_new_tokens": 6}, eval={"at_end": False}, loggers=[],
        run={"root": str(tmp_path), "steps": 2},
    )  # fmt: skip
    assert result.metrics["reward/std"] > 0
    assert result.run.data.reward_fn.functions[0].call._scorer is None
