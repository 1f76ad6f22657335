"""A server has the policy's weights before anything is sampled, or the run stops: known defects by name."""

from __future__ import annotations

import ast
import copy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from vllm_stand_in import StandIn

from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_testing.rig.policies import perturb
from rlcore_testing.small import LETTERS, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.seq2seq import build_seq2seq_lm
from rlcore_vllm import client, own_server
from rlcore_vllm import weights as written_weights
from rlcore_vllm.config import VLLMConfig
from rlcore_vllm.errors import EngineError, StaleWeights
from rlcore_vllm.vllm_sampler import VLLMSampler
from rlcore_vllm.weight_files import WeightFiles

SAMPLING = SamplingConfig(max_new_tokens=6)
PROMPTS = [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in ("ab", "cde", "f", "go on")]
SEEDS = [11, 12, 13, 14]


def make_policy(make: Callable[[], Any] = make_gpt2, **options: Any) -> ModelPolicy:
    policy = build_causal_lm(make(), CausalLMConfig(**options), tokenizer=make_tokenizer())
    assert isinstance(policy, ModelPolicy)
    return policy


def sampler_of(server: StandIn, tmp_path: Path, **options: Any) -> VLLMSampler:
    return VLLMSampler(VLLMConfig(url=server.url, weights_dir=str(tmp_path / "weights"), **options))


@pytest.mark.parametrize("make", [make_gpt2, make_llama], ids=["tied", "untied"])
def test_log_probs_are_those_of_the_present_weights(make: Callable[[], Any], stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(make), sampler_of(stand_in, tmp_path)
    for _ in range(3):
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        with torch.no_grad():
            own = policy.score(batch).logprobs
        assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)
        perturb(policy)
    assert stand_in.version.endswith("-2")  # versions 0, 1 and 2 of the policy


def test_a_tied_head_that_stays_old_stops_the_run(stand_in: StandIn, tmp_path: Path) -> None:
    """vLLM's CPU backend keeps a packed copy of a tied head, which `reload_weights` leaves as it is."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    perturb(policy)
    stand_in.keeps_head = True
    num_asked = len(stand_in.asked)
    with pytest.raises(StaleWeights, match=r"differ from the policy's by up to .*such as a head that is tied"):
        sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert len(stand_in.asked) == num_asked + 8  # the check alone, of new rows and of earlier ones: no rollout


def test_sampling_from_the_base_model_for_ever_stops_the_run(stand_in: StandIn, tmp_path: Path) -> None:
    """Updates that report success and change nothing (TRL's issue 5312, verl's 7495)."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    perturb(policy)
    stand_in.keeps_weights = True
    for _ in range(2):  # a second attempt does not pass either
        with pytest.raises(StaleWeights):
            sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_the_tolerance_is_an_option(stand_in: StandIn, tmp_path: Path) -> None:
    policy = make_policy()
    sampler = sampler_of(stand_in, tmp_path, tolerance=100.0)
    stand_in.keeps_weights = True  # it has those of another seed
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        gap = (policy.score(batch).logprobs - batch["logprobs"])[batch.action_mask].abs().max()
    assert gap > 1e-3


