"""Tokenization in this process, by the model's own tokenizer and chat template."""
