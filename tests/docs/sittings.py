"""Execute the snippets of a documentation page, from top to bottom in an empty folder.

A comment `<!-- setup: ... -->` before a fence, which is not rendered, lists what the fence needs:
    gpt2          a tiny model with random weights in the folder ./gpt2, so that no model is downloaded
    model=NAME    such a model with a longer context in the folder ./NAME, such as ./Qwen/Qwen3-0.6B
    one-step      trainers stop after one step where no budget is given
    file=NAME     the fence is the content of that file
    other         the file is no configuration that `rlcore train` accepts
    edit=NAME     the fence is a function that replaces the function of the same name in that file
    plugin=NAME   the fence is the entry points of that dist, and the file it names is installed with it
    raises=NAME   the fence ends with that error of rlcore's; a command then exits with 1
    said          the fence is the message of the last such error
A `console` fence contains commands after `$ `, optionally followed by lines they must print, in order; `...` stands for
omitted lines. `cd` applies to the commands after it. `pip install` of a folder made earlier on the page installs it in
a separate environment, without downloads; later commands then run in new interpreters. Before that, `rlcore` and
`python` run in a preloaded Python process, see `tests/warm`, and the processes that `pytest` starts always do.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from warm_python import WarmPython

from rlcore.config import load_yaml, structure
from rlcore.errors import RLCoreError
from rlcore.settings import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [path.parent for place in ("rlcore_*", "plugins/*") for path in ROOT.glob(f"{place}/pyproject.toml")]
DISTS = {"rlcore": ROOT} | {folder.name.replace("_", "-"): folder for folder in FOLDERS}
SITE, WARM = "installed", ROOT / "tests" / "warm"
CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = re.compile(r"<!-- setup: (.*?) -->\n\Z")


@attrs.frozen
class Snippet:
    """One fence: its position, its language, its text, and its setup."""

    where: str
    language: str
    text: str
    needs: tuple[str, ...]


def snippets_of(page: Path) -> Iterator[Snippet]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        setup = SETUP.search(text[: found.start()])
        line = text.count("\n", 0, found.start()) + 1
        needs = tuple(setup[1].split()) if setup else ()
        yield Snippet(f"{page.relative_to(ROOT)}:{line}", found[1], found[2], needs)


class Sitting:
    """Execution of one page, in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython) -> None:
        self.folder, self.monkeypatch, self.warm_python = folder, monkeypatch, warm_python
        self.cwd, self.interpreter, self.said = folder, Path(sys.executable), ""
        self.names: dict[str, Any] = {"__name__": "snippet"}
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)  # as for a script in this folder

    def take(self, snippet: Snippet) -> None:
        given = {}
        for need in snippet.needs:
            name, _, value = need.partition("=")
            if name in {"file", "edit", "plugin", "raises", "said", "other"}:
                given[name] = value
            elif name == "model":
                make_gpt2(self, value, context=1024)
            else:
                SETUPS[name](self)
        if "said" in given:
            assert_says(self.said, snippet.text)
        elif "raises" in given:
            self.raises(snippet, given["raises"])
        elif "plugin" in given:
            install(self.folder, given["plugin"], tomllib.loads(snippet.text))
        elif "edit" in given:
            edit(self.cwd / given["edit"], snippet.text)
        elif "file" in given:
            (self.cwd / given["file"]).write_text(snippet.text, encoding="utf-8")
        if not given or (snippet.language == "yaml" and not {"raises", "other"} & set(given)):
            CHECKS[snippet.language](self, snippet)

    def raises(self, snippet: Snippet, name: str) -> None:
        """Run a fence that must raise an error, and store the message."""
        if snippet.language == "console":
            done = self.command(shlex.split(snippet.text.removeprefix("$ ")))
            assert done.returncode == 1, done.stdout + done.stderr
            self.said = done.stderr[done.stderr.find(f"{name}: ") :]
            return
        with pytest.raises(RLCoreError) as caught:
            CHECKS[snippet.language](self, snippet)
        assert type(caught.value).__name__ == name
        self.said = f"{name}: {caught.value}"

    def python(self, snippet: Snippet) -> None:
        exec(compile(snippet.text, snippet.where, "exec"), self.names)

    def yaml(self, snippet: Snippet) -> None:
        file = self.folder / "snippet.yaml"
        file.write_text(snippet.text, encoding="utf-8")
        structure(TrainConfig, load_yaml(file), where=snippet.where)

    def json(self, snippet: Snippet) -> None:
        for line in snippet.text.splitlines():
            json.loads(line)

    def toml(self, snippet: Snippet) -> None:
        tomllib.loads(snippet.text)

    def console(self, snippet: Snippet) -> None:
        commands = [part for part in re.split(r"^\$ ", snippet.text, flags=re.MULTILINE) if part.strip()]
        assert snippet.text.startswith("$ "), "a console fence begins with a command"
        for part in commands:
            command, _, expected = part.replace("\\\n", " ").partition("\n")
            said = self.run(shlex.split(command, comments=True))
            assert_says(said, expected)

    def run(self, words: list[str]) -> str:
        if words[0] == "cd":
            self.cwd = (self.cwd / words[1]).resolve(strict=True)
            self.monkeypatch.chdir(self.cwd)
            return ""
        if words[0] == "pip" and self.is_ours(words):
            make_environment(self)
        elif words[0] in STATIC:
            STATIC[words[0]](words[1:])
            return ""
        done = self.command(words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def is_ours(self, words: list[str]) -> bool:
        """Return whether pip is asked to install a folder made on this page."""
        targets = [self.cwd / word.partition("[")[0] for word in words[2:] if not word.startswith("-")]
        return any((target / "pyproject.toml").exists() for target in targets)

    def command(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        settings = {}
        while re.match(r"[A-Z_]+=", words[0]):
            name, _, settings[name] = words[0].partition("=")
            words = words[1:]
        path = [str(self.folder / SITE), *([str(WARM)] if words[0] == "pytest" else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(path)}
        environment |= settings
        if words[0] in {"rlcore", "python"} and self.interpreter == Path(sys.executable):
            return self.warm_python.run([*LAUNCH[words[0]], *words[1:]], cwd=self.cwd, environment=environment)
        program = [str(self.interpreter), *LAUNCH[words[0]]] if words[0] in LAUNCH else [PROGRAMS[words[0]]]
        return subprocess.run(
            [*program, *words[1:], *OFFLINE.get(" ".join(words[:3]), ()), *OFFLINE.get(" ".join(words[:2]), ())],
            cwd=self.cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def make_environment(sitting: Sitting) -> None:
    """Make a virtual environment that starts with this one's packages, and use it for all later commands."""
    if sitting.interpreter == Path(sys.executable):
        folder = sitting.folder / "environment"
        venv.create(folder, with_pip=False, symlinks=True)
        sitting.interpreter = folder / "bin" / "python"
        [site] = folder.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({path!r})" for path in sys.path if path.endswith("-packages")]
        (site / "outer.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def assert_says(said: str, expected: str) -> None:
    """Check that the expected lines were printed in order, ignoring column widths."""
    lines = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in expected.splitlines():
        wanted, cut, _ = " ".join(line.split()).partition("...")
        found = not wanted or any(said_line.startswith(wanted) if cut else said_line == wanted for said_line in lines)
        assert found, f"not said, or not in this place: {wanted}\n{said}"


def edit(file: Path, text: str) -> None:
    """Replace the function of the same name in a file."""
    [new] = ast.parse(text).body
    assert isinstance(new, ast.FunctionDef)
    written = file.read_text(encoding="utf-8")
    [old] = [part for part in ast.parse(written).body if isinstance(part, ast.FunctionDef) and part.name == new.name]
    lines = written.splitlines(keepends=True)
    lines[old.lineno - 1 : old.end_lineno] = [text]
    file.write_text("".join(lines), encoding="utf-8")


def install(folder: Path, dist: str, project: dict[str, Any]) -> None:
    """Install a dist as pip would: its metadata, the modules that its entry points name, and those that these name."""
    site = folder / SITE
    metadata = site / f"{dist.replace('-', '_')}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 0.1.0\n", encoding="utf-8")
    lines = []
    for group, points in project["project"]["entry-points"].items():
        lines.append(f"[{group}]")
        for name, module in points.items():
            lines.append(f"{name} = {module}")
            text = (folder / f"{module}.py").read_text(encoding="utf-8")
            for file in [path for path in folder.glob("*.py") if path.stem == module or f'"{path.stem}:' in text]:
                file.rename(site / file.name)
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_gpt2(sitting: Sitting, name: str = "gpt2", context: int = 128) -> None:
    """Save a model with one token per byte to the folder `name`."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=letters[-1], eos_token=letters[-1])
    tokenizer.chat_template = CHAT
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 257, "n_positions": context}
    config = GPT2Config(**sizes, bos_token_id=256, eos_token_id=256)
    GPT2LMHeadModel(config).save_pretrained(sitting.cwd / name)
    tokenizer.save_pretrained(sitting.cwd / name)


def limit_to_one_step(sitting: Sitting) -> None:
    from rlcore_grpo.trainer import GRPOTrainer
    from rlcore_ppo.trainer import PPOTrainer
    from rlcore_reinforce.trainer import ReinforceTrainer
    from rlcore_rft.trainer import RFTTrainer
    from rlcore_sft.trainer import SFTTrainer

    for trainer in (GRPOTrainer, PPOTrainer, ReinforceTrainer, RFTTrainer, SFTTrainer):
        sitting.monkeypatch.setattr(trainer, "default_budget", {"steps": 1})


def check_make(targets: list[str]) -> None:
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets
    for target in targets:
        assert target in known, f"the Makefile has no target '{target}'"


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    for word in chain.from_iterable(expand_braces(word) for word in words[1:] if word != "-e"):
        name = word.partition("[")[0]
        known = name in DISTS or (ROOT / name / "pyproject.toml").exists()
        assert known, f"the repository holds no dist '{name}'"


def expand_braces(word: str) -> list[str]:
    """Return the words that a shell makes of one with alternatives, such as a{b,c}."""
    before, brace, rest = word.partition("{")
    inner, _, after = rest.partition("}")
    return [before + each + after for each in inner.split(",")] if brace else [word]


SETUPS: dict[str, Callable[[Sitting], None]] = {"gpt2": make_gpt2, "one-step": limit_to_one_step}
LAUNCH = {
    "rlcore": ["-m", "rlcore"],
    "python": [],
    "pip": ["-m", "pip"],
    "pytest": ["-m", "pytest", "-p", "warm_fixtures"],  # its laws fork
    "torchrun": ["-m", "torch.distributed.run"],
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
}
PROGRAMS = {"cat": "cat", "ls": "ls"}
OFFLINE = {"python -m build": ["--no-isolation"], "pip install": ["--no-index", "--no-build-isolation", "--quiet"]}
"""Options that prevent commands from downloading build tools, which are already installed."""
STATIC: dict[str, Callable[[list[str]], None]] = {"make": check_make, "pip": check_pip}
CHECKS: dict[str, Callable[[Sitting, Snippet], None]] = {
    "python": Sitting.python,
    "yaml": Sitting.yaml,
    "json": Sitting.json,
    "toml": Sitting.toml,
    "console": Sitting.console,
}
