"""Tests of resuming a run with plugins of another version, excluded or missing plugins, or other plugin options."""

from __future__ import annotations

from pathlib import Path

import pytest
from depths import by_day
from e2e_plugins import OBSERVER, REWARDS, STORE, Plugins, plugins, said_by
from e2e_processes import newest_checkpoint
from e2e_scenarios import train

from rlcore import errors

__all__ = ["plugins"]  # a fixture

SHORT = {"run": {"steps": 2}, "trainer": {"epochs": 1}}
TRAINER = """
@hookimpl
def register_trainers(register):
    register("tuned", "rlcore_sft.trainer:SFTTrainer", config="rlcore_sft.config:SFTConfig")
"""
LOGGER = """
class Quiet:
    def __init__(self, config, run): pass
    def metrics(self, step, metrics): pass
    def completions(self, step, rows): pass
    def close(self, error): pass


@hookimpl
def register_loggers(register):
    register("{name}", Quiet)
"""
RESUMED = {"run": {"steps": 4, "resume": "auto"}, "trainer": {"epochs": 1}}


@pytest.mark.slow
def test_resuming_with_another_version_warns(
    plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.install("acme-rewards", REWARDS, version="0.3")
    train("ppo_config", tmp_path, "run", {**SHORT, "reward_fn": "short"})
    plugins.install("acme-rewards", REWARDS, version="0.4")
    capsys.readouterr()
    assert train("ppo_config", tmp_path, "run", {**RESUMED, "reward_fn": "short"}).run.step == 4
    warning = "the checkpoint was written with acme-rewards 0.3, and 0.4 is installed now"
    assert warning in capsys.readouterr().err
    assert said_by(tmp_path / "run")["acme-rewards"] == "0.4"


@pytest.mark.slow
def test_resuming_without_an_observer_warns_and_goes_on(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.install("acme-watch", OBSERVER.format(hook="on_step", body="pass"))
    train("ppo_config", tmp_path, "run", SHORT)
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "acme-watch")
    capsys.readouterr()
    assert train("ppo_config", tmp_path, "run", {**RESUMED, "run": {"steps": 2, "resume": "auto"}}).run.step == 2
    written = "the checkpoint was written with acme-watch 0.3, which is"
    assert f"{written} disabled now: RLCORE_DISABLE_PLUGINS names it" in capsys.readouterr().err
    plugins.remove("acme-watch")
    monkeypatch.delenv("RLCORE_DISABLE_PLUGINS")
    assert train("ppo_config", tmp_path, "run", RESUMED).run.step == 4
    assert f"{written} not installed: pip install acme-watch==0.3" in capsys.readouterr().err


@pytest.mark.slow
def test_resuming_without_a_plugin_that_is_no_longer_used_causes_no_warning(
    plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.install("acme-store", STORE)
    train("ppo_config", tmp_path, "run", {**SHORT, "store": "shelf"})
    capsys.readouterr()
    train("ppo_config", tmp_path, "run", RESUMED)
    assert "acme-store" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dist", "source", "changes", "error"),
    [
        ("acme-store", STORE, {"store": "shelf"}, errors.UnknownRolloutStore),
        ("acme-rewards", REWARDS, {"reward_fn": "short"}, errors.UnknownReward),
        ("acme-rewards", REWARDS, {"reward_fn": "acme-rewards:short"}, errors.UnknownReward),
        ("acme", REWARDS.replace("acme_rewards", "acme"), {"reward_fn": "acme:short"}, errors.DataError),
    ],
)
@pytest.mark.parametrize("how", by_day(["auto", "path"], ["auto"]))
def test_resuming_without_a_needed_plugin_names_what_to_install(
    dist: str, source: str, changes: dict, error: type[Exception], how: str, plugins: Plugins, tmp_path: Path
) -> None:
    plugins.install(dist, source, version="0.3.1")
    train("ppo_config", tmp_path, "run", {**SHORT, **changes})
    plugins.remove(dist)
    checkpoint = str(newest_checkpoint(tmp_path / "run"))
    resumed = {**RESUMED, "run": {"steps": 4, "resume": "auto" if how == "auto" else checkpoint}}
    with pytest.raises(error, match=f"written with {dist} 0.3.1, which is not installed: pip install {dist}==0.3.1"):
        train("ppo_config", tmp_path, "run", {**resumed, **changes})
    with pytest.raises(error) as unadvised:
        train("ppo_config", tmp_path, "fresh", {**SHORT, **changes})
    assert "pip install" not in str(unadvised.value)
    assert not (tmp_path / "fresh").exists()


@pytest.mark.slow
def test_resuming_without_the_trainer_names_what_to_install(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-algo", TRAINER)
    train("sft_config", tmp_path, "run", {"trainer": {"name": "tuned"}, "run": {"steps": 2}})
    plugins.remove("acme-algo")
    again = {"trainer": {"name": "tuned"}, "run": {"steps": 4, "resume": "auto"}}
    with pytest.raises(errors.UnknownTrainer) as caught:
        train("sft_config", tmp_path, "run", again)
    advice, first, *_ = str(caught.value).splitlines()
    assert first.startswith("no trainer is called 'tuned'.")
    assert advice == "the checkpoint was written with acme-algo 0.3, which is not installed: pip install acme-algo==0.3"


@pytest.mark.slow
def test_resuming_without_several_plugins_names_all_in_one_command_before_any_guess(
    plugins: Plugins, tmp_path: Path
) -> None:
    plugins.install("acme-algo", TRAINER)
    plugins.install("acme-log", LOGGER.format(name="acme-bin"), version="1.2")
    changes = {"trainer": {"name": "tuned"}, "loggers": ["acme-bin"]}
    train("sft_config", tmp_path, "run", {**changes, "run": {"steps": 2}})
    for dist in ("acme-algo", "acme-log"):
        plugins.remove(dist)
    plugins.install("acme-near", LOGGER.format(name="acme-bon"))
    with pytest.raises(errors.ConfigError) as caught:
        train("sft_config", tmp_path, "run", {**changes, "run": {"steps": 4, "resume": "auto"}})
    advice, *rest = str(caught.value).splitlines()
    assert advice == (
        "the checkpoint was written with acme-algo 0.3 and acme-log 1.2, which are not installed: "
        "pip install acme-algo==0.3 acme-log==1.2"
    )
    assert any("no trainer is called 'tuned'" in line for line in rest)
    assert any("acme-bon" in line for line in rest)


TUNED = """
from rlcore.config import config, option
from rlcore.settings import OptimizerConfig
from rlcore_sft.trainer import SFTTrainer


@config
class Options:
    batch_size: int = option(32, "one step's", ge=1)
    micro_batch_size: int = option(0, "one pass's", ge=0)
    micro_batch_tokens: int = option(0, "one pass's", ge=0)
    optimizer: OptimizerConfig = option(OptimizerConfig(), "AdamW")
    dropout: bool = option(True, "drop out")
    {new}


@hookimpl
def register_trainers(register):
    register("tuned", SFTTrainer, config=Options)
"""


@pytest.mark.slow
def test_an_option_that_a_newer_version_added_does_not_prevent_resuming(
    plugins: Plugins, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugins.install("acme-tuned", TUNED.format(new=""), version="1.0")
    changes = {"trainer": {"name": "tuned"}, "run": {"steps": 1}}
    train("sft_config", tmp_path, "run", changes)
    newer = TUNED.format(new='smoothing: float = option(0.0, "of labels")')
    plugins.install("acme-tuned", newer, version="1.0")
    resumed = {**changes, "run": {"steps": 2, "resume": "auto"}}
    with pytest.raises(errors.ConfigError, match=r"trainer\.smoothing was 'not there', is 0\.0"):
        train("sft_config", tmp_path, "run", resumed)
    plugins.install("acme-tuned", newer, version="1.1")
    assert train("sft_config", tmp_path, "run", resumed).run.step == 2
    said = capsys.readouterr().err
    assert "the checkpoint was written with acme-tuned 1.0, and 1.1 is installed now" in said
    assert "another version of a plugin added or removed an option" in said
    assert "trainer.smoothing was 'not there', is 0.0" in said


def test_an_option_that_cannot_be_set_is_an_error_of_its_plugin(plugins: Plugins, tmp_path: Path) -> None:
    plugins.install("acme-tuned", TUNED.format(new='name: str = option("x", "of what")'))
    with pytest.raises(errors.PluginError, match=r"trainer 'tuned' \(acme-tuned 0\.3\) has an option 'name'"):
        train("sft_config", tmp_path, "run", {"trainer": {"name": "tuned"}, "run": {"steps": 1}})
