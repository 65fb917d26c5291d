"""OpenAI's API for an engine in this process: parsing of requests and writing of answers."""
