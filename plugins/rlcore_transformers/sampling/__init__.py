"""The sampler `default`: it continues prompts token by token with any policy."""
