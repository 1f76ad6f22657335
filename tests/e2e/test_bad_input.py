"""Tests of user errors: one message with what, where, the value and the remedy; nothing is lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from e2e_processes import run_process
from e2e_scenarios import save_model

import rlcore
from rlcore import errors
from rlcore.cli import main

PPO = """
trainer: {name: ppo, rollouts: 4, batch_size: 4, epochs: 1}
model: {path: base}
data: {prompts: prompts.jsonl, reward_fn: "bad_rewards:count"}
gen: {max_new_tokens: 4}
run: {root: runs, name: r, steps: 2}
loggers: []
"""
SFT = """
trainer: {name: sft, batch_size: 2}
model: {path: base}
data: {samples: [[a, bc], [d, e]]}
run: {root: runs, name: r, steps: 2}
loggers: []
"""
REWARDS = """
def count(outputs): return [o.count("a") for o in outputs]
def raises(outputs): raise ZeroDivisionError("no score")
def short(outputs): return [1.0]
def nan(outputs): return [float("nan")] * len(outputs)
def text(outputs): return ["good"] * len(outputs)
def leaves(outputs): raise SystemExit(0)
class Silent(Exception):
    def __str__(self): raise SystemExit(0)
def silent(outputs): raise Silent
def late(outputs):
    late.calls = getattr(late, "calls", 0) + 1
    if late.calls == 3: raise ValueError("out of luck")
    return [1.0] * len(outputs)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "base")
    for path in save_model(folder / "mute").glob("token*"):
        path.unlink()
    return folder


