"""A tokenizer of letters, whose only method the core calls is `decode`."""

from rlcore.data.text import render_outputs
from rlcore.types import Prompt, Trajectories


class Letters:
    def decode(self, token_ids, *, skip_special_tokens, clean_up_tokenization_spaces):
        kept = [[token for token in row if token or not skip_special_tokens] for row in token_ids]
        return ["".join(chr(96 + token) for token in row) for row in kept]


prompt = Prompt("ab", (1, 2))
batch = Trajectories.stack([[1, 2, 3, 0]], [[False, False, True, True]])
assert render_outputs(Letters(), batch, [prompt]) == ["c"]
