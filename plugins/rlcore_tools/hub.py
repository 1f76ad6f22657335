"""Upload a trained model's folder to the Hugging Face hub; this module is an `rlcore.protocols.Uploader`.

Also in this file: the model card of a trained model: data, algorithm and sources, configuration, curves, samples and
versions.
"""

from __future__ import annotations

import inspect
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from rlcore.components import Component
from rlcore.config import dump_yaml
from rlcore.config.options import from_json
from rlcore.config.yaml_files import existing_path
from rlcore.errors import ConfigError, HubError, RLCoreError
from rlcore.loggers import display_row, place_in
from rlcore.plugins.registry import registries
from rlcore.protocols import RunView
from rlcore.safe_text import hide_logins, show
from rlcore.settings import to_record
from rlcore.types import Options
from rlcore_transformers.models.hub import is_hub_id

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
"""Files of a folder with a trained model; one of them is enough."""
UNAUTHORIZED = 401
NOT_LOGGED_IN = "there is no token for the hub: log in with `hf auth login`, or set HF_TOKEN"


def check(repo: str, where: str) -> None:
    """Check before training that a model can be pushed after it: a valid name, and a token.

    Raises:
        ConfigError: the name is none that a repository can have, or this machine has no token.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # exported lazily

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(
            f"{where}: run.push_to_hub = {show(repo)}: no repository can have this name: {error}"
        ) from None
    if get_token() is None:
        raise ConfigError(f"{where}: run.push_to_hub = {show(repo)}: {NOT_LOGGED_IN}")


def push(
    folder: Path, repo: str, *, run: Path | None = None, private: bool | None = None, token: str | None = None,
    revision: str | None = None,
) -> str:  # fmt: skip
    """Upload all files of a folder in one commit, and return its URL; the repository is created if it does not exist.

    Args:
        folder: contents of the repository.
        repo: `user/name`, or `name` for a repository of the token's user.
        run: folder of the run, for the command in errors.
        private: whether a repository that is created is private; None: the hub's default for the user.
        token: access token; None: that of `hf auth login` or HF_TOKEN.
        revision: branch to push to; created if it does not exist; None: `main`.

    Raises:
        HubError: the folder holds no model, or the hub cannot be reached or refuses the token, the name or a file.
    """
    if not any((folder / name).exists() for name in WEIGHTS):
        raise HubError(
            f"{folder}: there is no trained model here; a run writes it to model/ of its folder when it ends"
        )
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="rlcore")
    later = _command(run or folder, repo, private=private, revision=revision)

    def send() -> Any:
        url = api.create_repo(repo, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(url.repo_id, branch=revision, exist_ok=True)
        return api.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            revision=revision,
            commit_message="Upload a model trained with rlcore",
        )

    return str(_explained(send, repo, folder, later, api.endpoint).commit_url)


def _explained(send: Callable[[], object], repo: str, folder: Path, later: str, endpoint: str) -> Any:
    """Call `send`, and turn the errors of the hub's client into one that names the model's folder and the command."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        return send()
    except HfHubHTTPError as error:
        code = error.response.status_code
        what = "refused the token" if code in {401, 403} else "refused the upload"
        remedy = "; log in with `hf auth login` as a user who may write to it" if code in {401, 403} else ""
        sent = "Authorization" in error.response.request.headers
        reason = (
            f"the hub ({endpoint}) {what}: {_answer(error)}{remedy}" if sent or code != UNAUTHORIZED else NOT_LOGGED_IN
        )
    except HFValidationError as error:
        reason = f"no repository can have this name: {_line(error)}"
    except LocalTokenNotFoundError:
        reason = NOT_LOGGED_IN
    except Exception as error:  # noqa: BLE001  no connection: the client's HTTP library raises its own error
        what = "cannot be reached, or does not answer as expected"
        reason = f"the hub ({endpoint}) {what}: {type(error).__name__}: {_line(error)}"
    raise HubError(
        f"{repo}: {reason}\n  Nothing is lost: the trained model is in {folder}. Push it later with:\n  {later}"
    ) from None


def _command(run: Path, repo: str, *, private: bool | None, revision: str | None) -> str:
    """Return the command that pushes the model of a run."""
    options = [*(["--private"] if private else []), *(["--revision", revision] if revision else [])]
    return " ".join(["rlcore push", str(run), repo, *options])


def _answer(error: Any) -> str:
    """Return the code and the message of the hub's answer, without the client's URLs."""
    message = f"{error.response.status_code} {error.response.reason_phrase}".strip()
    return _line(f"{message} ({error.server_message})" if error.server_message else message)


def _line(error: object) -> str:
    return hide_logins(" ".join(str(error).split()))[:300]


CARD = "README.md"
NUM_COLUMNS, NUM_SAMPLES, MAX_CHARS = 6, 3, 1000
CURVES = ("loss/total", "reward/mean", "eval/", "kl/mean", "grad/norm", "lr")
"""Metrics in the table of curves, after those that the trainer names; the last character / selects a group."""
TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSeq2SeqLM": "text2text-generation",
    "AutoModelForSequenceClassification": "text-classification",
}
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_SOURCES = ("prompts", "samples", "eval_prompts", "eval_samples", "rewards")