@pytest.fixture
def here(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("bad_rewards", None)
    for name in ("base", "mute"):
        (tmp_path / name).symlink_to(models / name)
    for name, text in {"ppo.yaml": PPO, "sft.yaml": SFT, "bad_rewards.py": REWARDS}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "exiting.py").write_text("import sys\ndef __getattr__(name): sys.exit(0)\n")
    (tmp_path / "foreign.py").write_text("class Foreign(BaseException): pass\nraise Foreign('no')\n")
    (tmp_path / "broken.yaml").write_text("trainer: {name: ppo\nmodel: [")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "bc"}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "a" * 80}))
    (tmp_path / "half.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b\\ud800"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    return tmp_path


EVERYWHERE = (
    "ppo run.seed=-1 checkpoint.keep_last=0 trainer.clip=7 trainer.optimizer.name=adamx model.unfrozen_layers=-1 "
    "loggers=[consle] gen.beta=[0,1] eval.batch_size=x sampler=x data.reward_fn=nothing"
)
"""One mistake in every section."""
NOT_BEGUN = [
    ("ppo trainer.name=poo", "UnknownTrainer", ["'poo'", "Did you mean 'ppo'", "installed:"]),
    ("ppo model.architecture=causl_lm", "UnknownArchitecture", ["'causl_lm'", "'causal_lm'"]),
    ("ppo loggers=[consle]", "UnknownLogger", ["'consle'", "'console'"]),
    ("ppo sampler=defalt", "UnknownSampler", ["'defalt'", "'default'"]),
    ("ppo store=memry", "UnknownRolloutStore", ["'memry'", "'memory'"]),
    ("ppo trainer.clipp=0.1", "ConfigError", ["trainer.clipp: no such option", "did you mean 'clip'"]),
    ("ppo trainer.clip='0.1'", "ConfigError", ["trainer.clip = '0.1'", "must be a number"]),
    (
        EVERYWHERE,
        "ConfigError",
        [
            "run.seed = -1",
            "checkpoint.keep_last = 0",
            "trainer.clip = 7",
            "\nUnknownOptimizer: no",
            "model.unfrozen_layers = -1",
            "UnknownLogger: ",
            "gen.beta = [0, 1]",
            "eval.batch_size = 'x'",
            "UnknownSampler: ",
            "UnknownReward: ",
        ],
    ),
    (
        "ppo trainer.name=poo run.seed=-1",
        "ConfigError",
        ["UnknownTrainer: no trainer", "run.seed = -1"],
    ),
    ("ppo trainer.optimizer.lr=-1 data.prompts=null", "ConfigError", ["trainer.optimizer.lr = -1", "missing: prompts"]),
    (
        "ppo trainer.clip=1.7 trainer.epochs=2.5",
        "ConfigError",
        ["trainer.clip = 1.7", "[0, 1]", "trainer.epochs = 2.5"],
    ),
    ("ppo gen.temprature=3 run.stepz=3", "ConfigError", ["did you mean 'temperature'", "did you mean 'steps'"]),
    ("ppo eval.gen={temprature: 1}", "ConfigError", ["did you mean 'temperature'"]),
    ("ppo nonsense", "ConfigError", ["'nonsense'", "key=value"]),
    ("broken", "ConfigError", ["broken.yaml:2"]),
    ("missing", "ConfigError", ["missing.yaml: cannot be read"]),
    ("ppo data.reward_fn=null", "InputsError", ["'ppo' needs reward_fn and prompts; missing: reward_fn", "data:"]),
    ("ppo data.prompts=null", "InputsError", ["missing: prompts"]),
    ("sft trainer.name=ppo data.reward_fn=bad_rewards:count", "InputsError", ["missing: prompts", "trainer 'sft'"]),
    ("ppo gen.beta=[0,100]", "ConfigError", ["gen.beta = [0, 100]", "set eval.gen.beta"]),
    ("ppo trainer.name=null data.reward_fn=null", "InputsError", ["nothing to learn from", "given were prompts"]),
    ("ppo data.reward_fn=bad_rewards:nothing", "DataError", ["'bad_rewards:nothing'", "has no 'nothing'", "'count'"]),
    ("ppo data.reward_fn=no_such_module:f", "DataError", ["no_such_module", "Searched: the installed modules and"]),
    ("ppo data.reward_fn=leaving:f", "DataError", ["'leaving:f'", "failed, SystemExit: 0"]),
    ("ppo data.reward_fn=exiting:f", "DataError", ["'exiting:f': reading 'f' raised SystemExit: 0"]),
    ("ppo data.reward_fn=foreign:f", "DataError", ["'foreign:f'", "failed, Foreign: no"]),
    ("ppo data.prompts=long.jsonl", "DataError", ["prompts[0]: has 80 tokens", "at most 63", "max_prompt_tokens"]),
    ("ppo data.prompts=empty.jsonl", "DataError", ["prompts is empty"]),
    ("ppo data.prompts=[]", "DataError", ["prompts is empty"]),
    ("ppo data.prompts=gone.jsonl", "DataError", ["'gone.jsonl'", "no such file"]),
    ("ppo data.eval_prompts=long.jsonl", "DataError", ["80 tokens"]),
    ("ppo data.metric_fn=bad_rewards:nothing", "DataError", ["metric_fn", "has no 'nothing'"]),
    ("sft data.samples=[[a,b,c]]", "DataError", ["samples[0]: has 3 texts", "must be even"]),
    ("sft data.rewards=[1.0]", "InputsError", ["rewards: has 1 entries for 2 samples"]),
    ("sft data.samples=<Dataset>", "InputsError", ["'<Dataset>'", "from Python"]),
    ("ppo model.path=mute", "ModelError", ["'mute' holds no tokenizer", "model.tokenizer"]),
    ("ppo model.path=./gone", "ModelError", ["'./gone'", "no such folder"]),
    ("ppo model.path=my--model", "ModelError", ["'my--model'", "no such folder under", "no model on the hub"]),
    ("ppo model.path=m\u00e9l.", "ModelError", ["'m\u00e9l.'", "no such folder under", "no model on the hub"]),
    (f"ppo model.path={'x' * 300}", "ModelError", ["...: there is no such folder under"]),
    (f"ppo data.prompts={'a' * 300}", "DataError", ["Pass a single text in a list"]),
    ("ppo data.prompts=half.jsonl", "DataError", ["prompts[1]: cannot be tokenised", "U+D800, half of a character"]),
    ("ppo model.path=3", "InputsError", ["model = 3"]),
    ("ppo run.name=a/b", "ConfigError", ["'a/b'", "plain folder name"]),
    ("ppo run.name=null run.resume=auto", "ConfigError", ["needs run.name"]),
    ("ppo run.resume=gone", "CheckpointError", ["gone: there is no checkpoint here"]),
    ("ppo eval.gen={temperature: [1, 1]}", "ConfigError", ["eval.gen.temperature = [1, 1]", "holds 1 twice"]),
    (
        "ppo eval.gen={beta: [0, 4]}",
        "ConfigError",
        ["eval.gen.beta = 4", "choose a trainer that gives its policy Q-heads"],
    ),
    ("ppo gen.beta=4", "ConfigError", ["gen.beta = 4", "this policy has none"]),
    ("ppo data.logit_mask=gone.npy", "DataError", ["logit_mask = 'gone.npy': there is no such file"]),
    ("ppo data.logit_mask=[[true]]", "DataError", ["has 1 rows and 1 columns", "chooses among 32 tokens"]),
    ("ppo data.logit_mask=<Tensor>", "InputsError", ["data.logit_mask = '<Tensor>'", "from Python"]),
    ("ppo model.tokenizer={paddingside: left}", "ConfigError", ["did you mean 'padding_side'"]),
    ("ppo checkpoint.keep_best=1", "ConfigError", ["checkpoint.keep_best = 1", "eval.every"]),
]


@pytest.mark.parametrize(("line", "kind", "parts"), NOT_BEGUN, ids=[case[0][:80] for case in NOT_BEGUN])
def test_a_run_that_cannot_begin_is_an_error_and_leaves_no_folder(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, kind: str, parts: list[str]
) -> None:
    file, _, rest = line.partition(" ")
    overrides = [rest] if "{" in rest else rest.split()
    assert main(["train", f"{file}.yaml", *overrides]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert f"{kind}: " in said.err
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err
    assert not (here / "runs" / "r").exists()


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("raises", ["ZeroDivisionError: no score", "bad_rewards.py:3"]),
        ("short", ["returned 1 values for 4 samples"]),
        ("nan", ["returned nan for sample 0", "finite"]),
        ("text", ["'good'", "not a number"]),
        ("leaves", ["raised SystemExit: 0", "bad_rewards.py"]),
        ("silent", ["raised Silent at ", "bad_rewards.py"]),
    ],
)
def test_a_reward_that_cannot_be_used_names_the_batch(
    here: Path, capsys: pytest.CaptureFixture[str], function: str, parts: list[str]
) -> None:
    assert main(["train", "ppo.yaml", f"data.reward_fn=bad_rewards:{function}", "run.check_functions=false"]) == 1
    said = capsys.readouterr().err
    for part in [f"RewardError: reward function '{function}' (step 1, batch of 4)", *parts]:
        assert part in said
    assert not (here / "runs/r").exists()
    assert main(["train", "ppo.yaml"]) == 0


