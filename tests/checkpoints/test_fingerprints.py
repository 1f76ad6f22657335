"""Tests of fingerprints: what differs has another one, and what is the same again has the same."""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from huggingface_hub import constants
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rlcore.checkpoints.fingerprints import (
    BLOCK_BYTES,
    ELEMENTS,
    describe_function,
    describe_model,
    fingerprint_parameters,
    fingerprint_rows,
    fingerprint_table,
    fingerprint_tokenizer,
    fingerprint_weights,
)
from rlcore.types import Prompt, Sample, SampleReward
from rlcore_reward.process_trainer import SteppedSample
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.preferences.preferences import LabelledSample, Pair

PROMPTS = [Prompt("ab", (1, 2), {"label": 1}), Prompt("c", (3,), {"label": None})]
SAMPLES = [Sample((1, 2, 3), (False, True, True)), Sample((4, 5), (False, True))]


def changed(rows: list[Any], **changes: Any) -> list[Any]:
    return [rows[0], attrs.evolve(rows[1], **changes)]


@pytest.mark.parametrize(
    "rows",
    [
        PROMPTS[:1], PROMPTS[::-1], changed(PROMPTS, text="C"), changed(PROMPTS, tokens=(4,)),
        changed(PROMPTS, columns={"label": 0}), changed(PROMPTS, columns={}), [Prompt("abc", (1, 2, 3)), PROMPTS[1]],
    ],
)  # fmt: skip
def test_any_change_of_prompts_changes_their_fingerprint(rows: list[Prompt]) -> None:
    assert fingerprint_rows(rows) != fingerprint_rows(PROMPTS)


def test_the_end_of_a_text_and_the_beginning_of_its_tokens_are_not_confused() -> None:
    token = int.from_bytes(b"aaaaaaaa", sys.byteorder)
    assert fingerprint_rows([Prompt("aaaaaaaa", ())]) != fingerprint_rows([Prompt("", (token,))])


@pytest.mark.parametrize(
    "rows",
    [
        changed(SAMPLES, tokens=(4, 6)), changed(SAMPLES, action_mask=(False, False)), changed(SAMPLES, ended=False),
        [Sample((1, 2), (False, True)), Sample((3, 4, 5), (True, False, True))],
        [SampleReward((0.0, 1.0), dense=False)] * 2,
    ],
)  # fmt: skip
def test_any_change_of_samples_changes_their_fingerprint(rows: list[Any]) -> None:
    assert fingerprint_rows(rows) != fingerprint_rows(SAMPLES)


ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "pair": (
        Pair(*SAMPLES, margin=1.0, ref_logprobs=(-1.0, -2.0)),
        {
            "chosen": SAMPLES[1], "rejected": SAMPLES[0], "margin": 2.0, "is_tie": True, "ref_logprobs": (-1.0, -2.5),
        },
    ),
    "labelled": (LabelledSample(SAMPLES[0], label=True), {"sample": SAMPLES[1], "label": False}),
    "stepped": (SteppedSample(SAMPLES[0], (-100, 0, 1)), {"sample": SAMPLES[1], "labels": (-100, 1, 1)}),
    "reward": (SampleReward((0.0, 1.0), dense=False), {"tokens": (0.0, 1.5), "dense": True}),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_every_field_of_every_kind_of_row_counts(kind: str) -> None:
    row, changes = ROWS[kind]
    assert changes.keys() == {field.name for field in attrs.fields(type(row))}
    found = [fingerprint_rows([row]), *(fingerprint_rows([attrs.evolve(row, **{k: v})]) for k, v in changes.items())]
    assert len(set(found)) == 1 + len(changes)
    assert fingerprint_rows([row, row]) not in found


