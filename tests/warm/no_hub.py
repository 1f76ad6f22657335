"""A hub of models that cannot be reached."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from huggingface_hub import constants


@pytest.fixture
def unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Point the hub at a local address without a server; return the address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refused = lambda *_, **__: pytest.fail("the hub is asked by one who does not give up")  # noqa: E731
    for library in ("input_layout.AutoConfig", "tokenizers.AutoTokenizer"):
        monkeypatch.setattr(f"rlcore_transformers.models.{library}.from_pretrained", refused)
    return address
