"""A trained model on the Hugging Face hub: its model card, and its upload."""