def test_a_server_in_bfloat16_has_a_wider_tolerance(stand_in: StandIn, tmp_path: Path) -> None:
    policy = make_policy()
    stand_in.info["dtype"] = "torch.bfloat16"
    sampler = sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    fleet = sampler._fleet
    assert fleet.tolerance(policy, is_full_precision=True) == 0.5
    stand_in.info["dtype"] = "torch.float32"
    exact = sampler_of(stand_in, tmp_path)
    exact(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert exact._fleet.tolerance(policy, is_full_precision=True) == 1e-3
    assert exact._fleet.tolerance(policy, is_full_precision=False) == 0.5


def test_the_prefix_cache_is_emptied_after_the_weights_have_changed(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = sampler_of(stand_in, tmp_path)
    sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert stand_in.calls == [
        "/init_weight_transfer_engine", "/pause?mode=keep", "/start_weight_update", "/update_weights",
        "/finish_weight_update", "/resume", "/reset_prefix_cache",
    ]  # fmt: skip


def test_weights_that_have_not_changed_are_not_sent_again(stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    num_calls = len(stand_in.calls)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert len(stand_in.calls) == num_calls


def test_two_policies_of_one_version_are_told_apart(stand_in: StandIn, tmp_path: Path) -> None:
    one, other, sampler = make_policy(), make_policy(), sampler_of(stand_in, tmp_path)
    with torch.no_grad():
        for weight in other.module.parameters():
            weight.mul_(0.5)
    assert one.version == other.version
    for policy in (one, other, one):
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        with torch.no_grad():
            own = policy.score(batch).logprobs
        assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)


def test_a_server_that_was_started_anew_elsewhere_is_given_the_weights_again(stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    before = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    stand_in.version, stand_in.model = "default", make_gpt2(seed=7)
    stand_in._logits.clear()
    after = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert after.action_tokens == before.action_tokens
    assert torch.equal(after["logprobs"], before["logprobs"])


def test_a_server_that_is_gone_when_weights_change_is_left_out(stand_in: StandIn, tmp_path: Path) -> None:
    gone, policy = StandIn(), make_policy()
    options: dict[str, Any] = {"url": (gone.url, stand_in.url), "weights_dir": str(tmp_path), "start_timeout_s": 5.0}
    sampler = VLLMSampler(VLLMConfig(**options))
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    gone.close()
    perturb(policy)
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        own = policy.score(batch).logprobs
    assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)


def test_a_run_waits_for_its_only_server_to_come_back(tmp_path: Path) -> None:
    first, policy = StandIn(), make_policy()
    sampler = VLLMSampler(VLLMConfig(url=first.url, weights_dir=str(tmp_path), start_timeout_s=20.0))
    before = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    port = int(first.url.rpartition(":")[2])
    first.close()
    later = threading.Timer(0.5, lambda: servers.append(StandIn(port)))
    servers: list[StandIn] = []
    later.start()
    policy.version += 1
    after = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    later.join()
    servers[0].close()
    assert after.action_tokens == before.action_tokens


def test_an_update_that_fails_is_an_error_and_is_not_finished(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = stand_in.post

    def failing(path: str, body: Any) -> tuple[int, Any]:
        return (500, {"error": {"message": "no such file"}}) if path == "/update_weights" else post(path, body)

    monkeypatch.setattr(stand_in, "post", failing)
    with pytest.raises(EngineError, match="new weights could not be loaded: /update_weights: status 500, no such file"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert "/finish_weight_update" not in stand_in.calls


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_server_whose_last_run_was_killed_within_an_update_takes_new_weights(
    is_loaded: bool, stand_in: StandIn, tmp_path: Path
) -> None:
    """It is paused, and refuses to begin an update before that one is finished; its version stays till then."""
    policy, killed = make_policy(), sampler_of(stand_in, tmp_path / "killed")
    whole = killed(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    (server,), before = killed._fleet.servers, stand_in.version
    path = killed._fleet._files.place / "model"

    def die() -> None:
        if is_loaded:
            server.update({"path": str(path)})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.load("never", die)
    assert stand_in._paused
    assert stand_in._is_updating
    assert stand_in.version == before
    batch = sampler_of(stand_in, tmp_path / "next")(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert batch.action_tokens == whole.action_tokens
    assert stand_in.version not in (before, "never")


def test_two_runs_that_use_one_server_in_turn_sample_from_their_own_weights(stand_in: StandIn, tmp_path: Path) -> None:
    policies = [make_policy(), make_policy()]
    perturb(policies[1])
    samplers = [sampler_of(stand_in, tmp_path / name) for name in "ab"]
    for policy, sampler in [*zip(policies, samplers, strict=True)] * 2:
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        with torch.no_grad():
            own = policy.score(batch).logprobs
        assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)


def test_two_runs_that_use_one_server_at_a_time_end_with_the_reason(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = sampler_of(stand_in, tmp_path)
    sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)

    def replace(_body: Any, _count: int) -> None:
        stand_in.version = "0123abcd-1-7"

    stand_in.before_token = replace
    with pytest.raises(EngineError, match="those are of another run: use each server in one run at a time"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def lora(**options: Any) -> dict[str, Any]:
    return {"peft": {"type": "lora", "r": 4, "target_modules": ["c_attn"], **options}}


@pytest.mark.parametrize("options", [lora(), lora(target_modules=["c_attn", "wte"])], ids=["layers", "embedding"])
def test_an_adapter_reaches_the_server_merged(options: Any, stand_in: StandIn, tmp_path: Path) -> None:
    """With an adapter on the embedding the head is no longer tied to it: the file has both, and the config says so."""
    pytest.importorskip("peft")
    policy, sampler = make_policy(**options), sampler_of(stand_in, tmp_path)
    with torch.no_grad():
        for name, weight in policy.module.named_parameters():
            if "lora_" in name:
                weight.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    policy.version += 1
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        own = policy.score(batch).logprobs
    assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)
    (model,), start = (tmp_path / "weights").glob("*/model"), copy.deepcopy(make_gpt2())
    (file,) = model.glob("*.safetensors")
    written = load_file(file)
    assert not [name for name in written if "lora" in name]
    assert not torch.equal(written["transformer.h.0.attn.c_attn.weight"], start.transformer.h[0].attn.c_attn.weight)
    is_tied = '"tie_word_embeddings": true' in (model / "config.json").read_text()
    assert is_tied == ("lm_head.weight" not in written)


def test_a_policy_that_vllm_does_not_serve_is_refused(stand_in: StandIn, tmp_path: Path) -> None:
    policy = build_seq2seq_lm(make_t5(), CausalLMConfig(), tokenizer=make_tokenizer())
    with pytest.raises(ConfigError, match="vLLM has no encoder-decoder models"):
        sampler_of(stand_in, tmp_path)(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("info", {"logprobs_mode": "raw_logprobs"}, "its log-probs are raw_logprobs, not those it samples from"),
        ("transfer", "nccl", "its weight transfer is nccl, not rlcore"),
        ("has_scale_out", False, r"it has no /inference/v1/generate \(status 403, disabled\)"),
    ],
)
def test_a_server_that_lacks_an_option_is_refused_with_the_command(
    name: str, value: Any, words: str, stand_in: StandIn, tmp_path: Path
) -> None:
    setattr(stand_in, name, value)
    with pytest.raises(ConfigError, match=f"{words}; start it with vllm serve MODEL --enable-scale-out"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_server_that_asks_for_a_key_is_an_error_that_names_the_option(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = stand_in.get

    def guarded(path: str) -> tuple[int, Any]:
        return (401, {"error": "Unauthorized"}) if path.startswith("/inference") else get(path)

    monkeypatch.setattr(stand_in, "get", guarded)
    with pytest.raises(ConfigError, match=r"status 401, Unauthorized: it was started with a key .*set sampler.headers"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_context_that_is_too_short_is_refused(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.max_model_len = 10
    with pytest.raises(ConfigError, match=r"has 10 tokens, and a prompt with its new tokens has 11"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_url_without_a_server_is_an_error_in_words(tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(url="http://127.0.0.1:1", start_timeout_s=0.3, weights_dir=str(tmp_path)))
    with pytest.raises(EngineError, match=r"no vLLM server answers within 0\.3 seconds.*The last answer: .*refused"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_path_without_a_server_is_an_error_with_its_answer(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.1)
    sampler = VLLMSampler(VLLMConfig(url=f"{stand_in.url}/v1/", start_timeout_s=0.3, weights_dir=str(tmp_path)))
    with pytest.raises(EngineError, match=r"/v1: no vLLM server .* The last answer: /health: status 404, Not Found"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert capsys.readouterr().err.count("waiting for a vLLM server") == 1


def test_a_slash_at_the_end_of_a_url_is_left_out(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(url=f"{stand_in.url}/", weights_dir=str(tmp_path)))
    sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert stand_in.version.endswith("-0")


def test_https_to_a_server_without_it_is_an_error_at_once(stand_in: StandIn, tmp_path: Path) -> None:
    url = stand_in.url.replace("http", "https")
    sampler, begun = VLLMSampler(VLLMConfig(url=url, weights_dir=str(tmp_path))), time.monotonic()
    with pytest.raises(EngineError, match=r"there is no secure connection: .* if the server has none, use http://"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert time.monotonic() - begun < 60  # and not after start_timeout_s


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "here"}, "must be an http:// or https:// address"),
        ({"url": "http://here?key=1"}, r"without \? and #"),
        ({"url": "http://here:port"}, "url: is no address"),
        ({"url": "http://me:secret@here"}, "^url: holds a user name or a password; leave it out, and set the header"),
        ({"url": ("http://here", "http://here/")}, "url: lists http://here twice"),
        ({"url": "http://here", "headers": {"Authorization": "Bearer x\n"}}, "'Authorization' or its value has char"),
        ({"python": "python", "args": ("--port=80",)}, "args: --port: the run sets where its server listens"),
        ({"python": "python", "args": ("--ssl_keyfile", "x")}, "args: --ssl-keyfile: the run sets where its server"),
        ({"python": "python", "args": ("--api-key", "secret")}, "args: --api-key: arguments are written to the files"),
        ({"url": "http://here", "python": "python"}, "leave one of them out"),
        ({"url": "http://here", "args": ("--x",)}, "args: is about a server that the run starts"),
        ({"url": "http://here", "lora": "adapter"}, "needs a server that the run starts"),
        ({"python": "python", "lora": "adapter", "transfer": "broadcast"}, "an adapter reaches a server through files"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VLLMConfig(**options)


def test_a_sampler_needs_a_server() -> None:
    with pytest.raises(ConfigError, match=r"set sampler.url, .* or sampler.python"):
        VLLMSampler(VLLMConfig())


def imported_by(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    return imported | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_the_part_inside_vllm_imports_nothing_of_rlcore_and_has_the_name_that_servers_are_checked_for() -> None:
    files = [Path(client.__file__).with_name(name) for name in own_server.WORKER]
    imported = set[str]().union(*map(imported_by, files)) - {"rlcore_vllm.weight_group"}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"safetensors", "torch", "vllm"}
    assert f'BACKEND = "{client.BACKEND}"' in files[1].read_text()


def test_weights_reach_the_server_in_any_number_of_files(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And files of earlier weights, of which there were more, are deleted."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    monkeypatch.setattr(written_weights, "PIECE", 10_000)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    (model,) = (tmp_path / "weights").glob("*/model")
    files = sorted(file.name for file in model.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == "model-00001.safetensors"
    monkeypatch.setattr(written_weights, "PIECE", 2**28)
    perturb(policy)
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        own = policy.score(batch).logprobs
    assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)
    assert [file.name for file in model.iterdir() if "safetensors" in file.name] == files[:1]


def test_two_runs_may_share_the_folder_of_the_weights(stand_in: StandIn, tmp_path: Path) -> None:
    """A server that lost its weights is given those of its own run, though another run has written later."""
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    before = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    other, elsewhere = make_policy(), StandIn()
    perturb(other)
    its_own = sampler_of(elsewhere, tmp_path)
    its_own(other, PROMPTS, SAMPLING, row_seeds=SEEDS)
    stand_in.post("/restart", None)
    after = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert torch.equal(after["logprobs"], before["logprobs"])
    its_own.close()
    elsewhere.close()
    stand_in.post("/restart", None)
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    sampler.close()
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_run_has_a_folder_of_its_own_for_weights_and_the_same_when_it_is_resumed(tmp_path: Path) -> None:
    def place_of(run: Path, shared: Path | None) -> Path:
        files = WeightFiles(None if shared is None else str(shared), has_adapter=False)
        files.use(run)
        return files.place

    shared, runs = tmp_path / "shared", tmp_path / "runs"
    places = [place_of(runs / each, shared) for each in ("a/one", "b/one", "a/one")]
    assert places[0] == places[2] != places[1]
    assert {each.parent for each in places} == {shared}
    assert place_of(runs / "a/one", None) == runs / "a/one/vllm"


def test_every_weight_is_gathered_where_none_can_be_written(tmp_path: Path) -> None:
    """The other processes would wait for this one otherwise."""
    policy, taken = make_policy(), list[str]()
    stream = policy.weights

    def weights() -> Any:
        for name, value in stream():
            taken.append(name)
            yield name, value

    policy.weights = weights  # type: ignore[method-assign]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        written_weights.write_weights(policy, tmp_path / "file" / "model")
    assert taken == [name for name, _ in stream()]


def test_weights_are_checked_though_a_process_has_no_prompts(stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    sampler.renew_weights(policy, [])
    assert [len(body["token_ids"]) for body in stand_in.asked] == [1]
    sampler.renew_weights(policy, PROMPTS)
    assert len(stand_in.asked) == 1  # the same weights
    perturb(policy)
    stand_in.keeps_weights = True
    with pytest.raises(StaleWeights):
        sampler.renew_weights(policy, [])
