"""The scores of a model that gives whole sequences one number, shown with the built-in one."""

import torch

from rlcore.types import Trajectories
from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import build_sequence_scorer

# A language model gets a new head; the folder of a reward model keeps its own.
scorer = build_sequence_scorer("gpt2", SequenceScorerConfig())
rows = [scorer.tokenizer(text).input_ids for text in ("My cat sat.", "No.")]
batch = Trajectories.stack(rows, [[False] * len(row) for row in rows]).to(scorer.device)

scores = scorer.score(batch)
assert scores.shape == (2,)
assert scores.requires_grad
# Padding changes nothing, and EOS is never the padding token.
assert torch.allclose(scorer.score(batch.rows(torch.tensor([1]))), scores[1:], atol=1e-5)
assert scorer.tokenizer.pad_token_id != scorer.tokenizer.eos_token_id
assert scorer.export_class == "AutoModelForSequenceClassification"
