"""The price that the embedded engine learns, for models of several shapes and under several loads."""
