"""A pipeline that formats every prompt as a question."""

from rlcore import hookimpl
from rlcore.config import config, option


@config
class QuestionConfig:
    """Format of the questions."""

    form: str = option("Q: {} A:", "format of a prompt; {} is replaced by the row's text")


@hookimpl
def register_pipelines(register):
    register("questions", "register_pipelines:make", config=QuestionConfig, summary="every row as a question")


def make(options):
    def questions(source, tokenizer, data, *, max_length, what="prompts"):
        from rlcore_transformers.data.prompts import build_prompts
        from rlcore_transformers.data.sources import load_source

        rows = [options.form.format(row) for row in load_source(source, what)]
        return build_prompts(rows, tokenizer, data, max_length=max_length, what=what)

    return questions
