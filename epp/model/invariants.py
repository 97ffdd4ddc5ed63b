"""The check behind the `check_invariants` methods of the model."""


def check(**claims: bool) -> None:
    """Raise `AssertionError` with the names of the claims that are false, if any is."""
    false = [name for name, claim in claims.items() if not claim]
    if false:
        raise AssertionError(", ".join(false))
