"""One plugin of every kind, made and installed the way a stranger would, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_tools.new_plugin.new_plugin_command import KINDS

sys.path.insert(0, str(Path(__file__).parent))

from scaffold_workshop import Workshop

SCRIPTS = {"pip": "pip._internal.cli.main:main", "pytest": "pytest:main", "rlcore": "rlcore.cli:main"}


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """An environment in which nothing of ours is installed, and a model called gpt2 that needs no download."""
    shop = Workshop(tmp_path_factory.mktemp("workshop"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(shop.folder / "venv")], check=True, timeout=600)
    (site,) = (shop.folder / "venv" / "lib").glob("python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (site / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        script = shop.bin / name
        script.write_text(f"#!{shop.bin}/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)
    make_gpt2().save_pretrained(shop.folder / "gpt2")
    make_tokenizer().save_pretrained(shop.folder / "gpt2")
    return shop


@pytest.fixture(scope="session")
def stranger(workshop: Workshop) -> Workshop:
    """The same with a plugin of every kind, `acme-<kind>`, in a folder of its name, installed."""
    for kind in KINDS:
        workshop.run(f"rlcore new-plugin acme-{kind} --kind {kind}")
        (workshop.folder / f"acme-{kind}" / "gpt2").symlink_to(workshop.folder / "gpt2")
    folders = " ".join(f"-e ./acme-{kind}" for kind in KINDS)
    workshop.run(f"pip install --quiet --no-deps {folders}")
    return workshop
