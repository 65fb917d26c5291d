"""An engine that the gateway starts, supervises and stops."""
