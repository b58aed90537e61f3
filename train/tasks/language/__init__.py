"""Shared by tasks on text: a pre-trained model, its tokenizer, padding, and a cache of tokens."""
