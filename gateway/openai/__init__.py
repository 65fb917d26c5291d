"""OpenAI's API for an engine in this process: requests in, answers out."""
