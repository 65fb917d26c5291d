"""The embedded engine under load: output tokens per second, by the price of a draft token."""