def test_every_part_of_the_files_of_weights_counts(tmp_path: Path) -> None:
    """Blocks of files are read at both ends and between; what is no weights does not count."""
    size = 3 * BLOCK_BYTES
    files = {"a.safetensors": bytes(size), "b.safetensors": bytes(10), "config.json": b"{}"}

    def found(changes: dict[str, bytes | None]) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, content in {**files, **changes}.items():
            if content is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        return fingerprint_weights(folder)

    def flipped(place: int) -> dict[str, bytes | None]:
        return {"a.safetensors": bytes(place) + b"x" + bytes(size - place - 1)}

    changes: list[dict[str, bytes | None]] = [
        {}, flipped(0), flipped(size // 2), flipped(size - 1), {"a.safetensors": bytes(size + 1)},
        {"b.safetensors": None}, {"b.safetensors": None, "c.safetensors": bytes(10)}, {"d.bin": b"x"},
        {"a.safetensors": files["b.safetensors"], "b.safetensors": files["a.safetensors"]},
    ]  # fmt: skip
    assert len({found(each) for each in changes}) == len(changes)
    assert found({"config.json": b"[]", "notes.txt": b"", "inner/x.safetensors": b"x"}) == found({})
    parts = {"a.safetensors": None, "b.safetensors": None}
    models = [{"unet/a.safetensors": b"x"}, {"unet/a.safetensors": b"y"}, {"vae/a.safetensors": b"x"}]
    assert len({found({**parts, **each}) for each in models}) == 3


def test_every_part_of_a_model_in_memory_counts() -> None:
    def found(name: str = "a", rows: int = 2, **changes: Any) -> str:
        model = torch.nn.Module()
        values = torch.arange(2.0 * ELEMENTS).view(rows, -1)
        values.view(-1)[changes.get("place", 0)] += changes.get("by", 0.0)
        model.register_parameter(name, torch.nn.Parameter(values.to(changes.get("dtype", torch.float32))))
        return fingerprint_parameters(model)

    changes: list[dict[str, Any]] = [
        {}, {"name": "b"}, {"rows": 4}, {"by": 1.0}, {"by": 1.0, "place": 2 * ELEMENTS - 2}, {"dtype": torch.float64},
    ]  # fmt: skip
    assert len({found(**each) for each in changes}) == len(changes)


def test_every_step_of_a_tokenizer_changes_its_fingerprint() -> None:
    def found(change: Callable[[Any], Any]) -> str:
        tokenizer = make_tokenizer()
        change(tokenizer)
        return fingerprint_tokenizer(tokenizer)

    def put(name: str, step: Any) -> Callable[[Any], None]:
        return lambda tokenizer: setattr(tokenizer.backend_tokenizer, name, step)

    changes: list[Callable[[Any], Any]] = [
        lambda _: None,
        put("model", models.WordLevel({"a": 0}, unk_token="a")),
        put("normalizer", normalizers.Lowercase()),
        put("pre_tokenizer", pre_tokenizers.Digits()),
        put("post_processor", processors.TemplateProcessing(single="$A $A")),
        put("decoder", decoders.ByteLevel()),
        lambda tokenizer: setattr(tokenizer, "eos_token", "a"),
        lambda tokenizer: setattr(tokenizer, "chat_template", "{{ messages }}"),
        lambda tokenizer: tokenizer.add_tokens(["abc"]),
    ]
    assert len({found(each) for each in changes}) == len(changes)


def test_columns_may_hold_anything_and_the_order_of_a_set_does_not_count() -> None:
    rows = [[Prompt("\udc80", (7,), {"x": float("nan"), "y": torch.ones(2), "s": set(s)})] for s in ([0, 8], [8, 0])]
    assert [str(prompt.columns["s"]) for (prompt,) in rows] == ["{0, 8}", "{8, 0}"]
    one, other = map(fingerprint_rows, rows)
    assert one == other


def test_a_single_entry_of_a_logit_mask_changes_the_fingerprint() -> None:
    table = torch.eye(4).bool()
    other = table.clone()
    other[0, 3] = True
    assert fingerprint_table(table).startswith("4 x 4, sha256 ")
    assert fingerprint_table(table) != fingerprint_table(other)


FUNCTIONS = """
import functools

ONE = 1

def reward(outputs):
    return [len(output) for output in outputs]

def closed(bonus):
    calls = 0
    def inner(outputs):
        nonlocal calls
        calls += 1
        return [bonus for _ in outputs]
    return inner

class Judge:
    def __init__(self, bonus): self.bonus, self._calls = bonus, 0
    def __call__(self, outputs): return [self.bonus for _ in outputs]
    def method(self, outputs): return [self.bonus for _ in outputs]

short = lambda outputs: [-len(output) for output in outputs if output not in {"a", "b", "c"}]
partial = functools.partial(reward, bonus=1)
wrapped = functools.wraps(reward)(Judge(3))
def defaults(outputs, bonus=ONE, *, scale=ONE): return [scale * bonus for _ in outputs]

made, judge, method, key = closed(1), Judge(1), Judge(1).method, functools.partial(reward, key="sk-secret")
"""
NAMES = ["reward", "short", "partial", "wrapped", "made", "judge", "method", "key", "defaults"]
CHANGED = {
    "reward": ("[len(output) for", "[2 * len(output) for", {"reward", "partial", "wrapped", "key"}),
    "closure": ("closed(1)", "closed(2)", {"made"}),
    "inner": ("[bonus for", "[-bonus for", {"made"}),
    "lambda": ("-len(output)", "1 - len(output)", {"short"}),
    "attribute": ("Judge(1).method", "Judge(2).method", {"method"}),
    "default": ("ONE = 1", "ONE = 2", {"defaults"}),
    "argument": ("bonus=1", "bonus=2", {"partial"}),
    "secret": ("sk-secret", "sk-other", {"key"}),
    "comment": ("def reward(outputs):", "def reward( outputs ):  # a comment", set()),
    "counter": ("self._calls = bonus, 0", "self._calls = bonus, 5", {"judge"}),  # the source of its class
}


def described(folder: Path, source: str) -> dict[str, Any]:
    (folder / "judging.py").write_text(textwrap.dedent(source))
    sys.modules.pop("judging", None)
    sys.path.insert(0, str(folder))
    try:
        module = __import__("judging")
        return {name: describe_function(getattr(module, name)) for name in NAMES}
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("judging", None)


@pytest.mark.parametrize("case", CHANGED)
def test_a_function_is_another_if_its_source_or_what_is_bound_to_it_is(case: str, tmp_path: Path) -> None:
    old, new, differing = CHANGED[case]
    assert old in FUNCTIONS
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = described(tmp_path / "one", FUNCTIONS), described(tmp_path / "two", FUNCTIONS.replace(old, new))
    assert {name for name in NAMES if one[name] != two[name]} == differing
    assert re.fullmatch(r"judging:reward, source \w{16}", one["reward"])
    assert one["wrapped"] == one["reward"]
    assert one["partial"] == one["reward"].replace("reward", "reward(bonus=1)")
    assert one["method"].startswith("judging:Judge.method(bonus=1), source ")
    assert one["short"].startswith("judging:<lambda>, code ")
    assert one["defaults"].startswith("judging:defaults(bonus=1, scale=1), source ")
    assert "secret" not in str(one)


def test_calling_a_function_does_not_change_its_fingerprint() -> None:
    calls = 0

    def count(outputs: list[str]) -> list[int]:
        nonlocal calls
        calls += 1
        return [calls]

    before = describe_function(count)
    count([])
    assert describe_function(count) == before
    assert describe_function(len) == "builtins:len, no source"
    assert describe_function(str.upper).endswith(":str.upper, no source")
    assert describe_function(functools.partial(len)) == describe_function(len)


def test_the_configuration_of_a_model_counts_but_not_what_saving_changes(tmp_path: Path) -> None:
    model = make_gpt2()
    before = describe_model(model, model, None)
    model.save_pretrained(tmp_path / "model")
    assert describe_model(model, model, None) == before
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    folder = describe_model(loaded, str(tmp_path / "model"), None)
    assert (folder["config"], set(folder)) == (before["config"], {"config", "weights"})
    assert describe_model(make_gpt2(), tmp_path / "model", None) == folder
    hub = describe_model(loaded, "someone/model", None)
    assert (hub["hub_id"], hub["commit"]) == ("someone/model", None)
    other = GPT2Config.from_dict({**model.config.to_dict(), "n_head": 1})
    assert describe_model(GPT2LMHeadModel(other), None, None)["config"] != before["config"]
    with torch.no_grad():
        loaded.lm_head.weight.mul_(1.01)
    loaded.save_pretrained(tmp_path / "model")
    assert describe_model(loaded, str(tmp_path / "model"), None)["weights"] != folder["weights"]


def test_a_model_without_a_configuration_is_described_by_its_weights() -> None:
    module = nn.Linear(2, 2)
    before = describe_model(module, module, None)
    assert before == describe_model(module, module, None)
    with torch.no_grad():
        module.bias[0] += 1.0
    assert describe_model(module, module, None) != before


def test_a_mapping_that_a_module_has_as_its_configuration_counts_in_place_of_its_weights() -> None:
    module = nn.Linear(2, 2)
    module.config = {"width": 2}  # type: ignore[assignment]
    before = describe_model(module, module, None)
    assert set(before) == {"config"}
    module.config = {"width": 3}  # type: ignore[assignment]
    assert describe_model(module, module, None) != before


def test_a_tokenizer_that_states_no_vocabulary_is_described_by_its_class() -> None:
    class Bytes:
        def decode(self, token_ids: list[list[int]], **_: Any) -> list[str]:
            return [bytes(ids).decode() for ids in token_ids]

    assert fingerprint_tokenizer(Bytes()).endswith("Bytes")
    assert fingerprint_tokenizer(Bytes()) != fingerprint_tokenizer(make_tokenizer())


def test_a_tokenizer_is_the_same_after_saving_and_use_and_another_with_another_token(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    before = fingerprint_tokenizer(tokenizer)
    tokenizer(["ab", "cde"], truncation=True, max_length=2, padding=True)
    assert fingerprint_tokenizer(tokenizer) == before
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert fingerprint_tokenizer(PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")) == before
    tokenizer.chat_template = "{{ messages }}"
    assert fingerprint_tokenizer(tokenizer) != before
    other = make_tokenizer()
    other.add_tokens(["abc"])
    assert fingerprint_tokenizer(other) != before
    assert fingerprint_tokenizer(make_tokenizer(pad_is_eos=True)) != before


def test_the_commit_of_a_model_of_the_hub_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    seen = []
    for commit in ("a" * 40, "b" * 40):
        repository = tmp_path / "models--some--model"
        for part in (make_gpt2(), make_tokenizer()):
            part.save_pretrained(repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        policy = build_causal_lm("some/model", CausalLMConfig())
        seen.append(describe_model(policy.module, "some/model", None))
    assert [about["commit"] for about in seen] == ["a" * 40, "b" * 40]
    assert seen[0] | {"commit": "b" * 40} == seen[1]
    assert describe_model(policy.module, "some/model", "a" * 40)["commit"] == "a" * 40
