"""HTTP towards clients: from bytes to a request, from an answer to bytes."""
