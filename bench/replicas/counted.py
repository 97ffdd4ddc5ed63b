"""Plays what a request costs replicas, told to the others and taken in from one, to be counted.

python -m bench.replicas.counted CLASSES
"""

import sys

from bench.exchange.player import make_classes, mark
from bench.replicas.costs import SIZES, Side, batches

_REQUESTS = {"2k": 400, "220k": 40}
FIGURES = {
    f"{what}_{size}": count for size, count in _REQUESTS.items() for what in ("told", "taken_in")
}
"""What is counted, in order, and of how many requests."""


def main() -> None:
    """Play each size twice, and count the second half."""
    make_classes(int(sys.argv[1]))
    for size, count in _REQUESTS.items():
        one, other = Side(1), Side(2)
        every = list(batches(one, SIZES[size][0], 2 * count))
        half = len(every) // 2
        for events in every[:half]:
            other.take_in(one.tell(events, len))
        mark()
        messages = [one.tell(events, len) for events in every[half:]]
        mark()
        mark()
        for each in messages:
            other.take_in(each)
        mark()


if __name__ == "__main__":
    main()
