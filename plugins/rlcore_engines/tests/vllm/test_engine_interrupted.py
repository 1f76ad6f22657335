"""A real vLLM on the CPU whose run has ended in the middle of new weights: `make test-engines`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from test_engine import make_policy, tiny_llama
from test_engine_broadcast import sampled, started

from rlcore_engines.vllm.client import ALREADY, VLLMServer
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.policies import perturb

pytestmark = pytest.mark.engine


def write_part(policy: Any, folder: Path) -> str:
    """Write a part of the weights, of which two of three belong to one layer in vLLM, and return the folder."""
    names = ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight")
    part = {name: value.detach().clone() for name, value in policy.weights() if name.endswith(names)}
    assert len(part) == 2
    folder.mkdir()
    save_file(part, folder / "model.safetensors")
    return str(folder)


def fail(server: VLLMServer, path: str) -> None:
    """End an update with an error when a part of the weights has been loaded."""
    with pytest.raises(EngineError, match="has no weights for"):
        server.load("never", lambda: server.update({"path": path}))


def stop(server: VLLMServer, path: str) -> None:
    """End a run between the beginning of an update and its weights."""
    with pytest.raises(KeyboardInterrupt):
        server.load("never", interrupt)
    found = server._call("POST", "/start_weight_update")
    print(found.describe(), file=sys.stderr)
    assert ALREADY in found.text  # a server that is not told to finish it takes no further weights


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_a_later_run_gives_whole_weights_to_a_server_that_was_left_with_a_part(
    transfer: Any, engine: dict[str, Any], tmp_path: Path
) -> None:
    """Nothing of the part is counted as one of the new weights, and log-probs are the policy's."""
    given = {name: value for name, value in engine.items() if name != "tolerance"}
    policy, part = make_policy(tiny_llama), write_part(make_policy(tiny_llama), tmp_path / "part")
    with started(VLLMConfig(weights_dir=str(tmp_path / "own"), **given), make_policy(tiny_llama)) as fleet:
        (server,) = fleet.servers
        for number, end in enumerate((fail, stop, fail)):
            perturb(policy)
            end(server, part)
            folder = str(tmp_path / f"later{number}")
            config = VLLMConfig(url=server.url, transfer=transfer, tolerance=engine["tolerance"], weights_dir=folder)
            sampler = VLLMSampler(config)
            try:
                sampled(sampler, policy)
            finally:
                sampler.close()
