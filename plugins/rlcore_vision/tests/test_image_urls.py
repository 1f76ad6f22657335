"""Images that rows name by URL: downloaded from a server of this machine, where that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from vision_making import picture

from rlcore.errors import DataError
from rlcore_vision.image_store import ImageStore, open_picture
from rlcore_vision.tiny_families import FAMILIES


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve an image at `/shown.png`."""
    picture(5).save(tmp_path / "shown.png")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_image_is_downloaded_only_where_that_is_allowed(address: str) -> None:
    url, expected = f"{address}/shown.png", np.asarray(picture(5))
    for source in (url, {"bytes": None, "path": url}):
        assert (np.asarray(open_picture(source, allow_urls=True)) == expected).all()
        with pytest.raises(DataError, match=r"is a URL, and a run downloads none by itself: set model\.allow_urls"):
            open_picture(source)
    with pytest.raises(DataError, match=r"image .*/none\.png'?: cannot be downloaded: HTTP Error 404"):
        open_picture(f"{address}/none.png", allow_urls=True)
    config, processor = FAMILIES["llava"]()
    store = ImageStore(processor, config.image_token_id, allow_urls=True)
    assert (np.asarray(store.open(store.add(url, "row"))) == expected).all()
