"""The size of a policy's vocabulary, shown with the built-in policy."""

from rlcore.models.causal import build_causal_lm
from rlcore.models.model_options import CausalLMConfig
from rlcore.protocols import SizedVocabulary

policy = build_causal_lm("gpt2", CausalLMConfig())
assert isinstance(policy, SizedVocabulary)
assert policy.vocabulary_size >= len(policy.tokenizer)
