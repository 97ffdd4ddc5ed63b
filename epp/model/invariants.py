"""The check behind the `check_invariants` methods of the model."""


def check(**conditions: bool) -> None:
    """Raise `AssertionError` with the names of the conditions that are false, if any is."""
    false = [name for name, holds in conditions.items() if not holds]
    if false:
        raise AssertionError(", ".join(false))
