"""Learners of a kind of their own, each wrong in one thing."""

from contextlib import nullcontext

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rlcore_testing.small import make_tokenizer


def make_toy():
    torch.manual_seed(0)
    return nn.Linear(2, 3)


class Toy:
    export_class, max_length = "toys.Toy", 0

    def __init__(self, module):
        self.module, self.tokenizer, self.version = module, make_tokenizer(), 0

    @classmethod
    def build(cls, spec, config, *, tokenizer=None):
        toy = cls(spec if isinstance(spec, nn.Module) else make_toy())
        if isinstance(spec, str):
            toy.load_pretrained(spec)
        return toy

    @property
    def device(self):
        return self.module.weight.device

    def to(self, device):
        self.module.to(device)

    def use_forward(self, forward, *, autocast):
        pass

    def training_step(self):
        return nullcontext()

    def save_pretrained(self, folder):
        save_file(self.module.state_dict(), f"{folder}/toy.safetensors")

    def load_pretrained(self, folder):
        self.module.load_state_dict(load_file(f"{folder}/toy.safetensors"))
        self.version += 1

    def export(self, folder):
        folder.mkdir()
        self.save_pretrained(folder)


Toy.build.__func__.builds = "a toy"
Toy.build.__func__.example_model = make_toy


class ForgetsBias(Toy):
    def load_pretrained(self, folder):
        self.module.weight.data.copy_(load_file(f"{folder}/toy.safetensors")["weight"])
        self.version += 1


class Replaces(Toy):
    def load_pretrained(self, folder):
        self.module = make_toy()
        super().load_pretrained(folder)


class Unnoticed(Toy):
    def load_pretrained(self, folder):
        super().load_pretrained(folder)
        self.version = 0


class OtherExport(Toy):
    @classmethod
    def build(cls, spec, config, *, tokenizer=None):
        return cls(nn.Linear(2, 3, bias=False) if isinstance(spec, str) else spec)


OtherExport.build.__func__.builds = "a toy"
OtherExport.build.__func__.example_model = make_toy


class Frozen(Toy):
    def __init__(self, module):
        super().__init__(module.requires_grad_(False))


class Unseeded(Toy):
    @classmethod
    def build(cls, spec, config, *, tokenizer=None):
        return Toy.build(spec, config, tokenizer=tokenizer)


Unseeded.build.__func__.builds = "a toy"
Unseeded.build.__func__.example_model = lambda: nn.Linear(2, 3)


class Remains(Toy):
    def to(self, device):
        if device != torch.device("meta"):
            super().to(device)


class ExportsStart(Toy):
    """Export the weights that training began with."""

    def export(self, folder):
        super(ExportsStart, type(self)(make_toy())).export(folder)
