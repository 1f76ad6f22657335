"""Architectures that build, save or move policies wrongly, each in one thing, and two for one family of models."""

import attrs
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, MistralConfig, MistralForCausalLM, T5Config, T5ForConditionalGeneration

from rlcore.config import evolve
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig
from rlcore_transformers.models.policy import ModelPolicy
from rlcore_transformers.models.save_load import HEADS_FILE


class Wrong(ModelPolicy):
    @classmethod
    def build(cls, spec, config, *, tokenizer=None, value_head=False, reference=False, heads=None):
        policy = build_causal_lm(
            spec, config, tokenizer=tokenizer, value_head=value_head, reference=reference, heads=heads
        )
        policy.__class__ = cls
        policy.spoil()
        return policy

    def spoil(self):
        pass


class FolderAnew(Wrong):
    """Take the configuration of a folder, and random weights."""

    @classmethod
    def build(cls, spec, config, *, tokenizer=None, **wanted):
        if isinstance(spec, str):
            spec, tokenizer = AutoConfig.from_pretrained(spec), tokenizer or spec
        return super().build(spec, config, tokenizer=tokenizer, **wanted)


class TokenizerLess(Wrong):
    """Spell as the tokenizer of a folder does not."""

    @classmethod
    def build(cls, spec, config, *, tokenizer=None, **wanted):
        policy = super().build(spec, config, tokenizer=tokenizer, **wanted)
        if tokenizer is None:
            policy.tokenizer = lambda text: attrs.make_class("Spelt", {"input_ids": attrs.field(default=[9])})()
        return policy


class ReferenceAside(Wrong):
    @torch.no_grad()
    def spoil(self):
        for parameter in self.reference.parameters() if self.reference is not None else ():
            parameter.mul_(1.01)


class ReferenceFreezes(Wrong):
    """Freeze the model itself beside its reference, so that only the value head trains."""

    def spoil(self):
        if self.reference is not None:
            self.model.requires_grad_(False)


class ReferenceFreezesFirst(Wrong):
    def spoil(self):
        if self.reference is not None:
            next(iter(self.model.parameters())).requires_grad_(False)


class ReferenceShared(Wrong):
    def spoil(self):
        if self.reference is not None:
            self.reference = self.model


class ReferenceRecording(Wrong):
    def reference_score(self, batch, **wanted):
        said = super().reference_score(batch, **wanted)
        return attrs.evolve(said, logprobs=said.logprobs.requires_grad_())


class ReferenceReloaded(Wrong):
    def load_pretrained(self, folder):
        super().load_pretrained(folder)
        if self.reference is not None:
            self.reference.load_state_dict(self.model.state_dict())


class HeadsLost(Wrong):
    """Save no heads, and miss none."""

    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        (folder / HEADS_FILE).unlink(missing_ok=True)

    def load_pretrained(self, folder):
        self.model.load_state_dict(type(self.model).from_pretrained(folder).state_dict())


class LoadsCopies(Wrong):
    def load_pretrained(self, folder):
        super().load_pretrained(folder)
        self.module.model = self.model.from_pretrained(folder)


class Thawing(Wrong):
    def load_pretrained(self, folder):
        super().load_pretrained(folder)
        next(self.module.parameters()).requires_grad_(False)


class LoadsUnnoticed(Wrong):
    def load_pretrained(self, folder):
        before = self.version
        super().load_pretrained(folder)
        self.version = before


class Versionless(Wrong):
    """Count loads, and nothing else."""

    version = property(lambda self: vars(self)["loads"], lambda self, number: None)

    def spoil(self):
        vars(self)["loads"] = 0

    def load_pretrained(self, folder):
        super().load_pretrained(folder)
        vars(self)["loads"] += 1


class SavesStart(Wrong):
    """Save the model as it was built."""

    def spoil(self):
        self.start = {name: weight.clone() for name, weight in self.model.state_dict().items()}

    def save_pretrained(self, folder):
        now = {name: weight.clone() for name, weight in self.model.state_dict().items()}
        self.model.load_state_dict(self.start)
        super().save_pretrained(folder)
        self.model.load_state_dict(now)


class HeadsInside(Wrong):
    """Put the heads into the model's own file."""

    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        heads = load_file(folder / HEADS_FILE)
        (folder / HEADS_FILE).unlink()
        whole = load_file(folder / "model.safetensors") | {f"value.{name}": each for name, each in heads.items()}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


class TokenizerUnsaved(Wrong):
    """Save another tokenizer than its own."""

    def save_pretrained(self, folder):
        own, self.tokenizer = self.tokenizer, make_tokenizer()
        self.tokenizer.add_tokens(["ab"])
        super().save_pretrained(folder)
        self.tokenizer = own


class ReferenceInside(Wrong):
    def spoil(self):
        self.module.kept = self.reference


class Unseeded(Wrong):
    def spoil(self):
        if self.module.value is not None:
            generator = torch.Generator()
            generator.seed()
            for parameter in self.module.value.parameters():
                nn.init.normal_(parameter, generator=generator)


class FreezesNothing(Wrong):
    @classmethod
    def build(cls, spec, config, **wanted):
        return super().build(spec, evolve(config, unfrozen_layers=None), **wanted)


class FreezesAll(Wrong):
    def spoil(self):
        self.module.requires_grad_(False)


class Boundless(Wrong):
    def spoil(self):
        self.max_length = 0


class OtherTokenizer(Wrong):
    def spoil(self):
        self.tokenizer = make_tokenizer()
        self.tokenizer.add_tokens(["ab"])


class ReferenceLeft(Wrong):
    def to(self, device):
        self.module.to(device)


class ModuleLeft(Wrong):
    def to(self, device):
        self.model.to(device)


def build_mistral(spec, config, *, tokenizer=None, **wanted):
    """Take one family only, and say so; keeps every law."""
    known = isinstance(spec, (str, MistralConfig, MistralForCausalLM))
    assert known, f"{type(spec).__name__} is no Mistral"
    return build_causal_lm(spec, CausalLMConfig(), tokenizer=tokenizer, **wanted)


def make_mistral():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=None, bos_token_id=30, eos_token_id=30, initializer_range=0.3,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


build_mistral.example_model = make_mistral


def build_t5(spec, config, *, tokenizer=None, **wanted):
    """Take T5 only, which is no decoder alone, and say so; keeps every law."""
    return build_seq2seq_lm(spec, Seq2SeqLMConfig(), tokenizer=tokenizer, **wanted)


def make_t5():
    torch.manual_seed(0)
    return T5ForConditionalGeneration(
        T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    ).eval()


build_t5.example_model = make_t5


class ExportsStart(Wrong):
    """Export the weights that the policy began with."""

    def spoil(self):
        self.first = {name: weight.clone() for name, weight in self.module.state_dict().items()}

    def export(self, folder):
        present = {name: weight.clone() for name, weight in self.module.state_dict().items()}
        self.module.load_state_dict(self.first)
        super().export(folder)
        self.module.load_state_dict(present)
