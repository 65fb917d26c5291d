"""How the bundled model is made: data, tokenizer, training, evaluation. ``python -m ... build`` does it all."""
