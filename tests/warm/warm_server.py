"""Server of preloaded Python: import the libraries, then fork for each request, a line of JSON on stdin.

Arguments of the server are names of further modules to import.

A request contains `arguments` (as after `python`: `-m MODULE ...` or `FILE ...`), `cwd`, the environment and a pair of
output files; the answer is the id of the process. A request that contains `wait`, such an id, is answered with the exit
status of that process when it ends.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

LIBRARIES = (
    "torch", "accelerate", "transformers.optimization", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "transformers.models.gpt2.tokenization_gpt2",
    "transformers.modeling_gguf_pytorch_utils", "transformers.models.auto.processing_auto",
    "torch.profiler._cupti_monitor", "deepspeed", "cattrs", "structlog",
)  # fmt: skip
"""Third-party modules that training imports, or saving a model; a run imports any others itself."""


def serve() -> dict[str, Any] | None:
    """Answer requests; return the request in a forked child, None at the end of the input."""
    while line := sys.stdin.readline():
        request: dict[str, Any] = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif not (answer := os.fork()):
            return request
        print(answer, flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Give this process the request's environment and output, and none of the server's."""
    os.setsid()
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)
    faulthandler.enable()  # a process that is aborted says where it was
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    np.random.seed()  # noqa: NPY002  the initial seed of programs that set none
    torch.seed()


def run(arguments: list[str]) -> None:
    """Run the arguments as Python does; an uncaught exception ends this process."""
    path = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if arguments[0] == "-m":
        sys.path[:0] = [str(Path.cwd()), *path]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(arguments[0]).resolve().parent), *path]
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # deepspeed warns if it finds none
    for library in (*LIBRARIES, *sys.argv[1:]):
        importlib.import_module(library)
    # Saving a model looks its kind up in a table of 900 regular expressions, which takes long to make.
    importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("gpt2")
    gc.freeze()  # so that garbage collection in children does not copy the libraries' memory
    asked = serve()
    if asked is not None:
        become(asked)
        run(asked["arguments"])
