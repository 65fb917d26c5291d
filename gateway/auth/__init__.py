"""Keys, tenants, rate limits, and the runtime config."""
