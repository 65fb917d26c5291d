"""Training of drafting heads for a served model, on texts such as it writes."""