def test_a_first_step_that_fails_restores_the_run_that_it_was_to_overwrite(here: Path) -> None:
    assert main(["train", "ppo.yaml"]) == 0
    before = {path: path.read_bytes() for path in (here / "runs/r").rglob("*") if path.is_file()}
    failing = ["data.reward_fn=bad_rewards:raises", "run.check_functions=false"]
    evaluated = ["eval.at_start=true", "data.eval_prompts=[a]"]
    assert main(["train", "ppo.yaml", "run.overwrite=true", *failing, *evaluated]) == 1
    assert {path: path.read_bytes() for path in (here / "runs/r").rglob("*") if path.is_file()} == before
    assert main(["train", "ppo.yaml", "run.resume=auto", "run.steps=3", *failing]) == 1
    assert main(["train", "ppo.yaml", "run.resume=auto", "run.steps=3"]) == 0


@pytest.mark.slow
def test_a_failing_reward_keeps_what_was_learned(here: Path) -> None:
    failed = run_process(
        [sys.executable, "-m", "rlcore", "train", "ppo.yaml", "data.reward_fn=bad_rewards:late", "checkpoint.every=1",
         "run.steps=5"],
        cwd=here,
    )  # fmt: skip
    assert failed.returncode == 1
    assert failed.stderr.strip().splitlines()[-1].startswith("RewardError: reward function 'late' (step 3, batch of 4)")
    assert "Traceback" not in failed.stderr
    assert len((here / "runs/r/metrics.jsonl").read_text().splitlines()) == 2
    assert sorted(path.name for path in (here / "runs/r/checkpoints").iterdir()) == ["00000001", "00000002"]