def write_card(run: RunView, folder: Path) -> None:
    """Write the card of a run's model to README.md in the model's folder."""
    (folder / CARD).write_text(model_card(run), encoding="utf-8")


def model_card(run: RunView) -> str:
    """Return the card of a run's model as Markdown, with metadata that the hub reads."""
    options = to_record(run.config)
    trainer = _trainer(run)
    sections = [
        ("Algorithm", _algorithm(run, trainer)),
        ("Data", _data(options["data"])),
        ("Curves", _curves(_lines(run.dir / "metrics.jsonl"), (*run.headline, *CURVES))),
        ("Samples", _samples(_lines(run.dir / "completions.jsonl"))),
        ("Configuration", f"<details>\n\n```yaml\n{dump_yaml(options)}```\n\n</details>"),
        ("Versions", _versions(trainer)),
    ]
    base = str(options["model"].get("path"))
    title = f"# {run.dir.name}\n\nTrained from `{base}` with rlcore, {run.step} steps."
    head = f"---\n{_metadata(run, options).to_yaml()}\n---"
    loader = run.export_class
    loading = f'```python\nfrom transformers import {loader}\n\nmodel = {loader}.from_pretrained("...")\n```'
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in sections if text)
    return f"{head}\n\n{title}\n\n{loading}\n\n{body}\n"


def _metadata(run: RunView, options: Options) -> ModelCardData:
    base, name = options["model"].get("path"), str(options["trainer"].get("name")).rpartition(":")[2]
    is_published = isinstance(base, str) and is_hub_id(base) and existing_path(base) is None
    data = [options["data"][name] for name in _SOURCES]
    published = {each.partition(":")[0] for each in data if isinstance(each, str) and _is_published(each)}
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=TASKS.get(run.export_class),
        base_model=base if is_published else None,
        datasets=sorted(published) or None,
        tags=["rlcore", name],
    )


def _is_published(source: str) -> bool:
    name = source.partition(":")[0]
    return "/" in name and is_hub_id(name) and not Path(name).suffix and existing_path(name) is None


def _trainer(run: RunView) -> Component[Any] | None:
    try:
        return registries().trainers.get(str(run.config.trainer.get("name")))
    except RLCoreError:  # its plugin may be disabled since the run
        return None


def _algorithm(run: RunView, trainer: Component[object] | None) -> str:
    """Return the summary of the trainer, and the sources that the docstring of its package names."""
    if trainer is None:
        return f"`{run.config.trainer.get('name')}`"
    package = sys.modules.get(str(trainer.target().__module__).partition(".")[0])
    paragraphs = inspect.cleandoc(package.__doc__ or "").split("\n\n") if package else []
    sources = [" ".join(each.split()) for each in paragraphs[1:] if _ARXIV.search(each)]
    linked = [_ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", each) for each in sources]
    about = " ".join(paragraphs[0].split()).rstrip(":") if paragraphs else trainer.summary
    return "\n\n".join([f"`{trainer.name}` ({trainer.dist} {trainer.version}): {about}", *linked])


def _data(data: Mapping[str, object]) -> str:
    rows = []
    for name in (*_SOURCES, "reward_fn", "metric_fn"):
        given = data.get(name)
        if given is not None:
            shown = f"{len(given)} rows" if isinstance(given, list) and name in _SOURCES else f"`{given}`"
            rows.append((f"`{name}`", shown))
    return _table(("input", "source"), rows) if rows else ""


def _curves(lines: Sequence[Mapping[str, Any]], mains: Sequence[str]) -> str:
    """Return a table of the main metrics at a few steps, the first and the last among them."""
    present = dict.fromkeys(name for line in lines for name in line if "time" not in name)
    names = sorted(
        (name for name in present if place_in(mains, name) < len(mains)), key=lambda name: place_in(mains, name)
    )
    rows = []
    for name in names:
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        last = len(points) - 1
        chosen = sorted({round(i * last / (NUM_COLUMNS - 1)) for i in range(NUM_COLUMNS)}) if points else []
        shown = ", ".join(f"{points[i][0]}: {_number(points[i][1])}" for i in chosen)
        rows.append((f"`{name}`", shown))
    return _table(("metric", "step: value"), rows) if rows else ""


def _number(value: float) -> str:
    """Return an integer as it is, and another number with four decimals, or digits if it is small or large."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.4f}" if not value or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def _samples(lines: Sequence[Mapping[str, object]]) -> str:
    """Return the first completions of the last evaluation."""
    last = [display_row(line) for line in lines if line["step"] == lines[-1]["step"]][:NUM_SAMPLES]
    return "\n\n".join(
        f"{name.capitalize()}:\n\n{_block(line.get(name, ''))}" for line in last for name in ("prompt", "output")
    )


def _block(text: str) -> str:
    """Return text as an indented block of code, which its content cannot close."""
    cut = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"
    return "\n".join(f"    {line}" for line in cut.splitlines() or [" "])


def _versions(trainer: Component[object] | None) -> str:
    dists = ["rlcore", *([trainer.dist] if trainer else []), "transformers", "torch", "datasets"]
    rows = [("Python", platform.python_version()), *((dist, version(dist)) for dist in dict.fromkeys(dists))]
    return _table(("package", "version"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _lines(file: Path) -> list[dict[str, object]]:
    try:
        return [from_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):  # the folder may have been moved since the run
        return []
