"""An engine that the gateway starts, watches and ends."""