def test_a_failing_metric_at_the_end_keeps_what_was_learned(here: Path) -> None:
    with pytest.raises(errors.RewardError, match=r"metric function 'broken' .evaluation after step 2, batch of 2"):
        rlcore.train(config="ppo.yaml", metric_fn=broken, run={"check_functions": False})
    assert [path.name for path in (here / "runs/r/checkpoints").iterdir()] == ["00000002"]


def broken(outputs: list[str]) -> dict[str, list[float]]:
    raise KeyError("nothing")


def test_a_run_folder_is_overwritten_only_on_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sft.yaml"]) == 0
    before = (here / "runs/r/metrics.jsonl").read_text()
    assert main(["train", "sft.yaml"]) == 1
    said = capsys.readouterr().err
    for part in ("RunExists: runs/r already holds a run", "run.resume=auto", "run.overwrite=true", "run.name"):
        assert part in said
    # A run that cannot start does not delete the run it was to overwrite.
    assert main(["train", "sft.yaml", "run.overwrite=true", "data.samples=[[a]]"]) == 1
    assert (here / "runs/r/metrics.jsonl").read_text() == before
    assert (here / "runs/r/model").is_dir()
    assert main(["train", "sft.yaml", "run.overwrite=true", "run.steps=1"]) == 0
    assert len((here / "runs/r/metrics.jsonl").read_text().splitlines()) == 1
    assert [path.name for path in (here / "runs/r").glob(".*")] == [".lock"]


def test_an_unknown_metric_for_the_best_checkpoint_is_refused_at_the_latest_by_the_first_evaluation(here: Path) -> None:
    best = {"keep_best": 1, "metric": "eval/rewrd/mean"}
    with pytest.raises(errors.ConfigError, match=r"'eval/rewrd/mean'.*eval/reward/mean") as raised:
        rlcore.train(config="ppo.yaml", eval={"every": 1}, checkpoint=best)
    assert "\n" not in str(raised.value)
    assert not (here / "runs/r").exists()
    with pytest.raises(errors.ConfigError, match=r"'eval/rewrd/mean'.*eval/chars, .*eval/reward/mean") as raised:
        rlcore.train(config="ppo.yaml", eval={"every": 1}, checkpoint=best, metric_fn=count_characters)
    assert "\n" not in str(raised.value)
    assert [json.loads(line)["step"] for line in (here / "runs/r/metrics.jsonl").open()] == [1, 1]


def count_characters(outputs: list[str]) -> dict[str, list[float]]:
    return {"chars": [float(len(output)) for output in outputs]}


def test_a_run_cannot_be_resumed_with_another_trainer(here: Path) -> None:
    rlcore.train(config="sft.yaml")
    with pytest.raises(errors.CheckpointError, match="was written by trainer 'sft', and 'ppo' cannot resume from it"):
        rlcore.train(config="ppo.yaml", run={"resume": "auto"})
