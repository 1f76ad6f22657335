"""Tests of hub models that cannot be downloaded: the error is raised immediately."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

import rlcore
from rlcore.errors import ModelError
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.hub import WEIGHTS, check_reach
from rlcore_transformers.models.loading import load_critic
from rlcore_transformers.models.model_options import CausalLMConfig

NAME = "nobody/nothing"


@pytest.mark.parametrize(
    "use",
    [
        lambda: rlcore.train(NAME, trainer="sft", samples=["a"]),
        lambda: build_causal_lm(NAME, CausalLMConfig()),
    ],
    ids=["train", "build"],
)
def test_a_hub_that_cannot_be_reached_is_asked_once(
    use: Callable[[], object],
    unreachable_hub: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="refused") as refused:
        use()
    assert f"model = {NAME!r}: cannot be loaded" in str(refused.value)
    assert "the hub cannot be reached" in str(refused.value)
    assert "Retrying" not in caplog.text


@pytest.mark.usefixtures("unreachable_hub")
def test_models_on_disk_or_in_memory_need_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    check_reach("here", None)
    check_reach("./absent/folder", None)
    check_reach(object(), None)
    fetched = tmp_path / "models--some--model"
    (fetched / "snapshots/123").mkdir(parents=True)
    (fetched / "snapshots/123/config.json").write_text("{}")
    (fetched / "refs").mkdir()
    (fetched / "refs/main").write_text("123")
    check_reach("some/model", "main")
    with pytest.raises(ModelError, match=r"its config\.json has not been fetched before"):
        check_reach("some/other", None)
    with pytest.raises(ModelError, match=r"its config\.json has not been fetched before"):
        check_reach("some/model", "v2")
    with pytest.raises(ModelError, match=r"its model\.safetensors has not been fetched before"):
        check_reach("some/model", "main", WEIGHTS)
    (fetched / "snapshots/123/model.safetensors.index.json").write_text("{}")
    check_reach("some/model", "main", WEIGHTS)


@pytest.mark.usefixtures("unreachable_hub")
def test_the_error_for_an_unreachable_critic_calls_it_a_critic() -> None:
    with pytest.raises(ModelError, match=f"^critic = {NAME!r}: cannot be loaded: .* the hub cannot be reached"):
        load_critic(NAME, CausalLMConfig())


class Answering(http.server.BaseHTTPRequestHandler):
    """HTTP handler that answers every request with the status at the start of its path."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Suppress the log output."""


@pytest.mark.usefixtures("unreachable_hub")
@pytest.mark.parametrize("status", [200, 307, 401, 404, 429, 503])
def test_a_hub_that_answers_counts_as_reachable(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as server:
        address = f"http://127.0.0.1:{server.server_port}/{status}"
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        check_reach(NAME, None)
        answering.join()


@pytest.mark.usefixtures("unreachable_hub")
def test_an_invalid_hub_address_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "hub.example/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        check_reach(NAME, None)
