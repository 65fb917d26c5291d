"""The chart for Kubernetes with the real Helm, and gateways behind the real HAProxy: ``make test-deploy``."""
