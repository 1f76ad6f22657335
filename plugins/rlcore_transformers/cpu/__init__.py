"""Techniques of decoding that only CPUs use: no padding, caches in blocks of columns, prompts stored once.

On a CPU, attention with one query a sequence is bound by memory bandwidth, and attention kernels start anew for each
sequence and head. Large batches are therefore decoded as one packed sequence. Its keys and values are in blocks of
columns (`BlockCache`) or, where several samples continue the same prompt, once for each prompt (`SharedCache`); both
are in packed_decoder.py. Sampled tokens are those of the ordinary decoder, up to rounding.
"""
