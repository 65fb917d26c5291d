"""The dashboard at /ui and its live feed."""
