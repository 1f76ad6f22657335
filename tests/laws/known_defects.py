"""Helpers of the known-defect tests: tiny runs of every trainer, and log-probs of models in plain `transformers`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import rlcore
from rlcore.config import merge
from rlcore.training.inputs import DATA_INPUTS
from rlcore.types import Trajectories
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer

PROMPTS = ["a", "bc", "def", "what is it", "a long way to go", "q?"]
SAMPLES = [["a", "bc"], ["what is ", "it? nobody knows."], ["d", "e"], ["long ", "ago"], ["f", "aa bb cc dd"]]
REWARDS = [1.0, -1.0, 0.5, 0.0, 2.0]
ENDS = [30, 3, 7, 11, 19]
"""Ids that end a response, so that some responses have one token and some are truncated."""


def count_a(outputs: Sequence[str]) -> list[float]:
    """Reward that differs between outputs, mainly by their number of a's."""
    return [output.count("a") - 0.1 * len(output) + 0.01 * sum(map(ord, output)) for output in outputs]


LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {
        "trainer": {"name": "ppo", "rollouts": 12, "batch_size": 6, "epochs": 2},
        "prompts": PROMPTS,
        "reward_fn": count_a,
    },
    "sft": {"trainer": {"name": "sft", "batch_size": 3}, "samples": SAMPLES},
    "ilql": {"trainer": {"name": "ilql", "batch_size": 3}, "samples": SAMPLES, "rewards": REWARDS},
    "rft": {
        "trainer": {"name": "rft", "generations": 4, "improve_steps": 2, "batch_size": 6},
        "prompts": PROMPTS,
        "reward_fn": count_a,
    },
}
"""A few steps of each trainer."""


def arguments(learner: str, root: Path, **changes: Any) -> dict[str, Any]:
    """Return the arguments of `rlcore.train`, except the model; `changes` are merged into a section, or replace it."""
    common = {
        "tokenizer": make_tokenizer(),
        "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS},
        "run": {"root": str(root), "name": learner, "steps": 3},
        "loggers": [],
    }
    return merge(LEARNERS[learner] | common, changes)


def learn(learner: str, model: Any, root: Path, **changes: Any) -> rlcore.Result:
    """Train one of LEARNERS."""
    return rlcore.train(model, **arguments(learner, root, **changes))


def build(make_trainer: Callable[..., Any], learner: str, model: Mapping[str, Any], **changes: Any) -> Any:
    """Build the trainer of one of LEARNERS for inspection during training; `model` is a configuration section."""
    given = arguments(learner, Path(), **changes)
    options, tokenizer = given.pop("trainer"), given.pop("tokenizer")
    inputs = {name: given.pop(name) for name in DATA_INPUTS if name in given}
    architecture = {name: value for name, value in model.items() if name != "path"}
    sections = {"gen": given["gen"], "model": architecture}
    return make_trainer(
        options.pop("name"), model["path"], tokenizer=tokenizer, sections=sections, inputs=inputs, **options
    )


@attrs.frozen(eq=False)
class Kind:
    """Kind of model: how to make a tiny one, and how to compute an output's log-probs without padding."""

    architecture: str
    make: Callable[[], PreTrainedModel]

    def section(self, model: Any, **options: Any) -> dict[str, Any]:
        """Return the section `model` of a configuration."""
        return {"path": model, "architecture": self.architecture, **options}

    def log_softmax(self, model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return log pi over the vocabulary before each token of `output`, float[T, V], with gradients."""
        if self.architecture == "causal_lm":
            logits = model(input_ids=torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        else:
            read = torch.tensor([[model.config.decoder_start_token_id, *output[:-1]]])
            logits = model(input_ids=torch.tensor([list(prompt)]), decoder_input_ids=read).logits[0]
        return torch.log_softmax(logits.float(), -1)

    @torch.no_grad()
    def says(self, model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
        """Return the same without gradients."""
        return self.log_softmax(model, prompt, output)


def make_decided_t5() -> PreTrainedModel:
    """Make a T5 with weights large enough for clearly non-uniform distributions, like the other models."""
    model = make_t5()
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


KINDS = {
    "gpt2": Kind("causal_lm", make_gpt2),
    "llama": Kind("causal_lm", make_llama),
    "t5": Kind("seq2seq_lm", make_decided_t5),
}


def rows_of(batch: Trajectories) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split each sequence of a batch into prompt and response tokens, without padding."""
    rows = []
    for tokens, mask, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        rows.append((tuple(tokens[mask & ~chosen].tolist()), tuple(tokens[chosen].tolist())))
    return rows


class Recorder:
    """Recorder of every sequence that a trainer's policy samples, and every sequence it trains on."""

    def __init__(self, trainer: Any) -> None:
        self.sampled: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.learned: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        run, policy = trainer.run, trainer.policy()
        sampler, score = run.sampling.sampler, policy.score

        def sample(*given: Any, **options: Any) -> Trajectories:
            batch = sampler(*given, **options)
            self.sampled += rows_of(batch)
            return batch

        def learn_from(batch: Trajectories, **options: Any) -> Any:
            if torch.is_grad_enabled():
                self.learned += rows_of(batch)
            return score(batch, **options)

        run.sampling.sampler, policy.score = sample, learn_from


def as_it_is(policy: Any) -> PreTrainedModel:
    """Return a plain copy of a policy's language model in evaluation mode, unaffected by later steps."""
    model: PreTrainedModel = copy.deepcopy(policy.model).eval()
    return model


def make_ambiguous_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer whose 30 words are all strings of up to four a's and b's: most texts have many tokenisations."""
    words = ["".join(word) for length in (1, 2, 3, 4) for word in product("ab", repeat=length)]
    vocabulary = {word: i for i, word in enumerate([*words, "</s>", "<pad>"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[(word[:-1], word[-1]) for word in words if len(word) > 1]))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")


def learn_in_company(root: str) -> None:
    """Train a model made from a configuration with each learner in one of several processes, and use it there."""
    for learner, given in LEARNERS.items():
        asked: list[list[Any]] = []

        def reward_fn(prompts: list[str], outputs: list[str], asked: list[list[Any]] = asked) -> list[float]:
            asked.append([prompts, outputs, count_a(outputs)])
            return count_a(outputs)

        changes: dict[str, Any] = {"reward_fn": reward_fn} if "reward_fn" in given else {}
        for steps, resume in ((2, "never"), (3, "auto")):
            done = learn(
                learner, make_gpt2().config, Path(root), checkpoint={"every": 1, "keep_last": 9},
                run={"steps": steps, "resume": resume}, eval={"at_end": False}, **changes,
            )  # fmt: skip
        policy, ranks = done.policy, done.run.ranks
        seen = {
            "wrapped": ranks.world == 2 and policy._forward is not policy.module,
            "width": policy.model.config.n_embd,
            "blocks": len(policy.module.model.transformer.h),
            "outputs": len(done.generate(["a", "bc"], max_new_tokens=3)),
            "asked": asked,
        }
        done.save_pretrained(Path(root) / f"{learner}-saved")  # as a script does, in every process
        (Path(root) / f"{learner}-seen-{ranks.rank}.json").write_text(json.dumps(seen))
