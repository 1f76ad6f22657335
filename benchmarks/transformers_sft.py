"""Fine-tune with a tuned `transformers.Trainer`; prints one line of JSON (sft_work.py).

Texts are tokenised beforehand, and each batch is padded to its longest text. `--by-length` batches texts of similar
length, which reduces padding and shuffling. AdamW is fused and attention is scaled-dot-product attention; nothing is
logged, saved or evaluated.
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

from benchmarks.sft_work import BATCH_SIZE, LR, MAX_GRAD_NORM, PASSES, Marks, parser
from benchmarks.texts import read_pairs


class CallbackMarks(TrainerCallback, Marks):
    """Callback that records the time at the end of each step."""

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Record the time."""
        self.mark()


def tokenise(tokenizer: Any, prompt: str, output: str) -> dict[str, list[int]]:
    """Return ids, and labels of the output alone; both end with EOS."""
    before, after = tokenizer(prompt)["input_ids"], [*tokenizer(output)["input_ids"], tokenizer.eos_token_id]
    ids = before + after
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * len(before) + after}


def main() -> None:
    """Parse the command line, train, and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--by-length", action="store_true", help="put texts of like length into a batch")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    pairs = read_pairs(options.kind, options.data, BATCH_SIZE * options.steps)
    rows = [tokenise(tokenizer, *pair) for pair in pairs]
    marks = CallbackMarks()
    with TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH_SIZE,
            num_train_epochs=PASSES,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=MAX_GRAD_NORM,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length" if options.by_length else "random",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True),
            callbacks=[marks],
        )
        loss = trainer.train().training_loss
    print(json.dumps(marks.report(tokens=sum(len(row["input_ids"]) for row in rows), loss=loss)))


if __name__ == "__main__":
    main()
