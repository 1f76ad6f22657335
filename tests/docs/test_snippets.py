"""Every snippet of the documentation runs: a page is one sitting, read from top to bottom in an empty folder.

A comment `<!-- setup: ... -->` before a fence, which a reader does not see, names what the sitting needs:
    gpt2          a tiny model with random weights in the folder ./gpt2, so that no model is downloaded
    one-step      trainers stop after one step where no budget is given
    file=NAME     the fence is the content of that file
    plugin=NAME   the fence is the entry points of that dist, and the file named in it is installed with it
A `console` fence holds commands after `$ `, and may go on with lines they must print, in order; `...` leaves some out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rlcore.config import load_yaml, structure
from rlcore.settings import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
DISTS = {"rlcore": ROOT, "rlcore-ppo": ROOT / "rlcore_ppo", "rlcore-sft": ROOT / "rlcore_sft"}
WRITTEN = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("rlcore_*/README.md"))]
PAGES = [page for page in WRITTEN if "```" in page.read_text(encoding="utf-8")]
PROSE = {"", "text"}
SITE = "installed"
CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = re.compile(r"<!-- setup: (.*?) -->\n\Z")


@attrs.frozen
class Snippet:
    """Hold one fence: where it stands, its language, its text, and what it needs."""

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
    """Do what a page says, in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.names: dict[str, Any] = {"__name__": "snippet"}
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)  # as for a script in this folder

    def take(self, snippet: Snippet) -> None:
        file = plugin = None
        for need in snippet.needs:
            name, _, value = need.partition("=")
            if name == "file":
                file = self.folder / value
            elif name == "plugin":
                plugin = value
            else:
                SETUPS[name](self)
        if plugin:
            install(self.folder, plugin, tomllib.loads(snippet.text))
        elif file:
            file.write_text(snippet.text, encoding="utf-8")
        if file is None or snippet.language == "yaml":
            CHECKS[snippet.language](self, snippet)

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
        settings = {}
        while re.match(r"[A-Z_]+=", words[0]):
            name, _, settings[name] = words.pop(0).partition("=")
        program, *arguments = words
        if program in STATIC:
            STATIC[program](arguments)
            return ""
        launch = {
            "rlcore": ["-m", "rlcore"],
            "python": [],
            "torchrun": ["-m", "torch.distributed.run"],
            "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
        }[program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(self.folder / SITE)}
        done = subprocess.run(
            [sys.executable, *launch, *arguments],
            env=environment | settings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def assert_says(said: str, expected: str) -> None:
    """Check that the expected lines were printed in their order, however wide the columns are."""
    lines = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in expected.splitlines():
        wanted, cut, _ = " ".join(line.split()).partition("...")
        found = not wanted or any(said_line.startswith(wanted) if cut else said_line == wanted for said_line in lines)
        assert found, f"not said, or not in this place: {wanted}\n{said}"


def install(folder: Path, dist: str, project: dict[str, Any]) -> None:
    """Lay out a dist as pip would: the module its entry point names, and the metadata beside it."""
    site = folder / SITE
    metadata = site / f"{dist.replace('-', '_')}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 0.1.0\n", encoding="utf-8")
    lines = []
    for group, points in project["project"]["entry-points"].items():
        lines.append(f"[{group}]")
        for name, module in points.items():
            lines.append(f"{name} = {module}")
            (folder / f"{module}.py").rename(site / f"{module}.py")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_gpt2(sitting: Sitting) -> None:
    """Write a model of one token a byte to ./gpt2."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=letters[-1], eos_token=letters[-1])
    tokenizer.chat_template = CHAT
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 257, "n_positions": 128}
    config = GPT2Config(**sizes, bos_token_id=256, eos_token_id=256)
    GPT2LMHeadModel(config).save_pretrained(sitting.folder / "gpt2")
    tokenizer.save_pretrained(sitting.folder / "gpt2")


def limit_to_one_step(sitting: Sitting) -> None:
    from rlcore_ppo.trainer import PPOTrainer
    from rlcore_sft.trainer import SFTTrainer

    for trainer in (PPOTrainer, SFTTrainer):
        sitting.monkeypatch.setattr(trainer, "default_budget", {"steps": 1})


def check_make(targets: list[str]) -> None:
    known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets
    for target in targets:
        assert target in known, f"the Makefile has no target '{target}'"


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    for word in (word for word in words[1:] if word != "-e"):
        name = word.partition("[")[0]
        known = name in DISTS or (ROOT / name / "pyproject.toml").exists()
        assert known, f"the repository holds no dist '{name}'"


SETUPS: dict[str, Callable[[Sitting], None]] = {"gpt2": make_gpt2, "one-step": limit_to_one_step}
STATIC: dict[str, Callable[[list[str]], None]] = {"make": check_make, "pip": check_pip}
CHECKS: dict[str, Callable[[Sitting, Snippet], None]] = {
    "python": Sitting.python,
    "yaml": Sitting.yaml,
    "json": Sitting.json,
    "toml": Sitting.toml,
    "console": Sitting.console,
}


@pytest.fixture
def sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sitting]:
    yield Sitting(tmp_path, monkeypatch)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_of_a_page_runs(page: Path, sitting: Sitting) -> None:
    for snippet in snippets_of(page):
        if snippet.language in PROSE:
            continue
        assert snippet.language in CHECKS, f"{snippet.where}: nothing checks the language '{snippet.language}'"
        try:
            sitting.take(snippet)
        except BaseException as error:
            error.add_note(f"in the snippet at {snippet.where}")
            raise


def test_every_fence_is_found() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert 2 * len(list(snippets_of(page))) == text.count("```"), f"{page}: a fence is indented, or not closed"


def test_a_snippet_that_fails_fails_the_page(sitting: Sitting) -> None:
    for language, text in [
        ("python", "assert 1 + 1 == 3\n"),
        ("yaml", "run: {stepz: 3}\n"),
        ("console", "$ make quickstarts\n"),
        ("console", "$ pip install rlcore-dpo\n"),
        ("console", "$ rlcore --version\nrlcore 99.0\n"),
        ("console", "$ rlcore show nothing\n"),
    ]:
        with pytest.raises((AssertionError, ValueError)):
            sitting.take(Snippet("here", language, text, ()))
