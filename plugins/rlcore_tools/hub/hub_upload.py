"""Upload a trained model's folder to the Hugging Face hub; this module is an `rlcore.protocols.Uploader`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError, HubError
from rlcore.safe_text import hide_logins, show

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


def _explained(send: Callable[[], Any], repo: str, folder: Path, later: str, endpoint: str) -> Any:
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
