"""Keys, tenants, rate limits, and the configuration in force."""
