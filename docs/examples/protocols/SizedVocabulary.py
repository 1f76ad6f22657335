"""The size of a policy's vocabulary, shown with the built-in policy."""

from rlcore.protocols import SizedVocabulary
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

policy = build_causal_lm("gpt2", CausalLMConfig())
assert isinstance(policy, SizedVocabulary)
assert policy.vocabulary_size >= len(policy.tokenizer)
