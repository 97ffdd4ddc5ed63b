"""The benchmark of the kernels: what it measures with is what it says."""

from bench.index import picture, speed
from bench.index.benchmark import report
from bench.index.pooled import Pooled, chain
from epp.model.prefix_index.index import PrefixIndex

DESIGN = ("hash_us_400kb", "matches_per_s", "blocks_applied_per_s", "bytes_per_block")


def runs_of(*keys):
    return {f"{key}{side}": [1.0, 3.0, 2.0] for key in keys for side in ("", "_python")}


def test_what_the_design_asks_for_is_reported():
    found = report(runs_of(*DESIGN), {"": [(1, 50.0)], "_python": [(1, 200.0)]}, ())
    assert {figure.key: figure.value for figure in found.figures} == dict.fromkeys(
        runs_of(*DESIGN), 2.0
    )
    assert [found.kept(figure) for figure in found.figures if figure.budget] == [
        True,
        False,
        False,
        True,
    ]
    assert found.picture.startswith(b"\x89PNG")


def test_endpoints_hold_as_many_blocks_as_is_said():
    assert sum(speed._DEPTHS) == speed.BLOCKS


def test_conversations_differ_from_their_first_block_on():
    first, again, other = chain(1, 40), chain(1, 40), chain(2, 40)
    assert list(first) == list(again)
    assert len({*first, *other}) == 80


def test_a_pool_tells_the_index_what_it_holds():
    index = PrefixIndex()
    pools = [Pooled(index, 100) for _ in range(2)]
    for number in range(5):
        pools[0].serve(chain(number, 40), [16] * 40)
    assert (index.held, len(index)) == (100, 100)
    assert index.match(chain(4, 40)) == [40, 0]
    assert index.match(chain(3, 40)) == [40, 0]
    assert index.match(chain(0, 40)) == [0, 0]
    pools[1].serve(chain(4, 40), [16] * 40)
    assert (index.held, len(index)) == (140, 100)


def test_a_picture_of_one_side_alone():
    assert picture.draw({"hash_us_2kb_python": 3.0}, {}).startswith(b"\x89PNG")
