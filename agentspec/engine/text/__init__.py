"""Text and tokens: tokenizer, detokenizer, chat template."""
