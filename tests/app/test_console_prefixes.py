"""The console's page of hot prefixes: a tree of what prompts have in common."""

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from tests.app.test_console import PREFIXES, Shown
from tests.strategies import text

SYSTEM = text(2048)


async def tree(shown):
    shown.now += 10
    return json.loads(await shown.page(PREFIXES))


async def test_what_prompts_have_in_common_is_a_tree():
    shown = Shown()
    for ending in ("one", "two", "three"):
        shown.serve(SYSTEM + text(1024, ending))
    shown.serve(SYSTEM + text(1024, "one") + text(512, "more"))
    shown.serve(text(2048, "alone"))
    found = await tree(shown)
    assert found["requests"] == 5
    (root,) = found["roots"]
    assert root["requests"] == 4
    (child,) = root["children"]
    assert child["requests"] == 2
    assert child["tokens"] > root["tokens"] > 0
    assert child["children"] == []
    assert set(child["endpoints"]) <= {each.id for each in shown.fleet.endpoints}
    assert len(child["endpoints"]) == child["holders"] >= 1
    last = shown.ring.last(2)[0]  # the last that begins like this
    assert child["endpoints"][0] == last.outline.endpoint
    assert child["seconds_ago"] == round(shown.now - last.decided_at, 1)


async def test_prompts_that_end_where_others_go_on_are_counted():
    shown = Shown()
    for _ in range(3):
        shown.serve(SYSTEM)
    (root,) = (await tree(shown))["roots"]
    assert (root["requests"], root["children"]) == (3, [])


async def test_the_tree_is_bounded_whatever_is_asked():
    shown = Shown()
    for number in range(300):
        content = "".join(text(256, str(number % (2 << depth))) for depth in range(10))
        shown.serve(content)
    found = await tree(shown)
    assert found["requests"] == 256

    def depth(node):
        return 1 + max(map(depth, node["children"]), default=0)

    def widest(nodes):
        return max([len(nodes), *(widest(each["children"]) for each in nodes)])

    assert max(map(depth, found["roots"])) <= 6
    assert widest(found["roots"]) <= 12


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), max_size=12))
def test_the_tree_counts_as_one_that_compares_all_with_all(prompts):
    """Each node counts the prompts that begin with it, and is the longest text that they share."""
    shown = Shown()
    contents = [[text(256, part) for part in parts] for parts in prompts]
    for parts in contents:
        shown.serve("".join(parts))
    found = asyncio.run(tree(shown))
    starts = [parts[0] for parts in prompts]
    shared = {each: starts.count(each) for each in starts if starts.count(each) > 1}
    assert sorted(each["requests"] for each in found["roots"]) == sorted(shared.values())

    def check(node):
        assert sum(each["requests"] for each in node["children"]) <= node["requests"]
        for each in node["children"]:
            assert each["tokens"] > node["tokens"]
            check(each)

    for root in found["roots"]:
        check(root)
