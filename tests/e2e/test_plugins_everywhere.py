"""Tests of plugin discovery in every process of a run: all ranks must find the same plugins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dists import GOOD, ROOT, Site
from e2e_processes import HERE, run_process, run_two_ranks
from warm_python import WarmPython

Launch = Callable[..., subprocess.CompletedProcess[str]]

RUN = """
import json, multiprocessing, os, sys
from pathlib import Path

def see():
    from rlcore.plugins.registry import registries
    found = registries()
    return [[str(plugin), plugin.state, plugin.reason] for plugin in found.discovery.plugins]

def tell(queue):
    queue.put(see())

def reward(outputs):
    seen = {"itself": see()}
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        worker = context.Process(target=tell, args=(queue,))
        worker.start()
        seen[method] = queue.get(timeout=600)
        worker.join()
    Path(sys.argv[1], f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))
    return [float(len(output)) for output in outputs]

if __name__ == "__main__":
    from e2e_scenarios import train
    plugins = {"disable": ["acme-off", "nobody"]}
    changes = {"run": {"steps": 1}, "trainer": {"rollouts": 4}, "reward_fn": reward, "plugins": plugins}
    train("ppo_plain", Path(sys.argv[1]), "run", changes)
    from rlcore.plugins.registry import all_registries
    after = [plugin.reason for plugin in all_registries().discovery.plugins if plugin.dist == "acme-off"]
    Path(sys.argv[1], f"after-{os.environ['RANK']}.json").write_text(json.dumps(after))
"""
APART = """
import os, sys
from pathlib import Path
rank = os.environ["RANK"]
if rank == "1":
    {difference}
import rlcore
from rlcore_ppo.config import PPOConfig
try:
    rlcore.train("nowhere", trainer=PPOConfig(), prompts=["a"], reward_fn=len)
except rlcore.errors.RLCoreError as error:
    Path(sys.argv[1], f"said-{{rank}}.txt").write_text(f"{{type(error).__name__}}: {{error}}")
    sys.exit(1)
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "installed")


@pytest.fixture
def torchrun(tmp_path: Path, site: Site) -> Launch:
    """Start a script with torchrun on two ranks with `site` on their path."""

    def start(script: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        return run_process([*command, *write(script, tmp_path)], PYTHONPATH=search(site))

    return start


@pytest.fixture
def launch(tmp_path: Path, site: Site, warm_python: WarmPython) -> Launch:
    """Run a script on two ranks with `site` on their path."""
    return lambda script: run_two_ranks(warm_python, write(script, tmp_path), PYTHONPATH=search(site))


def write(script: str, folder: Path) -> list[str]:
    """Return a script's path and its argument, the script's folder."""
    path = folder / "script.py"
    path.write_text(script)
    return [str(path), str(folder)]


def search(site: Site) -> str:
    return ":".join(map(str, (site.folder, ROOT, HERE)))


@pytest.mark.nightly
def test_ranks_and_the_workers_they_start_see_the_same_plugins(torchrun: Launch, site: Site, tmp_path: Path) -> None:
    site.install("acme-on", GOOD.format(name="on"))
    mark = tmp_path / "imported"
    site.install("acme-off", f"open({str(mark)!r}, 'a').close()\nraise SystemExit\n")
    done = torchrun(RUN)
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    assert (tmp_path / "run" / "model").is_dir(), done.stderr
    lists = [found for each in seen for found in each.values()]
    assert len(lists) == 6
    assert all(found == lists[0] for found in lists)
    assert ["acme-on 0.3", "ok", ""] in lists[0]
    assert ["acme-off 0.3", "disabled", "plugins.disable in the configuration names it"] in lists[0]
    # Modules excluded for the run are importable again afterwards; importing this one raises SystemExit.
    assert json.loads((tmp_path / "after-0.json").read_text()) == ["SystemExit"]
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["plugins"] == {
        "disable": ["acme-off", "nobody"], "only": None,
    }  # fmt: skip
    note = "plugins.disable in the configuration names 'nobody', which is not installed"
    assert done.stderr.count(note) == 1


@pytest.mark.slow
def test_a_plugin_left_out_of_a_run_is_never_imported_in_it(site: Site, tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    site.install("acme-off", f"open({str(mark)!r}, 'a').close()\n")
    script = RUN.replace("    from rlcore.plugins.registry import all_registries\n", "    sys.exit()\n")
    done = run_process([sys.executable, *write(script, tmp_path)], PYTHONPATH=search(site), RANK="0")
    assert (tmp_path / "run" / "model").is_dir(), done.stderr
    assert not mark.exists()


DIFFERENCES = {
    "lacks the trainer and is strict": (
        'os.environ.update(RLCORE_DISABLE_PLUGINS="rlcore-ppo", RLCORE_STRICT_PLUGINS="1")',
        "rlcore-ppo 0.1.0 (ppo)",
        "rlcore-ppo 0.1.0 (ppo): disabled, RLCORE_DISABLE_PLUGINS names it",
    ),
    "has another version": ("sys.path.insert(0, {second!r})", "acme 0.3 (main)", "acme 0.4 (main)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_rank_with_other_plugins_is_refused_on_every_rank_with_both_lists(
    launch: Launch, site: Site, tmp_path: Path, name: str
) -> None:
    difference, first, other = DIFFERENCES[name]
    second = tmp_path / "second"
    site.install("acme", GOOD.format(name="x"))
    site.install("acme", GOOD.format(name="x"), version="0.4", folder=second)
    done = launch(APART.format(difference=difference.format(second=str(second))))
    assert done.returncode != 0
    said = [(tmp_path / f"said-{rank}.txt").read_text() for rank in (0, 1)]
    assert said[0] == said[1]
    lines = said[0].splitlines()
    assert lines[0] == "RanksError: rank 1 has other plugins than rank 0; every rank must have the same"
    assert lines[1:3] == [f"  on rank 0 only: {first}", f"  on rank 1 only: {other}"]
    assert lines[3].startswith("  rank 0 has: rlcore 0.1.0 (core), acme 0.3 (main), ")
    assert lines[4].startswith("  rank 1 has: rlcore 0.1.0 (core), acme 0.")
    assert ("rlcore-ppo" in lines[4]) == (name == "has another version")


FAILS_ON_ONE = """
import os
from rlcore import hookimpl

@hookimpl
def on_step(run):
    if os.environ["RANK"] == "1":
        raise ValueError("only here")
"""
SHORT = """
import sys
from pathlib import Path
from e2e_scenarios import train
train("ppo_plain", Path(sys.argv[1]), "run", {"run": {"steps": 1}, "trainer": {"rollouts": 4}, "loggers": ["console"]})
"""


@pytest.mark.slow
def test_an_observer_that_is_dropped_on_another_rank_is_listed_when_the_run_ends(launch: Launch, site: Site) -> None:
    site.install("acme", FAILS_ON_ONE)
    done = launch(SHORT)
    assert done.returncode == 0, done.stderr
    listed = [line for line in done.stderr.splitlines() if "plugins were dropped in this run" in line]
    assert len(listed) == 1, done.stderr
    assert "acme:main  on_step at step 1: ValueError: only here" in listed[0]
