"""Tokens made in process, by the model's own tokenizer and chat template."""
