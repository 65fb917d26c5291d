"""A table of names and numbers."""


def render(totals: dict[str, float]) -> str:
    """One line each: names to the left, numbers with two digits to the right."""
    width = max((len(name) for name in totals), default=0)
    return "\n".join(f"{name:<{width}} {total:>10.2f}" for name, total in totals.items())
