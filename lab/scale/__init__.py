"""What a large fleet would take, computed from measured costs."""
