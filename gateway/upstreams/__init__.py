"""The engines behind the gateway: choice, admission, connections, health."""
