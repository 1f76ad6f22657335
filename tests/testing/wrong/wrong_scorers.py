"""Scorers, each wrong in one thing."""

import json

import torch
from transformers import AutoModelForSequenceClassification

from rlcore.types import Trajectories
from rlcore_reward.scorer import ModelScorer, build_sequence_scorer


class Wrong(ModelScorer):
    @classmethod
    def build(cls, spec, config, *, tokenizer=None):
        scorer = build_sequence_scorer(spec, config, tokenizer=tokenizer)
        scorer.__class__ = cls
        scorer.spoil()
        return scorer

    def spoil(self):
        pass


Wrong.build.__func__.scores_sequences = True


class Constant(Wrong):
    def score(self, batch):
        return super().score(batch) * 0.0


class EndOfRow(Wrong):
    """Score the token in the last column."""

    def score(self, batch):
        full = Trajectories(batch.tokens, torch.ones_like(batch.mask), batch.action_mask, batch.ended)
        return super().score(full)


class PadsWithEos(Wrong):
    """Save EOS as the padding token, as most tokenizers without one do."""

    def export(self, folder):
        super().export(folder)
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token_id": 30}))


class Unreferenced(Wrong):
    """Return twice what its own `reference_score` returns."""

    @classmethod
    def build(cls, spec, config, *, tokenizer=None):
        return super().build(spec, config, tokenizer=tokenizer)

    def score(self, batch):
        return 2 * super().score(batch)


def reference_score(folder, tokens):
    plain = AutoModelForSequenceClassification.from_pretrained(folder)
    return plain(input_ids=torch.tensor([tokens])).logits[0, 0]


Unreferenced.build.__func__.scores_sequences, Unreferenced.build.__func__.reference_score = True, reference_score


class HeadUnused(Wrong):
    def score(self, batch):
        return super().score(batch).detach() + self.model.base_model.get_input_embeddings().weight.sum() * 0.1


class OwnModule(Wrong):
    def use_forward(self, forward, *, autocast):
        pass


class HeadLost(Wrong):
    def load_pretrained(self, folder):
        before = self.model.score.weight.detach().clone()
        super().load_pretrained(folder)
        self.model.score.weight.data.copy_(before)


class LoadsUnnoticed(Wrong):
    def load_pretrained(self, folder):
        before = self.version
        super().load_pretrained(folder)
        self.version = before


class HeadAnew(Wrong):
    """Give every model a new head, that of a folder too."""

    @classmethod
    def build(cls, spec, config, *, tokenizer=None):
        scorer = super().build(spec, config, tokenizer=tokenizer)
        if isinstance(spec, str):
            scorer.model.score.reset_parameters()
        return scorer


HeadAnew.build.__func__.scores_sequences = True


class Stays(Wrong):
    def to(self, device):
        pass
