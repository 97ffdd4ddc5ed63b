"""The reader of prompts: what it learns of their lengths, and from which reports."""

import pytest

from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.generated import GeneratedBlocks
from epp.model.prompts.reader import Prompts
from epp.model.prompts.text_lengths import DEFAULT_RATES, kind_of
from epp.model.request import Prompt, RequestId
from tests.strategies import request, text

FIRST, SECOND = text(400, "u"), text(200, "v")
IDS = Prompt(b"".join(each.to_bytes(4, "little") for each in range(800)), exact=True)
BLOCK = 16


def of_messages(*messages, more=""):
    ends = [len("".join(messages[: n + 1])) for n in range(len(messages))]
    return Prompt("".join((*messages, more)).encode(), marks=ends)


WHOLE, OPEN = of_messages(FIRST, SECOND), of_messages(FIRST, more=SECOND)


class Reading:
    """A reader, and the events that it has found."""

    def __init__(self):
        self.prompts, self.found = Prompts(BlockHasher(b"secret")), []

    def read(self, *prompts):
        asked = request("r", prompts=prompts)
        return self.prompts.read(asked, 1.0, lambda event, _: self.found.append(event))

    def one(self, prompt):
        (chain,), (offsets,), _ = self.read(prompt)
        return chain, offsets

    def learn(self, prompt, tokens):
        chain, offsets = self.one(prompt)
        model = request("r").target_model
        kind = kind_of(prompt.data)
        return offsets, self.prompts.learn_length(chain, offsets, tokens, model, kind)


CODE = of_messages("for (i = 0; i < n; ++i) { s += a[i] * b[i]; }\n" * 40)
MEDIA = Prompt(FIRST.encode(), multimodal=True)


@pytest.mark.parametrize(
    ("prompts", "kind"),
    [((WHOLE,), "prose"), ((CODE,), "code"), ((MEDIA,), "media"), ((IDS,), "prose")],
)
def test_text_is_measured_as_what_it_is(prompts, kind):
    _, offsets, found = Reading().read(*prompts)
    assert found == kind
    if not prompts[0].exact:
        assert offsets[0].total == round(len(prompts[0].data) / DEFAULT_RATES[kind])


@pytest.mark.parametrize("prompt", [WHOLE, OPEN])
def test_the_first_report_is_the_length_and_the_rate_from_then_on(prompt):
    reading = Reading()
    before, after = reading.learn(prompt, 1200)
    assert before.total == 600
    assert (after.total, after.ends[-1]) == (1200, 1200 * before.ends[-1] // 600)
    assert reading.one(of_messages(text(500, "w")))[1].total == 1000


def test_what_was_counted_before_stays_and_the_rest_has_the_rest():
    reading = Reading()
    reading.learn(of_messages(FIRST), 400)
    _, after = reading.learn(WHOLE, 1000)
    chain, again = reading.one(WHOLE)
    ends = dict(zip(chain.ends, after.ends, strict=True))
    assert (ends[len(FIRST)], ends[len(WHOLE.data)], after.total) == (400, 1000, 1000)
    assert (list(again.ends), again.total, again.known) == (list(after.ends), 1000, 1000)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [(WHOLE, 0), (WHOLE, 601), (IDS, 400), (of_messages(more="too short for a block"), 5)],
)
def test_a_report_of_about_the_estimate_or_of_nothing_changes_no_length(prompt, tokens):
    before, after = Reading().learn(prompt, tokens)
    assert after is before


def test_token_ids_teach_nothing_of_text():
    reading = Reading()
    reading.learn(IDS, 400)
    assert reading.one(WHOLE)[1].total == 600


@pytest.mark.parametrize(
    ("blocks_of", "served", "known"),
    [
        (FIRST, 400, 400 + BLOCK // 2),
        (FIRST, 325, 325 + BLOCK // 2),
        (FIRST, 475, 475 + BLOCK // 2),
        (FIRST, 300, None),  # too far from the estimate: blocks were evicted
        (FIRST, 500, None),
        (FIRST, 0, None),
        (FIRST[:1000], 250, None),  # no message ends there
        (FIRST + SECOND, 600, None),  # the last one is not a prefix
        ("", 400, None),
    ],
)
def test_what_a_cache_serves_up_to_the_end_of_a_message_is_its_length(blocks_of, served, known):
    reading = Reading()
    chain, offsets = reading.one(WHOLE)
    blocks = sum(end <= len(blocks_of) for end in chain.ends)
    reading.prompts.learn_prefix(chain, offsets, blocks, served, BLOCK)
    first = list(chain.ends).index(len(FIRST))
    learned = reading.one(WHOLE)[1]
    assert learned.ends[first] == (known or offsets.ends[first])
    assert learned.known == (known or 0)


def test_what_is_known_already_is_what_a_served_prefix_must_be_near_to():
    reading = Reading()
    reading.learn(of_messages(FIRST), 800)
    chain, offsets = reading.one(WHOLE)
    first = list(chain.ends).index(len(FIRST))
    for served in (400, 790):
        reading.prompts.learn_prefix(chain, offsets, first + 1, served, BLOCK)
        assert reading.one(WHOLE)[1].ends[first] == 800


def test_a_cache_that_evicts_more_and_more_of_a_prefix_does_not_shorten_it():
    reading = Reading()
    first = list(reading.one(WHOLE)[0].ends).index(len(FIRST))
    for served in (400, 345, 300):
        chain, offsets = reading.one(WHOLE)
        reading.prompts.learn_prefix(chain, offsets, first + 1, served, BLOCK)
    assert reading.one(WHOLE)[1].ends[first] == 345 + BLOCK // 2


class Output:
    """The blocks of a response in a cache (`CachedOutput`)."""

    gone, engine_block = False, BLOCK

    def assign_hashes(self, hashes, sizes):
        self.assigned = list(hashes), list(sizes)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_a_response_that_a_prompt_repeats_gives_its_length_and_its_blocks(broken, gone):
    reading, peer, output = Reading(), Reading(), Output()
    reading.learn(of_messages(FIRST), 400)
    chain, _ = reading.one(of_messages(FIRST))
    blocks = GeneratedBlocks(RequestId("r1"), chain, 400, output, 400, 301, broken=broken)
    for each in (reading, peer):
        each.prompts.generated.remember(blocks)
    output.gone = gone
    again, offsets = reading.one(of_messages(FIRST, SECOND, text(75, "w")))
    first, end = [list(again.ends).index(each) for each in (len(FIRST), len(FIRST + SECOND))]
    assert (offsets.ends[end] == 700) is not broken
    for event in reading.found:
        reading.prompts.assign_hashes(event)
        reading.prompts.assign_hashes(event)  # a second time, as another replica sees it too
        peer.prompts.assign_hashes(event)
    if gone:
        assert not hasattr(output, "assigned")
    else:
        hashes, sizes = output.assigned
        assert hashes == list(again.hashes[first + 1 : end + 1])
        assert sum(sizes) == (200 if broken else 700 // BLOCK * BLOCK - 400)
    assert not reading.prompts.generated.may_repeat(again)
    learned = not (broken or gone)
    assert (peer.one(of_messages(FIRST, SECOND))[1].known == 700) is learned
    reading.found.clear()
    reading.one(of_messages(FIRST, SECOND))
    assert not reading.found
