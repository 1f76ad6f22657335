"""Headline tasks on SmolLM2-135M-Instruct: one script and its configuration files for each.

The scripts import from docs/examples, which this adds to the path.
"""

import sys

from benchmarks.places import EXAMPLES

if str(EXAMPLES) not in sys.path:
    sys.path.append(str(EXAMPLES))
