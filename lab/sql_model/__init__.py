"""Build of the bundled model: data, tokenizer, training, evaluation. One command: see ``__main__``."""
