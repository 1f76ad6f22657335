"""In place of a Python with vLLM: `python -m vllm.entrypoints.cli.main serve FOLDER ...`.

It forwards connections to the stand-in of the test, which is told of each start, because importing torch takes long.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    there, here = await asyncio.open_connection("127.0.0.1", int(os.environ["STAND_IN_PORT"]))
    await asyncio.gather(pump(reader, here), pump(there, writer), return_exceptions=True)


async def serve(port: int) -> None:
    server = await asyncio.start_server(forward, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    folder, options = Path(sys.argv[4]), sys.argv[5:]
    assert sys.argv[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"]
    assert {file.name for file in folder.iterdir()} >= {"config.json", "tokenizer.json"}
    assert any(folder.glob("*.safetensors")) != ("dummy" in options)
    if "--fail" in options:
        raise SystemExit("ValueError: no such device")
    report = {"pid": os.getpid(), "options": options, "RANK": os.environ.get("RANK"), "path": os.environ["PYTHONPATH"]}
    Path(os.environ["FAKE_VLLM_REPORT"]).write_text(json.dumps(report))
    urllib.request.urlopen(f"http://127.0.0.1:{os.environ['STAND_IN_PORT']}/restart", data=b"null").close()
    print("the stand-in is ready", flush=True)
    asyncio.run(serve(int(options[options.index("--port") + 1])))
