"""Architectures whose policies score sequences wrongly, each in one thing."""

import math
from contextlib import contextmanager
from pathlib import Path

import attrs
import torch
from torch import nn
from wrong_architectures import Wrong


class Shifted(Wrong):
    """Return for each token the log-prob of the token before it."""

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


class LeavesEvaluating(Wrong):
    def score(self, batch, **options):
        self.module.eval()
        return super().score(batch, **options)


class ClearsPadding(Wrong):
    """Write zeros into the caller's batch."""

    def score(self, batch, **options):
        batch.tokens.masked_fill_(~batch.mask, 0)
        return super().score(batch, **options)


class TurnsTokenizer(Wrong):
    def spoil(self):
        self.tokenizer.padding_side = "left"


class Draws(Wrong):
    def score(self, batch, **options):
        torch.rand(1)
        return super().score(batch, **options)


class NotesItsStart(Wrong):
    def spoil(self):
        Path("weights.txt").write_text("here")


class Squeezes(Wrong):
    """Drop the dimension of one sequence."""

    def score(self, batch, **options):
        outputs = super().score(batch, **options)
        return attrs.evolve(outputs, logprobs=outputs.logprobs.squeeze(0))


class FirstEight(Wrong):
    """Score the first eight sequences."""

    def score(self, batch, **options):
        outputs = super().score(batch, **options)
        first = torch.arange(len(batch))[:, None] < 8
        return attrs.evolve(outputs, logprobs=outputs.logprobs * first)


class PartlyInEvalMode(Wrong):
    """Keep the first block in evaluation mode, as frozen parts with batch statistics are kept, which is right."""

    def spoil(self):
        block = self.model.base_model.get_input_embeddings()
        block.eval().train = lambda mode=True: block
