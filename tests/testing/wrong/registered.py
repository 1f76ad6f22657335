"""The components of the dist `acme-wrong`: those that laws_that_fail.txt names, and right ones. Imports nothing heavy.

A component is the class or function of its name in wrong_<kind>.py: `reads-none` is `ReadsNone`, `reads_none` itself.
"""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFINED = re.compile(r"^(?:class |def |async def )?(\w+)", re.MULTILINE)
PLACES = {
    "architectures": (
        ("wrong_architectures", "wrong_policy_scores", "wrong_decoders", "wrong_heads"),
        "rlcore_transformers.models.model_options:CausalLMConfig",
    ),
    "scorers": (("wrong_scorers",), "rlcore_reward.config:SequenceScorerConfig"),
    "trainers": (("wrong_trainers", "wrong_trainer_losses", "wrong_trainer_runs"), "wrong_trainers:Options"),
    "schedulers": (("wrong_optimizers",), None),
    "rollout_stores": (("wrong_stores",), None),
}
"""The modules of a kind and its options, where they are others than wrong_<kind> and none."""
AS_ARCHITECTURES = {"learners": "learns-", "scorers": "scores-"}
"""Kinds whose components are registered as architectures, with a prefix of their names."""
RIGHT = {
    "commands": ["right", "bare"], "environments": ["right"], "learners": ["Toy", "Unseeded"],
    "loggers": ["right", "service", "declared"], "schedulers": ["no_warm_up"],
    "optimizers": ["undecaying", "whitening"], "architectures": ["partly_in_eval_mode"],
    "pipelines": ["triples", "ranked", "ranked_in_lists"], "rewards": ["right", "right_later", "closing"],
    "samplers": ["no_beta", "best_of_two"],
    "trainers": [
        "right", "imitates", "prefers", "stands-on-triples", "names-a-tuple", "shrinks", "rests", "ranks", "keeps-near",
    ],
}  # fmt: skip
"""Components that break no law, or are used by tests of their own."""
OTHERS = [
    ("architectures", "mistral", "wrong_architectures:build_mistral", None),
    ("architectures", "t5", "wrong_architectures:build_t5", None),
    *(
        ("architectures", name, f"plain_torch:build_{name.lower()}", None)
        for name in ("recurrent", "Hasty", "Unreferenced")
    ),
    ("loggers", "elsewhere", "wrong_loggers:Right", "wrong_loggers:Where"),
    ("pipelines", "right", "wrong_pipelines:right", "wrong_pipelines:Prefix"),
    ("samplers", "keeps_its_copy", "wrong_samplers:KeepsItsCopy", "wrong_samplers:Beam"),
    ("rewards", "counting", "wrong_rewards:counting", "wrong_rewards:Words"),
]
"""Components with a target or options of their own."""


def read_rows() -> list[list[str]]:
    """Return kind, law, name, class of the error, and part of the message of each row of the table."""
    found, kind = [], ""
    for line in (HERE / "laws_that_fail.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line and not line.startswith("#"):
            law, who, *says = line.split(" ", 2)
            name, _, error = who.partition(":")
            found.append([kind, law, name, error, "".join(says)])
    return found


def component(kind: str, name: str) -> tuple[str, str, str, str | None]:
    """Return the kind, name, target and options of a component."""
    modules, options = PLACES.get(kind, ((f"wrong_{kind}",), None))
    wanted = re.sub("[-_]", "", name).lower()
    targets = {
        defined: f"{module}:{defined}"
        for module in modules
        for defined in DEFINED.findall((HERE / f"{module}.py").read_text(encoding="utf-8"))
        if defined.replace("_", "").lower() == wanted
    }
    target = targets.get(name) or next(iter(targets.values()))
    if kind in ("architectures", *AS_ARCHITECTURES):
        return "architectures", AS_ARCHITECTURES.get(kind, "") + name, f"{target}.build", options
    return kind, name, target, options


def components() -> list[tuple[str, str, str, str | None]]:
    """Return all components of the dist."""
    named = [(kind, name) for kind, _, name, *_ in read_rows() if kind not in ("dists", "components")]
    right = [(kind, name) for kind, names in RIGHT.items() for name in names]
    listed = {(kind, name) for kind, name, *_ in OTHERS}
    return [component(*each) for each in dict.fromkeys([*named, *right]) if each not in listed] + OTHERS
