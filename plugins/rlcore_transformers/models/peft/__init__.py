"""PEFT adapters: inject, load and save them."""
