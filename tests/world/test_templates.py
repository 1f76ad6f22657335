"""Templates and end tokens as models are published with them: turns end with one token, at which sampling stops."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest
import torch
from chat_turns import MARKED, TALK, assistant, dialogue, runs_of, sampled_from, tokenizer_for, user
from template_families import CHATML_TOKENS, FAMILIES, Family
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig
from transformers.utils import chat_template_utils

import rlcore
from rlcore.checkpoints import fingerprints
from rlcore.errors import ConfigError, DataError
from rlcore.plugins.registry import all_registries
from rlcore.settings import DataConfig
from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import build_sequence_scorer, build_step_scorer
from rlcore_testing.small import EOS, PAD, make_bart, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.data.chat import Chat
from rlcore_transformers.data.turns import tokenise_chats
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig

NEW = 28  # "!"


@pytest.fixture
def folder(tmp_path):
    def save(model):
        model.save_pretrained(tmp_path / "model")
        make_tokenizer().save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def with_eos(token):
    tokenizer = make_tokenizer()
    tokenizer.eos_token = token
    return tokenizer


def ids_in(folder, file, name="eos_token_id"):
    return json.loads((folder / file).read_text()).get(name)


STATED = {"eos_token": "!"}
LORA = {"type": "lora", "r": 2}
ARCHITECTURES = {
    "gpt2": (make_gpt2, build_causal_lm, CausalLMConfig(), [NEW, EOS]),
    "llama": (make_llama, build_causal_lm, CausalLMConfig(), [NEW, EOS]),
    "t5": (make_t5, build_seq2seq_lm, Seq2SeqLMConfig(), NEW),
    "bart": (make_bart, build_seq2seq_lm, Seq2SeqLMConfig(), NEW),
    "scorer": (make_gpt2, build_sequence_scorer, SequenceScorerConfig(), [NEW, EOS]),
    "step scorer": (make_llama, build_step_scorer, SequenceScorerConfig(), [NEW, EOS]),
}
"""What makes a model, what builds it, its options, and EOS in the configuration of its exports."""


@pytest.mark.parametrize(
    "name", [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_checkpoints_and_exports_end_texts_where_the_run_does(folder, tmp_path, name):
    make, build, options, expected = ARCHITECTURES[name]
    learner = build(folder(make()), options, tokenizer=STATED)
    for write in (learner.save_pretrained, learner.export, learner.save_start):
        place = tmp_path / write.__name__
        place.mkdir()
        write(place)
        assert ids_in(place, "config.json") == expected
        if "scorer" not in name:  # which generate nothing
            assert ids_in(place, "generation_config.json") == [NEW, EOS]
            assert learner.eos_token_ids == (NEW, EOS)
        again = build(str(place), options)  # with the tokenizer of the export
        assert again.tokenizer.eos_token == "!"
        assert again.model.config.eos_token_id == expected


def test_plain_transformers_stops_at_the_new_token_of_an_export(folder, tmp_path):
    policy = build_causal_lm(folder(make_gpt2()), CausalLMConfig(), tokenizer=STATED)
    hidden = policy.model(torch.tensor([[0]]), output_hidden_states=True).hidden_states[-1][0, 0].detach()
    policy.model.get_output_embeddings().weight.data[NEW] = 1000 * hidden  # the likeliest token after token 0
    policy.export(tmp_path / "out")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generate(
        torch.tensor([[0]]), max_new_tokens=5, do_sample=False
    )
    assert found[0].tolist() == [0, NEW]


@pytest.mark.parametrize("given", [STATED, with_eos("!"), "path"], ids=["option", "object", "path"])
def test_each_way_to_change_a_tokenizer_changes_the_configuration(folder, tmp_path, given):
    if given == "path":
        with_eos("!").save_pretrained(tmp_path / "other")
        given = str(tmp_path / "other")
    for model in (make_gpt2(), folder(make_gpt2())):
        if given is STATED and not isinstance(model, str):
            continue  # a model in memory comes without a tokenizer
        policy = build_causal_lm(model, CausalLMConfig(), tokenizer=given)
        assert policy.model.config.eos_token_id == policy.model.generation_config.eos_token_id == [NEW, EOS]


@pytest.mark.slow
def test_an_adapter_states_where_texts_end_beside_it_and_in_its_merged_export(folder, tmp_path):
    policy = build_causal_lm(folder(make_llama()), CausalLMConfig(peft=LORA), tokenizer=STATED)
    policy.save_pretrained(tmp_path / "checkpoint")
    assert GenerationConfig.from_pretrained(tmp_path / "checkpoint").eos_token_id == [NEW, EOS]
    assert not (tmp_path / "checkpoint/config.json").exists()
    policy.export(tmp_path / "export")
    assert ids_in(tmp_path / "export", "config.json") == [NEW, EOS]
    assert ids_in(tmp_path / "export", "generation_config.json") == [NEW, EOS]


@pytest.mark.parametrize(
    ("stated", "config", "generation"),
    [
        ({}, (EOS, EOS, PAD), (EOS, EOS, PAD)),
        ({"bos_token": "a"}, (0, EOS, PAD), (0, EOS, PAD)),
        ({"pad_token": "b"}, (EOS, EOS, 1), (EOS, EOS, 1)),
        ({"eos_token": "c", "pad_token": "c"}, (EOS, [2, EOS], 2), (EOS, [2, EOS], 2)),
        ({"eos_token": "</s>"}, (EOS, EOS, PAD), (EOS, EOS, PAD)),  # as it was
    ],
)  # fmt: skip
def test_every_special_token_that_is_stated_is_carried_over(folder, stated, config, generation):
    model = build_causal_lm(folder(make_gpt2()), CausalLMConfig(), tokenizer=stated or None).model
    for each, expected in ((model.config, config), (model.generation_config, generation)):
        assert (each.bos_token_id, each.eos_token_id, each.pad_token_id) == expected


def test_tokens_that_are_there_stay_as_they_are(folder):
    model = make_gpt2()
    model.config.pad_token_id = None
    model.config.eos_token_id = model.generation_config.eos_token_id = [7, EOS]  # such as those of Llama 3
    model.generation_config.pad_token_id = None
    built = build_causal_lm(folder(model), CausalLMConfig()).model
    assert built.config.eos_token_id == built.generation_config.eos_token_id == [7, EOS]
    assert built.config.pad_token_id is None  # the tokenizer's own is not an option of the run
    other = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer(pad_is_eos=True)).model
    assert other.config.pad_token_id == PAD  # padding by EOS tells nothing


def test_a_model_that_is_built_twice_has_each_token_once(folder):
    model = make_gpt2()
    for _ in range(2):
        build_causal_lm(model, CausalLMConfig(), tokenizer=with_eos("!"))
    assert isinstance(model.config, PretrainedConfig)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == [NEW, EOS]


# Where turns end

# The end mark and a line break inside the marked text.
BREAK = MARKED.replace("<|im_end|>{% endgeneration %}{%", "<|im_end|>\n{% endgeneration %}{%").replace(
    "<|im_end|>{% endif %}{{ '\n' }}", "<|im_end|>\n{% endif %}"
)
# The marked text ends before the end mark, or before a line break and the end mark.
OUTSIDE = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
BEHIND = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}{{ '\n' }}<|im_end|>")
# A turn ends where the next speaker's begins, and calls of tools where their results do.
NEXT_ROLE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}\n{{ c.function.arguments | tojson }}\n"
    "</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NEXT_ROLE_TOKENS = (
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>",
)  # fmt: skip
# Two end marks, of the answer and of the turn; or one of them twice, perhaps only at the end of all.
TWO = (
    "{% for m in messages %}<|turn|><|{{ m.role }}|>{% if m.role == 'assistant' %}<|start|>{{ m.content }}<|end|>"
    "{% else %}{{ m.content }}{% endif %}<|end_turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|><|assistant|><|start|>{% endif %}"
)
TWICE = TWO.replace("<|end|>", "<|end_turn|>")
TWICE_AT_THE_END = TWO.replace("<|end|>", "").replace(
    "{% if add_g", "{% if not add_generation_prompt %}<|end_turn|>{% endif %}{% if add_g"
)
TWO_TOKENS = ("<|turn|>", "<|start|>", "<|end|>", "<|end_turn|>", "<|user|>", "<|assistant|>")

STOPS = ["<|eos|>", "<|user|>", "<|observation|>"]
ENDS = {
    # template, special tokens, tokens at which sampling stops, and what trained turns end with
    "marked with a break": (BREAK, CHATML_TOKENS, ["<|im_end|>"], "<|im_end|>"),
    "marked with a break, no stop": (BREAK, CHATML_TOKENS, ["<|eos|>"], "<|im_end|>"),
    "marked before its end": (OUTSIDE, CHATML_TOKENS, ["<|im_end|>"], "<|im_end|>"),
    "marked before a break": (BEHIND, CHATML_TOKENS, ["<|im_end|>"], "\n<|im_end|>"),
    "the next role": (NEXT_ROLE, NEXT_ROLE_TOKENS, STOPS, "<|user|>"),
    "the next role, no stop": (NEXT_ROLE, NEXT_ROLE_TOKENS, ["<|eos|>"], ""),  # but for the last turn of a sample
    "two marks, one stop": (TWO, TWO_TOKENS, ["<|end_turn|>"], "<|end|><|end_turn|>"),
    "two marks, two stops": (TWO, TWO_TOKENS, ["<|end|>", "<|end_turn|>"], "<|end|>"),
    "a mark twice": (TWICE, TWO_TOKENS, ["<|end_turn|>"], "<|end_turn|>"),
    "a mark twice at the end": (TWICE_AT_THE_END, TWO_TOKENS, ["<|end_turn|>"], "<|end_turn|>"),
}


def trained(tokenizer, messages, ends, *, turns, **options):
    """Return the text of each run of trained tokens."""
    data = DataConfig(turns=turns, end_token_ids=tokenizer.convert_tokens_to_ids(ends), **options)
    (samples,) = tokenise_chats(tokenizer, [Chat("row", messages)], data)
    return [text for sample in samples for text in runs_of(*sample, tokenizer)]


@pytest.mark.parametrize("turns", ["joint", "each"])
@pytest.mark.parametrize("name", ENDS)
def test_a_trained_turn_ends_with_one_token_at_which_sampling_stops(byte_tokenizer, name, turns):
    template, special, ends, closing = ENDS[name]
    tokenizer = tokenizer_for(byte_tokenizer, Family(template, special, ""))
    last = closing or "<|eos|>"
    first = last if turns == "each" else closing
    assert trained(tokenizer, dialogue(2), ends, turns=turns) == [f"because .{first}", f"the\nmat{last}"]
    assert trained(tokenizer, dialogue(1), ends, turns=turns) == [f"because .{last}"]
    assert sum(last.count(end) for end in ends) == last.endswith(tuple(ends))


@pytest.mark.parametrize("name", ENDS)
def test_every_turn_of_a_long_conversation_ends_as_those_of_short_ones(byte_tokenizer, name):
    template, special, ends, closing = ENDS[name]
    tokenizer = tokenizer_for(byte_tokenizer, Family(template, special, ""))
    talk = [message for i in range(12) for message in (user(f"why {i} ?"), assistant(f"because {i}"))]
    expected = [f"because {i}{closing}" for i in range(12)]
    expected[-1] = f"because 11{closing or '<|eos|>'}"
    assert trained(tokenizer, talk, ends, turns="joint") == expected


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.opens_thought])
def test_families_end_every_turn_with_one_token_at_which_their_sampling_stops(byte_tokenizer, name):
    family = FAMILIES[name]
    tokenizer = tokenizer_for(byte_tokenizer, family)
    ends = [token for token in (*family.special, "<|eos|>") if family.end.strip() == token]
    assert len(ends) == 1
    for text in trained(tokenizer, dialogue(2), ends, turns="each"):
        assert text.endswith(ends[0])
        assert text.count(ends[0]) == 1


def test_calls_of_tools_end_with_the_mark_of_their_results(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, Family(NEXT_ROLE, NEXT_ROLE_TOKENS, ""))
    call = '<tool_call>add\n{"a": 1}\n</tool_call><|observation|>'
    for turns in ("joint", "each"):
        assert trained(tokenizer, TALK, STOPS, turns=turns) == [call, "because .<|user|>"]
        assert trained(tokenizer, TALK[:2], STOPS, turns=turns) == [call]
        bare = trained(tokenizer, TALK[:2], STOPS, turns=turns, append_eos=False)
        assert bare == [call.removesuffix("<|observation|>")]
    texts = trained(tokenizer, [*TALK, user("?"), assistant("the cat")], STOPS, turns="joint")
    assert texts == [call, "because .<|user|>", "the cat<|user|>"]
    long = [*dialogue(2), *TALK] * 4
    assert trained(tokenizer, long, STOPS, turns="joint") == trained(tokenizer, long, STOPS, turns="each")


def test_the_prompt_of_a_turn_that_a_mark_ends_is_that_of_sampling(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, Family(NEXT_ROLE, NEXT_ROLE_TOKENS, ""))
    data = DataConfig(turns="each", end_token_ids=tokenizer.convert_tokens_to_ids(["<|user|>"]))
    (samples,) = tokenise_chats(tokenizer, [Chat("row", dialogue(2))], data)
    for i, (tokens, mask) in zip((1, 3), samples, strict=True):
        prompt = sampled_from(tokenizer, dialogue(2)[:i])
        assert tokens[: mask.index(True)] == prompt


# An empty thought in the prompt, unless thinking is on, but none in the rendering of an answer.
EMPTY_THOUGHT = (
    "{% if OPTION is defined and OPTION %}<|turn>system\n<|think|><turn|>\n{% endif %}"
    "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n"
    "{% if not (OPTION is defined and OPTION) %}<|channel>thought\n<channel|>{% endif %}{% endif %}"
)
THOUGHT_TOKENS = ("<|turn>", "<turn|>", "<|think|>", "<|channel>", "<channel|>")


@pytest.mark.parametrize("option", ["enable_thinking", "thinking"])
@pytest.mark.parametrize("turns", ["joint", "each"])
def test_the_hint_names_the_option_with_which_the_prompt_begins_the_answer(byte_tokenizer, option, turns):
    template = EMPTY_THOUGHT.replace("OPTION", option)
    tokenizer = tokenizer_for(byte_tokenizer, Family(template, THOUGHT_TOKENS, ""))
    with pytest.raises(
        DataError, match=rf"With data\.chat_template_options=\{{{option}: true\}} the prompt begins this"
    ):
        trained(tokenizer, dialogue(1), ["<turn|>"], turns=turns)
    chat = Chat("row", dialogue(1), template={option: True})
    ((tokens, mask),) = tokenise_chats(tokenizer, [chat], DataConfig(turns=turns))[0]
    assert runs_of(tokens, mask, tokenizer) == ["because .<turn|>"]


def test_the_hint_names_no_option_where_none_helps(byte_tokenizer):
    template = EMPTY_THOUGHT.replace("OPTION is defined and OPTION", "false")
    tokenizer = tokenizer_for(byte_tokenizer, Family(template, THOUGHT_TOKENS, ""))
    with pytest.raises(
        DataError, match=r"If the prompt begins a thought, write the thinking into the message; or change"
    ):
        trained(tokenizer, dialogue(1), ["<turn|>"], turns="each")


# The warning at start

CHATML = FAMILIES["chatml"]
PAIR = {"prompt": dialogue(1)[:1], "chosen": dialogue(1)[1:], "rejected": [assistant("no")]}
TRAINERS = {
    "sft": ({"samples": [{"messages": dialogue(2)}, {"messages": dialogue(1)}]}, "samples"),
    "dpo": ({"samples": [PAIR]}, "samples"),
    "ppo": ({"prompts": [{"prompt": dialogue(1)[:1]}], "reward_fn": lambda outputs: [0.0] * len(outputs)}, "prompts"),
}
"""What each trainer reads, and the option that the warning names."""


def start(make_trainer, capsys, name, *, tokenizer, inputs=None, **sections):
    """Return the warnings on ends of turns with which a run starts."""
    model = make_gpt2(vocab=len(tokenizer))
    sections = {"run": {"check_functions": False}, **sections}
    make_trainer(name, model, tokenizer=tokenizer, inputs=inputs or TRAINERS[name][0], sections=sections)
    return [line for line in capsys.readouterr().err.splitlines() if "trained turns end with" in line]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "sft" else pytest.mark.slow) for name in TRAINERS]
)
def test_a_run_whose_turns_end_where_sampling_goes_on_starts_with_a_warning(make_trainer, capsys, byte_tokenizer, name):
    tokenizer = tokenizer_for(byte_tokenizer, CHATML)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (line,) = start(make_trainer, capsys, name, tokenizer=tokenizer)
    assert (
        f"{TRAINERS[name][1]}: trained turns end with '<|im_end|>', at which sampling does not stop: set "
        f"model.tokenizer.eos_token to '<|im_end|>', or add {end} to gen.eos_token_ids" in line
    )
    tokenizer = tokenizer_for(byte_tokenizer, CHATML)
    assert start(make_trainer, capsys, name, tokenizer=tokenizer, gen={"eos_token_ids": [end]}) == []
    tokenizer.eos_token = "<|im_end|>"
    assert start(make_trainer, capsys, name, tokenizer=tokenizer) == []


def test_other_demonstrations_start_without_a_warning(make_trainer, capsys, byte_tokenizer):
    for samples in (["the cat"], [["why ?", "the cat"]], [{"prompt": "why ?", "completion": "the cat"}]):
        tokenizer = tokenizer_for(byte_tokenizer, CHATML)
        assert start(make_trainer, capsys, "sft", tokenizer=tokenizer, inputs={"samples": samples}) == []
    tokenizer = tokenizer_for(byte_tokenizer, CHATML)
    assert start(make_trainer, capsys, "sft", tokenizer=tokenizer, data={"append_eos": False}) == []


def test_marked_text_without_an_end_is_named(make_trainer, capsys, byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, Family(OUTSIDE, CHATML_TOKENS, ""))
    (line,) = start(make_trainer, capsys, "sft", tokenizer=tokenizer)
    assert re.search(r"trained turns end with '.*', at which sampling does not stop: a chat template ends turns", line)


def test_a_stream_is_checked_at_its_first_rows(make_trainer, capsys, byte_tokenizer, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text((json.dumps({"messages": dialogue(1)}) + "\n") * 20)
    lines = start(
        make_trainer, capsys, "sft", tokenizer=tokenizer_for(byte_tokenizer, CHATML), inputs={"samples": str(file)},
        data={"streaming": True},
    )  # fmt: skip
    assert len(lines) == 1
    assert "samples: trained turns end with '<|im_end|>'" in lines[0]


# Templates that render the time.

DAY = "{{ strftime_now('%d %b %Y') }}"
DATED = CHATML.template.replace("{% for", f"Today is {DAY}.\n{{% for", 1)
SETTABLE = "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}" + (
    CHATML.template.replace("{% for", "Today is {{ date_string }}.\n{% for", 1)
)


class Noon(datetime):
    """The clock of templates and of the run, which stands at a given day."""

    day = 1

    @classmethod
    def now(cls, tz=None):
        return datetime(2026, 7, cls.day, 12, tzinfo=tz)


@pytest.mark.slow
@pytest.mark.parametrize("template", [DATED, SETTABLE])
def test_a_run_that_resumes_on_another_day_names_the_time_and_not_the_file(
    byte_tokenizer, tmp_path, monkeypatch, template
):
    for module in (chat_template_utils, fingerprints):
        monkeypatch.setattr(module, "datetime", Noon)
    tokenizer = tokenizer_for(byte_tokenizer, Family(template, CHATML_TOKENS, ""))
    tokenizer.eos_token = "<|im_end|>"

    def train(day, steps, **more):
        monkeypatch.setattr(Noon, "day", day)
        return rlcore.train(
            make_gpt2(vocab=len(tokenizer)), tokenizer=tokenizer, samples=[{"messages": dialogue(1)}] * 4,
            trainer={"name": "sft", "batch_size": 2}, loggers=[],
            run={"root": str(tmp_path), "name": "dated", "steps": steps, "resume": "auto"}, **more,
        )  # fmt: skip

    train(1, 1)
    train(1, 2)
    with pytest.raises(ConfigError) as caught:
        train(2, 3)
    assert "data.samples was '4 rows" in str(caught.value)
    assert (
        "The chat template renders the time, which was '01 Jul 2026' then and is '02 Jul 2026' now, so that "
        "data.samples may have other tokens though the data is the same" in str(caught.value)
    )
    fixed = "(it is the variable date_string: data.chat_template_options={date_string: '01 Jul 2026'})"
    assert (fixed in str(caught.value)) == (template == SETTABLE)
    if template == SETTABLE:
        train(2, 3, data={"chat_template_options": {"date_string": "01 Jul 2026"}})


# Exports of every trainer.

WRITTEN = {"samples": [{"messages": dialogue(1)}] * 4}
PROMPTS = {"prompts": [{"prompt": dialogue(1)[:1]}] * 4}
REWARDED = {**PROMPTS, "reward_fn": lambda outputs: [float(len(output)) for output in outputs]}
STEPPED = {"samples": [{"prompt": "why ?", "completions": ["the cat"], "labels": [True]}] * 4}
LABELLED = [{"prompt": PAIR["prompt"], "completion": PAIR["chosen"], "label": i % 2 == 0} for i in range(4)]
RUNS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "sft": ({"name": "sft"}, WRITTEN),
    "dpo": ({"name": "dpo"}, {"samples": [PAIR] * 4}),
    "kto": ({"name": "dpo", "loss": "kto"}, {"samples": LABELLED}),
    "online_dpo": ({"name": "online_dpo"}, REWARDED),
    "reward": ({"name": "reward"}, {"samples": [PAIR] * 4}),
    "process_reward": ({"name": "process_reward"}, STEPPED),
    "ilql": ({"name": "ilql"}, {**WRITTEN, "rewards": [1.0, 0.0, 0.5, 0.2]}),
    "distill": ({"name": "distill", "teacher": "model"}, WRITTEN),
    "distill_prompts": ({"name": "distill_prompts", "teacher": "model"}, PROMPTS),
    "ppo": ({"name": "ppo"}, REWARDED),
    "grpo": ({"name": "grpo"}, REWARDED),
    "reinforce": ({"name": "reinforce"}, REWARDED),
    "rft": ({"name": "rft"}, REWARDED),
}
"""The options of each trainer and its inputs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_checkpoints_and_exports_of_every_trainer_end_texts_where_its_turns_end(byte_tokenizer, tmp_path, name):
    tokenizer = tokenizer_for(byte_tokenizer, CHATML)
    make_llama(vocab=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options, inputs = RUNS[name]
    options = {key: str(tmp_path / value) if key == "teacher" else value for key, value in options.items()}
    rlcore.train(
        str(tmp_path / "model"), tokenizer={"path": str(tmp_path / "model"), "eos_token": "<|im_end|>"}, loggers=[],
        trainer=options, gen={"max_new_tokens": 4}, checkpoint={"every": 1},
        run={"root": str(tmp_path), "name": "run", "steps": 1}, **inputs,
    )  # fmt: skip
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for folder in (tmp_path / "run" / "model", tmp_path / "run" / "checkpoints" / "00000001" / "model"):
        assert ids_in(folder, "config.json") == [end, EOS]
        if (folder / "generation_config.json").exists():  # a model that gives scores has none
            assert ids_in(folder, "generation_config.json") == [end, EOS]
        assert (folder / "generation_config.json").exists() == ("reward" not in name)


def test_the_table_has_every_trainer_of_texts() -> None:
    registered = {entry.name for entry in all_registries().trainers}
    assert {options["name"] for options, _ in RUNS.values()} == registered - {"ddpo"}
