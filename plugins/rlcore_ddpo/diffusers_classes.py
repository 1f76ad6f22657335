"""The classes of diffusers that this package uses, imported on first use, and a block in which diffusers is quiet.

Importing diffusers takes a second or more, for which programs that only read the names of architectures need not wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import transformers.utils

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

__all__ = ["AutoencoderKL", "DDIMScheduler", "StableDiffusionPipeline", "UNet2DConditionModel", "quiet_diffusers"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with quiet_diffusers():  # which else prints what optional packages it lacks
        import diffusers

        return getattr(diffusers, name)


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    """Silence the progress bars and messages of diffusers and transformers in the block."""
    import diffusers.utils

    libraries: tuple[Any, ...] = (diffusers.utils.logging, transformers.utils.logging)
    before = [(each.is_progress_bar_enabled(), each.get_verbosity()) for each in libraries]
    for each in libraries:
        each.disable_progress_bar()
        each.set_verbosity_error()
    try:
        yield
    finally:
        for each, (had_bars, level) in zip(libraries, before, strict=True):
            each.set_verbosity(level)
            if had_bars:
                each.enable_progress_bar()
