"""The mini model's base: its tokenizer, its corpus, its pre-training."""
