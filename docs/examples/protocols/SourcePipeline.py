"""A pipeline of samples that reads lines of text from an open file, and rewards from another."""

import io

from rlcore.protocols import SourcePipeline
from rlcore_transformers.data.pipelines import SAMPLES
from rlcore_transformers.data.samples import build_samples


class Lines:
    def __call__(self, source, tokenizer, data, *, max_length, what="samples"):
        rows = self.read_rows(source, {}, what=what)
        return build_samples(rows, tokenizer, data, max_length=max_length, what=what)

    def open_stream(self, source, data, *, seed, read, what="samples"):
        return None  # files are read whole

    def read_rows(self, source, columns, *, what):
        return [line.rstrip("\n") for line in source]


assert isinstance(Lines(), SourcePipeline)
assert isinstance(SAMPLES, SourcePipeline)  # the built-in one
assert Lines().read_rows(io.StringIO("a\nb\n"), {}, what="samples") == ["a", "b"]
