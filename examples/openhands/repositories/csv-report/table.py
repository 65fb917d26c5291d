"""A table of names and numbers."""


def render(totals: dict[str, float]) -> str:
    """Return one line per name: names left-aligned, numbers right-aligned with two decimals."""
    width = max((len(name) for name in totals), default=0)
    return "\n".join(f"{name:<{width}} {total:>10.2f}" for name, total in totals.items())
