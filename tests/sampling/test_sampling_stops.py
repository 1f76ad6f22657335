"""Tests of stop sequences, with a policy that outputs scripted tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from rlcore.data.text import render_outputs
from rlcore.errors import ConfigError, DataError
from rlcore.protocols import DecodeStep
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_transformers.sampling.record import StopSequences

LETTERS = "abcdefghijklmnopqrstuvwxyz .!?"
EOS = 30


class ScriptedPolicy:
    """Policy that answers each prompt with scripted tokens, then repeats the last of them."""

    def __init__(self, script: Mapping[str, Sequence[int]], tokenizer: PreTrainedTokenizerFast, max_length: int = 0):
        self.tokenizer, self.max_length, self.eos_token_ids = tokenizer, max_length, (EOS,)
        self.module, self.device = nn.Dropout(0.5), torch.device("cpu")
        self._script = {tuple(tokenizer(text)["input_ids"]): tuple(tokens) for text, tokens in script.items()}
        self.steps, self.modes = 0, []

    def decoder(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, advantages: bool = False
    ) -> ScriptedPolicy:
        self._rows = [self._script[tuple(prompt)] for prompt in prompts]
        self._lengths = [len(prompt) for prompt in prompts]
        self._read = 0
        return self

    def start(self) -> DecodeStep:
        self.modes.append(self.module.training)
        logits = torch.full((len(self._rows), 32), -100.0)
        for row, tokens in enumerate(self._rows):
            logits[row, tokens[min(self._read, len(tokens) - 1)]] = 100.0
        return DecodeStep(logits, None)

    def step(self, tokens: Tensor) -> DecodeStep:
        self._read += 1
        self.steps += 1
        assert not self.max_length or max(self._lengths) + self._read <= self.max_length
        return self.start()

    def keep(self, rows: Tensor) -> None:
        self._rows = [self._rows[row] for row in rows.tolist()]
        self._lengths = [self._lengths[row] for row in rows.tolist()]


def spell(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def continued(policy: ScriptedPolicy, prompts: Sequence[str], **options: object) -> Trajectories:
    return sample(policy, prompts, SamplingConfig(**{"max_new_tokens": 30, **options}))


def outputs(
    policy: ScriptedPolicy, batch: Trajectories, prompts: Sequence[str], stops: Sequence[str] = ()
) -> list[str]:
    ready = [Prompt(text=text, tokens=tuple(spell(text))) for text in prompts]
    return render_outputs(policy.tokenizer, batch, ready, stops)


def test_a_stop_sequence_ends_across_tokens_and_its_tokens_stay(char_tokenizer: PreTrainedTokenizerFast) -> None:
    script = {"a": spell("one. two. three"), "bb": spell("one, two."[:3] + " more"), "c": [*spell("x"), EOS]}
    policy = ScriptedPolicy(script, char_tokenizer)
    prompts, stops = ["a", "bb", "c"], (". t", "zz")
    batch = continued(policy, prompts, stop_sequences=stops)
    assert outputs(policy, batch, prompts) == ["one. t", "one more" + "e" * 22, "x"]
    assert outputs(policy, batch, prompts, stops) == ["one", "one more" + "e" * 22, "x"]
    assert batch.ended.tolist() == [True, False, True]
    assert batch.num_actions.tolist() == [6, 30, 2]


def test_a_stop_sequence_in_the_prompt_or_reaching_into_it_stops_nothing(
    char_tokenizer: PreTrainedTokenizerFast,
) -> None:
    policy = ScriptedPolicy({"ab.": [*spell("b.c"), EOS], "xa": [*spell("b"), EOS]}, char_tokenizer)
    batch = continued(policy, ["ab.", "xa"], stop_sequences=("ab", ".b"))
    assert outputs(policy, batch, ["ab.", "xa"]) == ["b.c", "b"]


def test_a_stop_sequence_longer_than_the_text_so_far_is_found_whole(char_tokenizer: PreTrainedTokenizerFast) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    policy = ScriptedPolicy({"a": spell("!" * 40 + text + "?")}, char_tokenizer)
    batch = continued(policy, ["a"], stop_sequences=(text,), max_new_tokens=100)
    assert int(batch.num_actions) == 40 + len(text)


def test_sampling_ends_with_the_last_unfinished_sequence(char_tokenizer: PreTrainedTokenizerFast) -> None:
    policy = ScriptedPolicy({"a": spell("bc."), "b": [EOS]}, char_tokenizer)
    continued(policy, ["a", "b"], stop_sequences=(".",))
    assert policy.steps == 2


def test_greedy_sampling_ends_no_sequence_before_the_least_number_of_tokens(
    char_tokenizer: PreTrainedTokenizerFast,
) -> None:
    policy = ScriptedPolicy({"a": [EOS]}, char_tokenizer)
    (tokens,) = continued(policy, ["a"], temperature=0.0, min_new_tokens=3).action_tokens
    assert [token == EOS for token in tokens] == [False, False, False, True]


def test_an_empty_stop_sequence_is_refused(char_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match="would end every continuation"):
        continued(ScriptedPolicy({"a": [EOS]}, char_tokenizer), ["a"], stop_sequences=("x", ""))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer with one token per byte: no non-ASCII letter is a single token."""
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def piece_tokenizer() -> PreTrainedTokenizerFast:
    """Make a Llama-style tokenizer: pieces include the preceding space, and decoding drops a leading one."""
    vocab = {"▁": 0, "▁on": 1, "▁stop": 2, "e": 3, "▁of": 4, "</s>": 5, "<unk>": 6}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def completed(tokenizer: PreTrainedTokenizerFast, stops: Sequence[str], context: list[int], tokens: list[int]) -> int:
    """Return after how many of `tokens` a stop sequence is detected, 0 if none is."""
    finder = StopSequences(tokenizer, stops)
    for end in range(1, len(tokens) + 1):
        if finder.completed([tokens[end - 1]], lambda _, end=end: (context, tokens[max(0, end - finder.tail) : end])):
            return end
    return 0


