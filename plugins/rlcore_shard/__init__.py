"""Strategies that divide a model among processes, with torch's FSDP2 or DeepSpeed's ZeRO, for rlcore."""
