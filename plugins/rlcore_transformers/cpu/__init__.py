"""Techniques of decoding that only CPUs use: no padding, caches in blocks of columns, prompts stored once.

On a CPU, attention with one query a sequence is bound by memory bandwidth, and attention kernels start anew for each
sequence and head. Large batches are therefore decoded as one packed sequence (packed_decoder.py). Its keys and values
are in blocks of columns (block_cache.py) or, where several samples continue the same prompt, once for each prompt
(shared_cache.py). Sampled tokens are those of the ordinary decoder, up to rounding.
"""