@pytest.mark.parametrize(("stop", "length"), [("é", 3), ("né", 3), ("🙂", 9), ("é b🙂", 9), ("x", 0)])
def test_a_stop_sequence_may_contain_characters_of_several_tokens(stop: str, length: int) -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer("né b🙂!")["input_ids"]
    assert completed(tokenizer, [stop], [], tokens) == length


def test_tokens_without_text_inside_a_stop_sequence_do_not_prevent_the_stop() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "~": 2}, unk_token="~"))
    backend.decoder = decoders.Sequence([decoders.Replace("~", ""), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert completed(tokenizer, ["ab"], [], [0, 0, *[2] * 8, 1]) == 11


def test_a_leading_space_that_decoding_drops_counts_for_a_stop_sequence() -> None:
    tokenizer = piece_tokenizer()
    assert completed(tokenizer, [" stop"], [1], [2, 3]) == 1
    assert completed(tokenizer, ["e "], [1], [1, 3, 4]) == 3
    assert completed(tokenizer, [" on"], [1], [3, 4]) == 0
    policy = ScriptedPolicy({" on": [2, 3, 4]}, tokenizer)
    assert int(continued(policy, [" on"], stop_sequences=(" stop",)).num_actions) == 1


def test_the_text_of_a_special_token_can_be_a_stop_sequence() -> None:
    assert completed(piece_tokenizer(), ["</s>"], [1], [4, 5, 4]) == 2


def test_responses_are_cut_at_the_context_length(char_tokenizer: PreTrainedTokenizerFast) -> None:
    script = {"a": spell("bcdefgh"), "abcd": spell("xyzxyz"), "abcdef": [*spell("x"), EOS]}
    policy = ScriptedPolicy(script, char_tokenizer, max_length=8)
    prompts = [*script, *["a"] * 20]
    batch = continued(policy, prompts, max_new_tokens=6)
    assert outputs(policy, batch, prompts) == ["bcdefg", "xyzx", "x", *["bcdefg"] * 20]
    assert batch.ended.tolist() == [False, False, True, *[False] * 20]


def test_prompts_without_tokens_or_room_are_refused(char_tokenizer: PreTrainedTokenizerFast) -> None:
    policy = ScriptedPolicy({"a": [EOS]}, char_tokenizer, max_length=4)
    with pytest.raises(DataError, match=r"prompts\[1\] has 4 tokens.*context of 4"):
        continued(policy, ["a", "abcd"])
    with pytest.raises(DataError, match=r"prompts\[0\] = '': has no tokens"):
        sample(policy, [Prompt(text="", tokens=())], SamplingConfig())


def test_sampling_without_prompts_returns_an_empty_batch(char_tokenizer: PreTrainedTokenizerFast) -> None:
    batch = continued(ScriptedPolicy({}, char_tokenizer), [])
    assert len(batch) == 0
    assert "logprobs" in batch


def test_sampling_runs_in_evaluation_mode_and_restores_the_mode(char_tokenizer: PreTrainedTokenizerFast) -> None:
    policy = ScriptedPolicy({"a": [EOS]}, char_tokenizer)
    policy.module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval()).train()
    policy.module[1].eval()
    continued(policy, ["a"])
    assert policy.modes == [False]
    assert [part.training for part in policy.module.modules()] == [True, True, False]


def test_greedy_sampling_stores_log_probs_of_zero(char_tokenizer: PreTrainedTokenizerFast) -> None:
    batch = continued(ScriptedPolicy({"a": [EOS]}, char_tokenizer), ["a"], temperature=0.0)
    assert batch["sampling_logprobs"].tolist() == [[0.0, 0.0]]
