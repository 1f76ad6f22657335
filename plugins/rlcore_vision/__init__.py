"""Vision-language models for rlcore: rows with images, and the policies that see them."""
