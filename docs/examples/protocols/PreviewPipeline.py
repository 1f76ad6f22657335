"""A pipeline of prompts from questions, which lets a run check reward functions before it loads the model."""

from rlcore.protocols import PreviewPipeline
from rlcore.settings import DataConfig
from rlcore.types import Prompt
from rlcore_transformers.data.prompts import build_prompts


class Questions:
    def __call__(self, source, tokenizer, data, *, max_length, what="prompts"):
        rows = [{"prompt": f"Q: {row['question']}\nA:", "answer": row["answer"]} for row in source]
        return build_prompts(rows, tokenizer, data, max_length=max_length, what=what)

    def preview(self, source, data, *, what):
        if not isinstance(source, list):
            return None  # it might be read only once
        return [Prompt(f"Q: {row['question']}\nA:", (0,), {"answer": row["answer"]}) for row in source[:2]], True


questions = Questions()
assert isinstance(questions, PreviewPipeline)
prompts, is_final = questions.preview([{"question": "1 + 1?", "answer": "2"}], DataConfig(), what="prompts")
assert prompts[0].columns == {"answer": "2"}
assert is_final
