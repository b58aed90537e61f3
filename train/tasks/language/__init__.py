"""What tasks on text share: a pre-trained model, its tokenizer, padding, and a cache of tokens."""
