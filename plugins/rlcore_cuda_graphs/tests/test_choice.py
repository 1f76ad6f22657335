"""Tests of decoder selection: static decoding where it is exact, ordinary decoding elsewhere, the reason logged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import transformers as hf
from static_making import (
    FAMILIES,
    RAGGED,
    SHAPE,
    Recorder,
    Tape,
    assert_same,
    make_causal,
    make_static,
    ordinary,
    plain,
    run,
    static,
)
from torch import Tensor, nn

import rlcore
from rlcore.errors import ConfigError
from rlcore.plugins.registry import all_registries
from rlcore_cuda_graphs.cache import bucket_size
from rlcore_cuda_graphs.choice import find_refusal
from rlcore_cuda_graphs.decoding import COLUMNS, StaticDecoder
from rlcore_cuda_graphs.graphs import HostReads
from rlcore_cuda_graphs.plugin import with_static_decoding
from rlcore_cuda_graphs.steps import Workspace
from rlcore_testing.small import make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.decoding import static as seam
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder
from rlcore_transformers.models.model_options import CausalLMConfig

REFUSED = {
    "mistral, short window": (hf.MistralConfig(**SHAPE, sliding_window=5), "window is shorter than"),
    "lfm2, convolutions": (hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
                           "holds something else"),
    "mamba, no attention": (hf.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4),
                            "holds something else"),
    "bloom, no positions": (hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2), "ValueError"),
    "experts chosen on the host": (hf.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2,
                                                    experts_implementation="eager"), "reads numbers back"),
}  # fmt: skip


def test_the_readme_gives_the_size_of_buckets() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"columns in multiples of {COLUMNS}" in " ".join(readme.split())


def test_buckets_are_never_too_small_and_waste_little() -> None:
    for size in range(1, 2000):
        rows, columns = bucket_size(size, 1), bucket_size(size, 64)
        assert size <= rows <= 1.25 * size
        assert columns >= size
        assert columns % 64 == 0
    assert len({bucket_size(size, 1) for size in range(65, 129)}) == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_no_step_reads_back_from_the_device(name: str) -> None:
    model = make_causal(FAMILIES[name])
    decoder = static(make_static(), model, RAGGED, 4)
    decoder.start()
    with HostReads() as reads:
        decoder.step(torch.arange(5))
        decoder.step(torch.arange(5))
    assert reads.names == []


def test_a_read_from_the_device_is_detected() -> None:
    numbers, mask = torch.arange(4), torch.tensor([True, False, True, False])
    reading: list[Callable[[], object]] = [
        numbers[0].item, lambda: int(numbers.sum()), lambda: bool(numbers.any()), mask.nonzero,
        lambda: numbers[mask], lambda: numbers.masked_select(mask), lambda: torch.equal(numbers, numbers),
        lambda: numbers.clone().__setitem__(mask, numbers[:2]), numbers.unique,
        lambda: numbers.repeat_interleave(numbers),
    ]  # fmt: skip
    for read in reading:
        with HostReads() as reads:
            read()
        assert len(reads.names) > 0
    with HostReads() as reads:
        numbers[torch.tensor([1, 0])], numbers.masked_fill(mask, 0), numbers.clone().__setitem__(mask, 0)
        torch.where(mask, numbers, 0), numbers.sort(), numbers.clone().index_copy_(0, numbers, numbers)
    assert reads.names == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_decode_statically_decodes_normally_and_the_reason_is_logged(
    name: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    config, reason = REFUSED[name]
    model, kept = make_causal(config), make_static(Recorder())
    for _ in range(2):
        assert isinstance(static(kept, model, RAGGED, 4), CausalDecoder)
    said = capsys.readouterr().err
    assert said.count("static decoding disabled") == 1
    assert reason in said


def test_a_model_whose_replayed_outputs_differ_is_refused() -> None:
    model = make_causal(FAMILIES["gpt2"])
    counted = [0]

    def drift(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        counted[0] += args[0].shape[1] == 1
        return out + 0.01 * counted[0]

    assert find_refusal(model, nullcontext, ordinary=plain, make_graph=Recorder().make) is None
    hook = model.lm_head.register_forward_hook(drift)
    refusal = find_refusal(model, nullcontext, ordinary=plain, make_graph=Recorder().make)
    hook.remove()
    assert refusal is not None
    assert "logits differ" in refusal


def test_a_step_that_cannot_be_recorded_gives_a_reason_to_refuse_and_raises_nothing() -> None:
    class Broken(Tape):
        def capture(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
            call()
            raise RuntimeError("operation not permitted when stream is capturing")

    model = make_causal(FAMILIES["gpt2"])
    refusal = find_refusal(model, nullcontext, ordinary=plain, make_graph=Broken)
    assert refusal is not None
    assert "not permitted" in refusal
    workspace = Workspace(model, nullcontext, Broken)
    got = run(lambda *given: StaticDecoder(*given[:2], max_new_tokens=given[2], lend=lambda _: workspace), model)
    assert_same(got, run(ordinary, model))


def test_a_model_in_training_mode_decodes_without_static_buffers() -> None:
    model, kept = make_causal(FAMILIES["gpt2"]), make_static()
    assert isinstance(static(kept, model, RAGGED, 4), StaticDecoder)
    model.train()
    assert isinstance(static(kept, model, RAGGED, 4), CausalDecoder)


def build(config: Any, decoding: Any) -> Any:
    policy = build_causal_lm(make_causal(config), CausalLMConfig(decoding=decoding), tokenizer=make_tokenizer())
    policy.module.eval()
    return policy


@pytest.mark.parametrize(("decoding", "expected"), [("auto", False), ("dynamic", False), ("static", True)])
def test_only_the_option_static_chooses_static_decoding(decoding: Any, expected: bool) -> None:
    policy = build(FAMILIES["llama"], decoding)
    assert with_static_decoding(policy) is policy
    assert isinstance(policy.decoder(RAGGED, max_new_tokens=3), StaticDecoder) is expected


def test_a_policy_whose_model_is_refused_samples_with_the_decoder_it_has_anyway() -> None:
    config = REFUSED["bloom, no positions"][0]
    policy = with_static_decoding(build(config, "static"))
    expected = ordinary(make_causal(config), RAGGED, 3).start().logits
    assert_same([policy.decoder(RAGGED, max_new_tokens=3).start().logits], [expected])


def test_a_run_samples_with_static_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = StaticDecoder.step
    monkeypatch.setattr(StaticDecoder, "step", lambda decoder, tokens: steps.append(1) or step(decoder, tokens))
    rlcore.train(
        {"path": make_causal(FAMILIES["llama"]), "decoding": "static"},
        tokenizer=make_tokenizer(),
        trainer={"name": "reinforce", "rollouts": 4},
        prompts=["ab", "c"],
        reward_fn=toy_reward,
        gen={"max_new_tokens": 4, "min_new_tokens": 4},
        run={"steps": 1, "root": str(tmp_path)},
        loggers=[],
    )
    assert len(steps) > 0


def test_static_without_the_plugin_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="rlcore-cuda-graphs, which wraps the policy of a run; this policy was"):
        build(FAMILIES["llama"], "static").decoder(RAGGED, max_new_tokens=3)
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "rlcore-cuda-graphs")
    with pytest.raises(ConfigError, match="rlcore-cuda-graphs, which is installed, but disabled: RLCORE_DISABLE"):
        build(FAMILIES["llama"], "static")
    found = all_registries().discovery
    others = tuple(plugin for plugin in found.plugins if plugin.dist != "rlcore-cuda-graphs")
    absent = attrs.evolve(all_registries(), discovery=attrs.evolve(found, plugins=others))
    monkeypatch.setattr(seam, "all_registries", lambda: absent)
    with pytest.raises(ConfigError, match=r"not installed: pip install rlcore-cuda-graphs .*; auto and dynamic"):
        build(FAMILIES["llama"], "static")
    for decoding in ("auto", "dynamic"):
        assert build(FAMILIES["llama"], decoding).decoder(RAGGED, max_new_tokens=3).start().logits.isfinite().all()
