"""Architectures whose Q-heads are wrong, each in one thing."""

import attrs
import torch
from safetensors.torch import load_file, save_file
from wrong_architectures import Wrong

from rlcore_transformers.models.save_load import HEADS_FILE


class SyncsUnnoticed(Wrong):
    def sync_targets(self, rate):
        before = self.version
        super().sync_targets(rate)
        self.version = before


class QHeadsNever(Wrong):
    @classmethod
    def build(cls, spec, config, *, q_heads=0, **wanted):
        return super().build(spec, config, **wanted)


class QEverywhere(Wrong):
    def score(self, batch, **wanted):
        said = super().score(batch, **wanted)
        return said if said.q_values is None else attrs.evolve(said, q_values=said.q_values + 1.0)


class TargetsAnew(Wrong):
    """Begin the targets with weights of their own."""

    @torch.no_grad()
    def spoil(self):
        if self.module.q_heads is not None:
            for weight in self.module.q_heads.targets.parameters():
                weight.mul_(1.1)


class TargetsStale(Wrong):
    def sync_targets(self, rate):
        pass


class TargetsAhead(Wrong):
    """Move the whole way, whatever the rate."""

    def sync_targets(self, rate):
        super().sync_targets(1.0)


class TargetsUnsaved(Wrong):
    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        if self.module.q_heads is not None:
            heads = load_file(folder / HEADS_FILE)
            save_file({name: weight + float("targets" in name) for name, weight in heads.items()}, folder / HEADS_FILE)
