"""A pipeline of samples that reads lines of text from an open file, and rewards from another."""

import io

from rlcore.protocols import SourcePipeline
from rlcore.types import Sample
from rlcore_transformers.data.pipelines import SAMPLES, build_sample_rewards, load_logit_mask
from rlcore_transformers.data.samples import build_samples


class Lines:
    def __call__(self, source, tokenizer, data, *, max_length, what="samples"):
        rows = [line.rstrip("\n") for line in source]
        return build_samples(rows, tokenizer, data, max_length=max_length, what=what)

    def open_stream(self, source, data, *, seed, read, what="samples"):
        return None  # files are read whole

    def read_rewards(self, source, samples, columns, *, what):
        return build_sample_rewards([float(line) for line in source], samples, what)

    def read_logit_mask(self, source, what="logit_mask"):
        return load_logit_mask(source, what)


assert isinstance(Lines(), SourcePipeline)
assert isinstance(SAMPLES, SourcePipeline)  # the built-in one
sample = Sample((7, 8), (False, True))
assert Lines().read_rewards(io.StringIO("0.5\n"), [sample], {}, what="rewards")[0].tokens == (0, 0.5)
