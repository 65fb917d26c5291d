"""How the bundled model is made: data, tokenizer, training, evaluation. One command: see ``__main__``."""
