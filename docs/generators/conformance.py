"""Generate the page of the conformance kit: every law, its statement, and the components it applies to."""

from __future__ import annotations

import importlib

from generators.docstrings import Undocumented
from rlcore.components import KINDS
from rlcore_testing.cases import MODULES
from rlcore_testing.law import DIST, EVERY, Law, laws_in

INTRODUCTION = """\
# The conformance kit

Generated from `plugins/rlcore_testing` by `make docs`. `rlcore_testing` checks an installed plugin against the laws
below. Which laws apply depends on the components that the plugin registers and on what they declare. All checks run
on the CPU, with models and tokenizers created in the tests; `pip install rlcore-testing` installs the kit and pytest.
Every package of this repository passes.

In the tests of a plugin, each law is a separate test:

```text
import pytest
from rlcore_testing import conformance

@pytest.mark.parametrize("law", conformance("acme-polite"))
def test_law(law):
    law()
```

`rlcore new-plugin`, of the package `rlcore-tools`, generates that file. Without pytest, `check_plugin` checks all laws
and raises a `ConformanceError` that lists the broken ones:

```console
$ rlcore new-plugin acme-polite --kind reward
...
$ cd acme-polite
$ pip install -e .
```

<!-- setup: file=check.py -->
```python
from rlcore_testing import check_plugin

if __name__ == "__main__":  # some laws start processes
    print(check_plugin("acme-polite"))
```

```console
$ python check.py
acme-polite: conforms, ...
held plugin-it_loads ...
...
held reward-acme-polite-one_number_for_each_output ...
...
```

Both accept `options`, a mapping from a component's name to the options it is built with in every law, such as
`{"acme-algo": {"rollouts": 8}}`, and `expected_failures`, a mapping from a test to the reason, such as
`{"trainer-acme-algo-two_processes_equal_one": "adds random noise of its own"}`. Expected failures are strict: if the
law holds, the test fails. A trainer whose model or optimizer
[cannot be divided](memory.md#dividing-a-model-among-processes) names `divided_weights_equal_whole_ones` there.

Where a trainer and a reward share the name `acme-algo`, `options` tells them apart as `trainer:acme-algo` and
`reward:acme-algo`. `config` sets sections of the configuration of the runs in which trainers are checked, such as
`{"gen": {"top_k": 5}}`; pipelines are called with its section `data`.

Components declare properties that the laws cannot detect as attributes of the registered function or class:

* `lowers`, of a [trainer](protocols/Trainer.md) whose loss does not make samples likelier, for example one that learns
  from preferences: the name of the metric that decreases during training, such as `"loss/policy"`.
* `draws_from_policy = False`, of a [sampler](protocols/Sampler.md) that intentionally samples from another distribution
  than the policy's, as best-of-n does. The laws on frequencies and on greedy sampling then do not apply.
* `example_rows`, of a pipeline of [prompts](protocols/PromptPipeline.md) or
  [demonstrations](protocols/SamplePipeline.md) that accepts none of strings, `[prompt, output]` and `{prompt, output}`:
  ten or more rows that it accepts. Trainers whose `sample_pipeline` or `prompt_pipeline` names that pipeline are fed
  these rows.
* `example_model`, of an [architecture](protocols/Architecture.md) that does not support GPT-2 and Llama (or T5 and
  BART, if its options include those of `seq2seq_lm`): a function that returns a small `PreTrainedModel` with random
  weights, the same in every call, in evaluation mode, with a vocabulary of 32 tokens.
* `scores_sequences = True`, of an architecture that builds a [scorer](protocols/SequenceScorer.md): the laws of scorers
  then apply in place of those of architectures. If its head is none of `transformers`, it also sets `reference_score`:
  a function of the folder that `export` wrote and the token ids of one sequence that returns its score.
* `read_tokenizer`, of an architecture whose tokenizer is more than the model's own, such as a processor of images: a
  function of the model, the given tokenizer and the options that returns it without loading the model, for `rlcore
  preview` and `rlcore plan`.
* `builds`, of an architecture that builds a [learner](protocols/Learner.md) of another kind, such as
  `"an image pipeline"`: the laws of other learners apply to it, and those about tokens do not apply to its trainers. It
  has an `example_model`, and may have `example_inputs`, a mapping that replaces inputs of the kit's runs.
* `writes_outside`, of a [logger](protocols/Logger.md) that writes files outside `run.dir`: a function of its options
  and the run that returns these files and folders. A database that a library keeps for all runs is none of them.
* `example_outputs`, of a reward of outputs that are no text: a function that returns twelve of them, by the name of the
  argument, such as `{"images": images}`.

## A trainer's loss in plain torch

The author of a trainer may state its loss a second time, in plain torch, as an oracle: `oracles={"acme-algo": loss}`,
an argument of `conformance` and `check_plugin`. The kit then trains a small model in float64 for two steps, with
micro-batches of several sizes, with padding on both sides and in two processes, and compares each run with the oracle:
weights and stated metrics must agree to 1e-10. Such a law finds what others do not, such as labels that are shifted by
one token, a mean of micro-batch means, a forgotten temperature, or a clip on the wrong side.

An oracle is a generator function. For each optimizer step it yields the loss, and the metrics that the trainer logs. It
should loop over rows without padding, and call neither the trainer's own functions nor `rlcore.ops`:

```python
import torch
from rlcore_testing import conformance


def loss(run):  # of a trainer that imitates demonstrations
    for rows in run.steps:
        logprobs = []
        for row in rows:
            logits = run.model(torch.tensor([row.tokens])).logits[0]
            logprobs += [logits[t - 1].log_softmax(-1)[row.tokens[t]] for t, own in enumerate(row.action_mask) if own]
        mean = -torch.stack(logprobs).mean()
        yield mean, {"loss/total": mean}


assert len(conformance("rlcore-sft", oracles={"sft": loss})) > 20
```

It receives a `rlcore_testing.Recorded`:

| attribute | what it has |
|---|---|
| `options` | every option of the trainer, defaults included |
| `gen` | the options of sampling; the temperature is 0.7 |
| `samples`, `rewards` | the rows of the data as the pipeline returns them, and the total reward of each |
| `rounds` | for each call of `on_rollout`, the responses: `tokens`, `action_mask`, `ended`, `score` |
| `steps` | for each optimizer step, the rows of `samples` or `rounds` that `updater.accumulate` received |
| `ends` | for each step of the run, the number of optimizer steps made by its end |
| `model` | a plain model of `transformers` in float64; each yielded loss trains it by one step of gradient descent |
| `reference` | the same model as it was before the first step |
| `heads` | the policy's other weights by name, such as those of a value head, which train too |

Rollouts are scripted, so that they do not depend on the policy: an oracle computes everything else again, such as
log-probs, values, advantages and their whitening. Within a step of the run that has several optimizer steps, the
metrics yielded last are compared. What a trainer changes outside of its gradient, such as target networks, the oracle
changes in `heads` and `reference`. The trainer needs the option `optimizer` of `rlcore.settings.BatchOptions`; the kit
sets plain gradient descent without clipping.

`tests/testing/own_oracles.py` has the oracles of SFT, PPO and ILQL; those of the other trainers are in the tests of
their packages, such as `plugins/rlcore_grpo/tests/test_oracle.py`.

## Rounding errors

Laws that compare runs up to rounding train with an optimizer that does not amplify rounding errors: AdamW with
`eps` = 1, or plain gradient descent. With `RLCORE_TESTING_NOISE=1` in the environment, the kit adds noise to the
gradients of one of the two runs, of 1e-7 of the largest gradient of the same layer: as much as rounding on another
processor may change them. The number is the seed of the noise. A law that holds with several seeds does not depend on
the processor.

## Laws

The names of the laws are public: they do not change within a minor version of rlcore. A minor version may add laws; a
plugin that is tested with the rlcore version it requires is not checked against laws of later versions.
"""
TITLES = {
    DIST: ("The package", "plugin"),
    EVERY: ("Every component", "kind-name"),
    "scorers": ("Architectures that build scorers", "architecture-name"),
    "learners": ("Architectures that build other learners", "architecture-name"),
}


def pages() -> dict[str, str]:
    """Return a mapping from the page's path to its text.

    Raises:
        Undocumented: a law has no docstring.
    """
    parts = [INTRODUCTION]
    for kind, module in MODULES.items():
        noun = KINDS.get(kind, "")
        title, prefix = TITLES.get(kind) or (f"{noun.capitalize()}s", f"{noun.replace(' ', '_')}-name")
        parts += [f"## {title}", "", f"Tests are named `{prefix}-law`.", ""]
        parts += ["| law | statement | applies |", "|---|---|---|"]
        parts += [_row(law) for law in laws_in(importlib.import_module(module))]
        parts.append("")
    return {"conformance.md": "\n".join(parts)}


def _row(law: Law) -> str:
    if not law.text:
        raise Undocumented(f"the law {law.name} has no docstring")
    if not law.about:
        raise Undocumented(f"the law {law.name} does not state what it applies to")
    return f"| `{law.name}` | {law.text.replace('|', chr(92) + '|')} | {law.about} |"
