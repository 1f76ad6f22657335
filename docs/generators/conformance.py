"""Write the page of the conformance kit: every law, whom it is about, and what it says."""

from __future__ import annotations

import importlib

from generators.docstrings import Undocumented
from rlcore.components import KINDS
from rlcore.testing.cases import MODULES
from rlcore.testing.law import DIST, EVERY, Law, laws_in

INTRODUCTION = """\
# The conformance kit

Generated from `rlcore/testing` by `make docs`. `rlcore.testing` holds an installed plugin against the laws below. Which
of them are held follows from what the plugin brings, and from what it declares. Everything happens on the CPU, with
models and tokenizers made on the spot; `pip install "rlcore[testing]"` brings pytest. Every package of this repository
passes, as any stranger's does.

In the tests of a plugin, each law is a test of its own:

```text
import pytest
from rlcore.testing import conformance

@pytest.mark.parametrize("law", conformance("acme-polite"))
def test_law(law):
    law()
```

`rlcore new-plugin` writes that file. Without pytest, `check_plugin` holds all of them and raises a `ConformanceError`,
with a line for each, if one is broken:

```console
$ rlcore new-plugin acme-polite --kind reward
...
$ cd acme-polite
$ pip install -e .
```

<!-- setup: file=check.py -->
```python
from rlcore.testing import check_plugin

if __name__ == "__main__":  # some laws start processes of their own
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

Both take `options`, component name → options it is built with in every law, as
`{"acme-algo": {"rollouts": 8}}`; and `expected_failures`, test → reason, as
`{"trainer-acme-algo-two_processes_equal_one": "draws its own noise"}`. That is strict: a law that holds though it was
to fail is a failure.

What the laws cannot see, a component declares by an attribute of what is registered, a function or a class:

* `lowers`, of a [trainer](protocols/Trainer.md) that learns from samples and makes them no likelier, as one of
  preferences: the metric that falls as it learns, such as `"loss/policy"`.
* `draws_from_policy = False`, of a [sampler](protocols/Sampler.md): it draws from another distribution than the
  policy's on purpose, as best-of-n does. The laws on frequencies and on greedy choices are then not held.
* `example_rows`, of a pipeline of [prompts](protocols/PromptPipeline.md) or
  [demonstrations](protocols/SamplePipeline.md) that reads none of strings, `[prompt, output]` and `{prompt, output}`:
  ten or more rows that it reads.
* `example_model`, of an [architecture](protocols/Architecture.md) that does not take GPT-2 and Llama (T5 and BART, if
  its options are those of `seq2seq_lm` or more): a function that returns a small `PreTrainedModel` with random weights,
  in evaluation mode, that knows 32 tokens.

The names of the laws are public: they do not change within a minor version of rlcore. A minor version may bring new
laws; a plugin that is tested with the rlcore it requires is not held to those of later ones.
"""
TITLES = {DIST: ("The package", "plugin"), EVERY: ("Every component", "kind-name")}


def pages() -> dict[str, str]:
    """Return the page, by its path in the documentation.

    Raises:
        Undocumented: a law does not say what it is.
    """
    parts = [INTRODUCTION]
    for kind, module in MODULES.items():
        noun = KINDS.get(kind, "")
        title, prefix = TITLES.get(kind) or (f"{noun.capitalize()}s", f"{noun.replace(' ', '_')}-name")
        parts += [f"## {title}", "", f"Tests are called `{prefix}-law`.", ""]
        parts += ["| law | what it says | held |", "|---|---|---|"]
        parts += [_row(law) for law in laws_in(importlib.import_module(module))]
        parts.append("")
    return {"conformance.md": "\n".join(parts)}


def _row(law: Law) -> str:
    if not law.text:
        raise Undocumented(f"the law {law.name} has no docstring")
    if not law.about:
        raise Undocumented(f"the law {law.name} does not say when it is held")
    return f"| `{law.name}` | {law.text.replace('|', chr(92) + '|')} | {law.about} |"
