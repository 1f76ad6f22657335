"""Dists for laws about dists: a right one, and those that differ from it in one thing."""

from __future__ import annotations

import attrs
from sites import METADATA, Site

from rlcore_testing import Subject

REQUIREMENT = ("rlcore>=0.1,<0.2",)
RIGHT = """
from rlcore import hookimpl

@hookimpl
def register_rewards(register):
    register("polite", "json:dumps", summary="says please")
"""
OBSERVER = """
from rlcore import hookimpl

@hookimpl
def on_step(run, metrics):
    pass
"""
COUNTING = """
from rlcore import hookimpl

seen = []

@hookimpl
def register_rewards(register):
    seen.append(1)
    register(f"polite-{len(seen)}", "json:dumps")
"""
HERE_ONLY = """
import os

from rlcore import hookimpl

def find(process):
    return {os.getpid(): polite}[process]

class Reward:
    def __call__(self, outputs):
        return [0.0 for _ in outputs]
    def __reduce__(self):
        return find, (os.getpid(),)

polite = Reward()

@hookimpl
def register_rewards(register):
    register("polite", polite)
"""


WRAPPING = """
import functools

from rlcore import hookimpl

@hookimpl
def wrap_component(component, config):
    return KINDS.get(component.kind)

class Timed:
    def __init__(self, inner):
        self.__wrapped__ = inner
    def __call__(self, *arguments, **options):
        return self.__wrapped__(*arguments, **options)
    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)

def bare(inner):
    return lambda *arguments, **options: inner(*arguments, **options)

def of_functions(inner):
    return functools.wraps(inner)(lambda *arguments, **options: inner(*arguments, **options))

def of_methods(policy):
    class Policy:
        score, reference_score = policy.score, policy.reference_score
    return Policy()

KINDS = {
    "samplers": Timed, "rewards": Timed, "trainers": Timed, "loggers": Timed, "architectures": lambda policy: policy
}
"""


PLAYING = """
from rlcore import hookimpl
from rlcore.hookspecs import Services

@hookimpl
def register_services(register):
    register(Services(episode_player=play_environment))

def play_environment(environment, config):
    import attrs
    from rlcore_environments.player import Player

    class Other(Player):
        def sampler(self, sampler):
            right = super().sampler(sampler)
            def play(policy, prompts, sampling, **given):
                batch = right(policy, prompts, sampling, **given)
                return CHANGED
            return play

    return Other(MADE, config)

def again(environment):
    class Again(environment):
        def step(self, turn):
            answer = super().step(turn)
            return super().step(turn) if answer.done else answer
    return Again
"""
"""Episodes are played with the loop of rlcore-environments, and changed."""
CHANGES = {
    "plays_right": "batch",
    "plays_and_chooses_all": "attrs.evolve(batch, action_mask=batch.mask.clone())",
    "plays_and_moves_rewards": "batch.with_columns(rewards=batch['rewards'].roll(-1, 1))",
    "plays_and_hides_failures": "attrs.evolve(batch, failures=[''] * len(batch))",
    "plays_and_forgets_points": "attrs.evolve(batch, mask=batch.mask & (batch.tokens != 27))",
    "plays_and_lets_speak": "attrs.evolve(batch, tokens=batch.tokens.where(batch.tokens != 29, 30))",
}


@attrs.frozen
class Dist:
    """Describe how a dist `acme` differs from a right one."""

    plugin: str = RIGHT
    entry: str = "acme.plugin"
    requires: tuple[str, ...] = REQUIREMENT
    without: str = "nothing"

    def install(self, site: Site) -> Subject:
        files = {"acme/__init__.py": "", "acme/plugin.py": self.plugin, "acme/py.typed": ""}
        kept = {path: text for path, text in files.items() if self.without not in path}
        lines = "\n".join(line for line in METADATA.splitlines() if not line.startswith(self.without))
        site.install("acme", kept, entry=self.entry, requires=self.requires, metadata=lines)
        return site.subject("acme")


DISTS = {
    "right": Dist(),
    "observer": Dist(OBSERVER),
    "raising": Dist("raise RuntimeError('no disk')"),
    "misspelt": Dist(RIGHT.replace("rewards(", "reward(")),
    "old": Dist(requires=("rlcore<0.1",)),
    "empty": Dist("x = 1\n"),
    "nowhere": Dist(entry="acme.plugins"),
    "no_attribute": Dist(entry="acme.plugin:hooks"),
    "no_name": Dist(entry="acme plugin"),
    "heavy": Dist("import torch\n" + RIGHT),
    "slow": Dist("import time\ntime.sleep(0.6)\n" + RIGHT),
    "printing": Dist("print('hello')\n" + RIGHT),
    "writing": Dist("open('left', 'w').close()\n" + RIGHT),
    "setting": Dist("import os\nos.environ['ACME'] = '1'\n" + RIGHT),
    "seeding": Dist("import random\nrandom.seed(0)\n" + RIGHT),
    "logging": Dist("import logging\nlogging.basicConfig()\n" + RIGHT),
    "threading": Dist("import threading as t\nt.Timer(3, print).start()\n" + RIGHT),
    "counting": Dist(COUNTING),
    "by_process": Dist("import os\n" + RIGHT.replace('"polite"', 'f"polite-{os.getpid()}"')),
    "nameless": Dist(RIGHT.replace('"json:dumps"', "lambda outputs: [0]")),
    "here_only": Dist(HERE_ONLY),
    "wrapping": Dist(WRAPPING),
    **{
        name: Dist(f"{WRAPPING}KINDS = {{{kind!r}: {wrapper}}}\n")
        for name, kind, wrapper in [
            ("wrapping_barely", "schedulers", "bare"),
            ("wrapping_functions", "rewards", "of_functions"),
            ("wrapping_methods", "architectures", "of_methods"),
            ("wrapping_trainers", "trainers", "bare"),
            ("wrapping_loggers", "loggers", "bare"),
        ]
    },
    **{
        name: Dist(PLAYING.replace("CHANGED", changed).replace("MADE", "environment"))
        for name, changed in CHANGES.items()
    },
    "plays_and_goes_on": Dist(PLAYING.replace("CHANGED", "batch").replace("MADE", "again(environment)")),
    "unbounded_above": Dist(requires=("rlcore>=0.1",)),
    "unbounded_below": Dist(requires=("rlcore<0.2",)),
    "requires_none": Dist(requires=("attrs",)),
    "for_some": Dist(requires=("rlcore>=0.1,<0.2; sys_platform == 'other'",)),
    "no_summary": Dist(without="Summary"),
    "no_licence": Dist(without="License"),
    "no_python": Dist(without="Requires-Python"),
    "untyped": Dist(without="py.typed"),
}
