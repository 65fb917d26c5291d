"""A small model of open-ended text, trained on recorded answers, and the prompts to measure it on."""
