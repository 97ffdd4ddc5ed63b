"""The rules in CEL that the pinned CRDs hold, each written out in Python.

There is no CEL interpreter here: a CRD with a rule that is not in the table is refused when it is
loaded, so no rule is ever silently left out.
"""

from collections.abc import Callable
from typing import Any, Final


def _unique_numbers(ports: Any) -> bool:
    numbers = [port.get("number") for port in ports]
    return len(numbers) == len(set(numbers))


def _service_has_port(reference: Any) -> bool:
    return reference.get("kind") != "Service" or "port" in reference


RULES: Final[dict[str, Callable[[Any], bool]]] = {
    "self.all(p1, self.exists_one(p2, p1.number==p2.number))": _unique_numbers,
    "self.kind != 'Service' || has(self.port)": _service_has_port,
}


def breaks(rule: str, value: Any) -> bool:
    """Whether `value` breaks a rule of the table. Errors: KeyError for any other rule."""
    return not RULES[rule](value)
