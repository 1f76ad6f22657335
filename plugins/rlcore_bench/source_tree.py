"""Versions of a git repository, written to folders of their own: a commit, or the working tree as it is."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import attrs

from rlcore import RLCoreError
from rlcore.safe_text import visible

_UNTRACKED = ("ls-files", "-z", "--others", "--exclude-standard")


class UnknownVersion(RLCoreError, LookupError):
    """A version that cannot be compared: no git repository, or no such commit in it."""


@attrs.frozen
class Version:
    """A version of a repository.

    Attributes:
        label: its name in tables and legends.
        about: one sentence: commit, date and subject, and what is not committed.
        commit: the full hash.
        is_working_tree: whether it is the working tree, with its uncommitted changes, instead of the commit.
    """

    label: str
    about: str
    commit: str
    is_working_tree: bool = False


class Repository:
    """A git repository, which is only read.

    Args:
        folder: any folder of its working tree.

    Raises:
        UnknownVersion: the folder is in no working tree, or git is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("git") is None:
            raise UnknownVersion("git is not installed, and `rlcore bench` takes versions from a git repository")
        self.root = folder
        found = self._git("rev-parse", "--show-toplevel")
        if found.returncode:
            raise UnknownVersion(
                f"{folder}: is in no git repository ({_reason(found)}); `rlcore bench` compares two versions of one: "
                "run it in a clone of rlcore"
            )
        self.root = Path(_text(found))

    def commit(self, ref: str) -> Version:
        """Return the version of a branch, tag or hash.

        Raises:
            UnknownVersion: it does not name a commit of this repository.
        """
        found = self._git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if found.returncode:
            raise UnknownVersion(
                f"{ref}: is no commit of {self.root}; name a branch, a tag or a hash (`git log --oneline` lists "
                "commits, and `git fetch` gets those of others)"
            )
        commit = _text(found)
        return Version(ref, self._describe(commit), commit)

    def working_tree(self) -> Version:
        """Return the working tree: tracked files as they are, and untracked ones that git does not ignore.

        Raises:
            UnknownVersion: there is no commit yet.
        """
        head = self.commit("HEAD")
        changed = self._names("diff", "--name-only", "-z", "HEAD") + self._names(*_UNTRACKED)
        if not changed:
            return attrs.evolve(head, label="working tree", is_working_tree=True)
        about = f"{head.about}, with uncommitted changes in {len(changed)} file{'s' * (len(changed) > 1)}"
        return attrs.evolve(head, label="working tree", about=about, is_working_tree=True)

    def write(self, version: Version, folder: Path) -> None:
        """Write the files of a version to a new folder."""
        folder.mkdir(parents=True)
        if not version.is_working_tree:
            archive = self._run("archive", "--format=tar", version.commit)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(folder, filter="tar")
            return
        for name in self._names(*_UNTRACKED, "--cached"):
            source = self.root / name
            if source.is_file() or source.is_symlink():  # not deleted, no submodule
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name, follow_symlinks=False)

    def _describe(self, commit: str) -> str:
        shown = self._run("show", "--no-patch", "--format=%h of %ci: %s", commit)
        return visible(shown.decode(errors="replace").strip())

    def _names(self, *arguments: str) -> list[str]:
        return [name for name in self._run(*arguments).decode(errors="surrogateescape").split("\0") if name]

    def _run(self, *arguments: str) -> bytes:
        found = self._git(*arguments)
        if found.returncode:
            raise UnknownVersion(f"{self.root}: git {arguments[0]} failed: {_reason(found)}")
        return found.stdout

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, check=False)  # noqa: S603  no shell reads the arguments


def _text(found: subprocess.CompletedProcess[bytes]) -> str:
    return found.stdout.decode(errors="surrogateescape").strip()


def _reason(found: subprocess.CompletedProcess[bytes]) -> str:
    return visible(found.stderr.decode(errors="replace").strip().partition("\n")[0])
