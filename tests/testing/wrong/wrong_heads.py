"""Architectures whose further heads are wrong, each in one thing."""

import attrs
from safetensors.torch import load_file, save_file
from wrong_architectures import Wrong

from rlcore_transformers.models.save_load import HEADS_FILE


class HeadsNever(Wrong):
    @classmethod
    def build(cls, spec, config, *, heads=None, **wanted):
        return super().build(spec, config, **wanted)


class HeadsEverywhere(Wrong):
    def score(self, batch, **wanted):
        said = super().score(batch, **wanted)
        return attrs.evolve(said, heads={name: output + 1.0 for name, output in said.heads.items()})


class HeadsOfOthers(Wrong):
    """Give each chosen token what belongs to the one before it."""

    def score(self, batch, **wanted):
        said = super().score(batch, **wanted)
        rolled = {name: output.roll(1, -1) * batch.action_mask for name, output in said.heads.items()}
        return attrs.evolve(said, heads=rolled)


class HeadsFrozen(Wrong):
    def spoil(self):
        for head in self.module.heads.values():
            head.requires_grad_(False)


class HeadsUnsaved(Wrong):
    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        if self.module.heads:
            heads = load_file(folder / HEADS_FILE)
            save_file({name: weight + float("probe" in name) for name, weight in heads.items()}, folder / HEADS_FILE)


class SteersNever(Wrong):
    steers = False
