"""HTTP towards clients: request parsing and response writing."""
