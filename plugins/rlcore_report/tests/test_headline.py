"""Laws of the metrics on a line: those that a trainer names come first, and no new group needs an option."""

from __future__ import annotations

from pathlib import Path

from console_screens import PPO, make_screen

from rlcore_report.lines import headline_metrics


def test_metrics_that_a_trainer_names_come_first_and_usual_ones_fill_the_line() -> None:
    names = ["rft/kept", "rft/kept_s", "loss/total", "grad/norm", "rft/unique", "lr", "q/mean"]
    assert headline_metrics(names, ("rft/unique", "kl/mean", "loss/total")) == [
        "rft/unique", "loss/total", "grad/norm", "lr",
    ]  # fmt: skip
    assert headline_metrics(names, ("rft/", "lr"))[:3] == ["rft/kept", "rft/unique", "lr"]
    many = [f"q/{i}" for i in range(8)]
    assert headline_metrics([*many, "lr"], ("q/",)) == many


def test_metrics_of_an_unknown_group_are_shown_without_any_setting() -> None:
    usual = ["loss/policy", "reward/mean", "response/length_mean", "kl/mean", "grad/norm", "policy/entropy"]
    names = [*usual, "toxicity/max", "toxicity/rate", "toxicity/worst", "cost", "time/step_s"]
    assert headline_metrics(names, ()) == ["reward/mean", "kl/mean", "loss/policy", "toxicity/rate", "cost"]
    assert headline_metrics(usual, ()) == ["reward/mean", "kl/mean", "loss/policy", "response/length_mean", "grad/norm"]


def test_the_console_follows_the_trainer_for_steps_and_evaluations(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, headline=("grad/norm", "kl/mean"))
    screen.logger.metrics(1, PPO)
    screen.logger.metrics(1, {"eval/loss/b": 1.0, "eval/grad/norm": 2.0, "eval/reward/mean": 3.0})
    assert screen.lines[0].split()[2:5:2] == ["grad/norm", "kl"]
    assert screen.lines[1].split()[2::2] == ["reward", "grad/norm", "loss/b"]


EPISODES = {
    "episode/turns": 2.5, "episode/done": 0.75, "episode/truncated": 0.0, "episode/failed": 0.25,
    "episode/success": 0.0, "environment/won": 0.5,
}  # fmt: skip


def test_lines_show_turns_and_success_of_episodes_and_the_ends_that_occurred(tmp_path: Path) -> None:
    """They are shown beside what every other run shows, whatever the trainer names."""
    expected = ["episode/turns", "2.5000", "episode/success", "0", "episode/done", "0.7500", "episode/failed", "0.2500"]
    for headline in ((), ("kl/mean",)):
        screen = make_screen(tmp_path, headline=headline, width=300)
        screen.logger.metrics(1, PPO)
        screen.logger.metrics(1, PPO | EPISODES)
        screen.logger.metrics(1, {f"eval/{name}": value for name, value in {"reward/mean": 0.5, **EPISODES}.items()})
        plain, step, evaluation = (line.split() for line in screen.lines)
        others = step[: step.index("episode/turns")]
        if headline:
            assert others == plain[:-2]  # without the time
        else:  # room for the first of an unknown group
            assert others[-2:] == ["environment/won", "0.5000"]
        assert step[len(others) : -2] == expected
        assert evaluation[2:4] == ["reward", "0.5000"]
        assert evaluation[-8:] == expected


def test_an_evaluation_of_several_settings_shows_the_episodes_of_each(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, width=300)
    screen.logger.metrics(
        1, {"eval/episode/turns@k=1": 1.0, "eval/episode/turns@k=2": 2.0, "eval/episode/done@k=2": 0.0}
    )
    assert screen.lines[0].split()[2:] == ["episode/turns@k=1", "1.0000", "episode/turns@k=2", "2.0000"]
