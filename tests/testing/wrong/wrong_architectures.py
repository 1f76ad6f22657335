"""Architectures, each wrong in one thing, but for the last two, which say what models they take."""

import math
from contextlib import contextmanager, nullcontext

import attrs
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, MistralConfig, MistralForCausalLM, T5Config, T5ForConditionalGeneration

from rlcore.config import evolve
from rlcore.models.causal import build_causal_lm
from rlcore.models.decoding.causal_decoder import CausalDecoder
from rlcore.models.model_options import CausalLMConfig, Seq2SeqLMConfig
from rlcore.models.policy import ModelPolicy
from rlcore.models.save_load import HEADS_FILE
from rlcore.models.seq2seq import build_seq2seq_lm
from rlcore.testing.small import make_tokenizer


class Wrong(ModelPolicy):
    @classmethod
    def build(cls, spec, config, *, tokenizer=None, value_head=False, reference=False, q_heads=0):
        policy = build_causal_lm(
            spec, config, tokenizer=tokenizer, value_head=value_head, reference=reference, q_heads=q_heads
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


class SyncsUnnoticed(Wrong):
    def sync_targets(self, rate):
        before = self.version
        super().sync_targets(rate)
        self.version = before


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


class Shifted(Wrong):
    """Say of each token how likely the one before it was."""

    def score(self, batch, **wanted):
        said = super().score(batch, **wanted)
        return attrs.evolve(said, logprobs=said.logprobs.roll(1, 1) * batch.action_mask)


class PaddingRead(Wrong):
    """Read padding as if it were text."""

    def score(self, batch, **wanted):
        batch = attrs.evolve(batch, mask=torch.ones_like(batch.mask))
        return super().score(batch, **wanted)


class LogitsAlways(Wrong):
    def score(self, batch, **wanted):
        return super().score(batch, **wanted | {"logits": True})


class EntropyInBits(Wrong):
    def score(self, batch, **wanted):
        said = super().score(batch, **wanted)
        return attrs.evolve(said, entropy=said.entropy / math.log(2)) if wanted.get("entropy") else said


class ValuesEverywhere(Wrong):
    def score(self, batch, **wanted):
        said = super().score(batch, **wanted)
        return said if said.values is None else attrs.evolve(said, values=said.values + 1.0)


class ValuesNever(Wrong):
    @classmethod
    def build(cls, spec, config, *, value_head=False, **wanted):
        return super().build(spec, config, **wanted)


class ValuesMoveLogprobs(Wrong):
    @torch.no_grad()
    def spoil(self):
        if self.module.value is not None:
            self.model.get_output_embeddings().weight.mul_(1.1)


class Untempered(Wrong):
    def score(self, batch, *, temperature=1.0, **wanted):
        return super().score(batch, **wanted)


class ReferenceUntempered(Wrong):
    def reference_score(self, batch, *, temperature=1.0, **wanted):
        return super().reference_score(batch, **wanted)


class RowsByPlace(Wrong):
    """Drop the sequences in which nothing was chosen, and write the others from the top."""

    def score(self, batch, **wanted):
        held = batch.action_mask.any(1)
        said = super().score(batch.each(lambda array: array[held]), **wanted)
        empty = said.logprobs.new_zeros(len(batch) - int(held.sum()), said.logprobs.shape[1])
        return attrs.evolve(said, logprobs=torch.cat([said.logprobs, empty]))


class Unused(Wrong):
    def spoil(self):
        self.module.idle = nn.Linear(2, 2)


class Recording(Wrong):
    def score(self, batch, **wanted):
        with torch.enable_grad():
            return super().score(batch, **wanted)


class FreezesNothing(Wrong):
    @classmethod
    def build(cls, spec, config, **wanted):
        return super().build(spec, evolve(config, unfrozen_layers=None), **wanted)


class FreezesAll(Wrong):
    def spoil(self):
        self.module.requires_grad_(False)


class OwnModule(Wrong):
    def score(self, batch, **wanted):
        given, self._forward = self._forward, self.module
        said = super().score(batch, **wanted)
        self._forward = given
        return said


class StaleInStep(Wrong):
    """Keep a score for the whole step, although the parameters move."""

    @contextmanager
    def training_step(self):
        self.__dict__["kept"] = []
        yield
        del self.__dict__["kept"]

    def score(self, batch, **wanted):
        kept = self.__dict__.get("kept")
        if kept is None:
            return super().score(batch, **wanted)
        kept.append(super().score(batch, **wanted))
        return kept[0]


class OutsideAutocast(Wrong):
    """Decode in full precision, whatever the run's is."""

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        given, self._autocast = self._autocast, nullcontext
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens)
        self._autocast = given
        return decoder


class PaddingDecoded(Wrong):
    """Fill up shorter prompts with a token that the decoder takes for real."""

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        longest = max(map(len, prompts))
        padded = [[7] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        return super().decoder(padded, max_new_tokens=max_new_tokens)


class KeepsOthers(Wrong):
    """Carry the caches of the first rows along, whichever are kept."""

    class Decoder(CausalDecoder):
        def keep(self, rows):
            super().keep(torch.arange(len(rows)))

    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens)
        decoder.__class__ = self.Decoder
        return decoder


class DecodesOtherValues(Wrong):
    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens)
        heads = decoder._heads
        decoder._heads = lambda hidden: (heads(hidden)[0] + 1.0, None)
        return decoder


class Endless(Wrong):
    def spoil(self):
        self.eos_token_ids = (29,)


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


class HighestAdvantage(Wrong):
    def decoder(self, prompts, *, max_new_tokens, advantages=False):
        decoder = super().decoder(prompts, max_new_tokens=max_new_tokens, advantages=advantages)
        if advantages:
            targets = self.module.q_heads.targets

            def highest(hidden):
                values = self.module.value.head(hidden)
                return values, torch.stack([head(hidden) for head in targets]).amax(0) - values[:, None]

            decoder._heads = highest
        return decoder


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
