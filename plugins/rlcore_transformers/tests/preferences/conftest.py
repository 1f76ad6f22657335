from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizer_fixtures import byte_tokenizer, char_tokenizer, chat_tokenizer, llama_tokenizer  # noqa: F401
