"""The scheduler of a pipeline, kept or rebuilt as a DDIMScheduler."""

from __future__ import annotations

import pytest
import torch

from rlcore.errors import ModelError
from rlcore_ddpo.denoising import Schedule
from rlcore_ddpo.pipeline_loading import as_ddim

CHANGED = {
    "prediction_type": "v_prediction",
    "clip_sample": True,
    "clip_sample_range": 0.5,
    "timestep_spacing": "trailing",
}


def test_a_scheduler_that_fits_is_kept_with_options_that_were_set_after_it_was_built() -> None:
    import diffusers

    scheduler = diffusers.DDIMScheduler()
    scheduler.register_to_config(**CHANGED)
    assert as_ddim(scheduler) is scheduler
    schedule = Schedule.of(as_ddim(scheduler), steps=4, eta=1.0)
    assert (schedule.prediction, schedule.clip) == ("v_prediction", 0.5)
    assert schedule.timesteps.tolist() == [999, 749, 499, 249]  # trailing; leading ones would begin at 750


def test_a_rebuilt_scheduler_has_options_that_were_set_after_the_other_was_built() -> None:
    import diffusers

    scheduler = diffusers.DDPMScheduler(beta_schedule="scaled_linear")
    scheduler.register_to_config(**CHANGED)
    rebuilt = as_ddim(scheduler)
    assert isinstance(rebuilt, diffusers.DDIMScheduler)
    shared = {name: value for name, value in scheduler.config.items() if name in rebuilt.config and name[0] != "_"}
    assert len(shared) > len(CHANGED)
    assert {name: rebuilt.config[name] for name in shared} == shared
    assert torch.equal(rebuilt.alphas_cumprod, scheduler.alphas_cumprod)


def test_a_scheduler_that_clips_nothing_is_rebuilt_without_clipping() -> None:
    import diffusers

    assert Schedule.of(as_ddim(diffusers.PNDMScheduler()), steps=4, eta=1.0).clip is None


def test_a_scheduler_whose_options_describe_another_noise_schedule_is_refused() -> None:
    import diffusers

    scheduler = diffusers.PNDMScheduler()
    scheduler.register_to_config(beta_schedule="squaredcos_cap_v2")
    with pytest.raises(ModelError, match="PNDMScheduler has another noise schedule"):
        as_ddim(scheduler)
