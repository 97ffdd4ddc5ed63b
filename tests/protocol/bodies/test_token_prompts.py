"""Media in prompts of token ids: what they change, and that the prompt bounds the work."""

import json
import time
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from epp._pb import engine_api_pb2 as pb
from epp.model.request import Api, Prompt
from epp.protocol.bodies.grpc_body import parse_generate
from epp.protocol.bodies.request_json import parse_request
from epp.protocol.bodies.token_prompts import LONGEST_FEATURE, MAX_MEDIA, with_media

SIZES = st.integers(-2, 30) | st.sampled_from([2**31, 2**63, 2**70, 10**400])
TOKENS = 90_000
HASHES = st.sampled_from(["a", "b", "", "é", "\0"])
LOOSE = st.dictionaries(
    st.sampled_from(["image", "audio", "video", ""]) | st.text(max_size=3),
    st.lists(st.tuples(SIZES, SIZES, HASHES), max_size=6),
    max_size=5,
)
"""Media by modality, each with an offset, a length and a hash, of which any may not fit."""


@st.composite
def fitting(draw):
    """Draw a number of tokens, and media among them, in any order and of any modality."""
    count = draw(st.integers(1, 60))
    edges = sorted(draw(st.sets(st.integers(0, count), min_size=2, max_size=12)))
    spans = draw(st.permutations([(start, end - start) for start, end in pairwise(edges)]))
    media: dict[str, list[tuple[int, int, str]]] = {}
    for start, length in spans[: draw(st.integers(1, len(spans)))]:
        modality = draw(st.sampled_from(["image", "audio", "video"]))
        media.setdefault(modality, []).append((start, length, draw(HASHES)))
    return count, media


def features_of(media):
    return {
        "mm_hashes": {key: [name for _, _, name in each] for key, each in media.items()},
        "mm_placeholders": {
            key: [{"offset": start, "length": length} for start, length, _ in each]
            for key, each in media.items()
        },
    }


def read(count, features):
    body = {"token_ids": list(range(count)), "features": features}
    (prompt,) = parse_request(Api.GENERATE, json.dumps(body).encode()).prompts
    return prompt


def plain(count):
    return Prompt(b"".join(each.to_bytes(4, "little") for each in range(count)), exact=True)


def replaced(count, media):
    """Replace one token after the other: by the next four bytes of its medium's digest, again."""
    ids = [each.to_bytes(4, "little") for each in range(count)]
    for each in media.values():
        for start, length, name in each:
            digest = xxhash.xxh3_128_digest(name.encode())
            for at in range(length):
                part = at * 4 % len(digest)
                ids[start + at] = digest[part : part + 4]
    return Prompt(b"".join(ids), exact=True, multimodal=True)


@given(fitting())
def test_each_token_of_a_medium_is_one_of_its_hash(drawn):
    count, media = drawn
    assert read(count, features_of(media)) == replaced(count, media)


@given(fitting())
def test_the_same_over_grpc(drawn):
    count, media = drawn
    flat = [each for listed in media.values() for each in listed]
    inputs = pb.Multimodal(
        mm_placeholders=[pb.PlaceholderRange(offset=start, length=size) for start, size, _ in flat],
        mm_hashes=[name for _, _, name in flat],
    )
    request = pb.GenerateRequest(
        tokenized=pb.Tokenized(input_ids=range(count)), mm_inputs=inputs.SerializeToString()
    )
    parsed = parse_generate(request.SerializeToString())
    assert parsed.prompts == (replaced(count, media),)
    assert parsed.multimodal


def fits(count, media):
    flat = sorted((start, start + size) for each in media.values() for start, size, _ in each)
    ends = [0, *(end for _, end in flat)]
    starts = [*(start for start, _ in flat), count]
    return all(start < end for start, end in flat) and all(
        end <= start for end, start in zip(ends, starts, strict=True)
    )


@given(st.integers(1, 40), LOOSE)
def test_media_that_do_not_fit_are_ignored(count, media):
    ignored = not any(media.values()) or not fits(count, media)
    expected = plain(count) if ignored else replaced(count, media)
    assert read(count, features_of(media)) == expected


def seconds(work):
    """CPU time of some work, the least of three tries."""
    tries = []
    for _ in range(3):
        began = time.thread_time()
        work()
        tries.append(time.thread_time() - began)
    return min(tries)


MANY = {
    "one whole": {"image": [(0, TOKENS, "a")]},
    "all whole": {f"m{at}": [(0, TOKENS, "a")] * 250 for at in range(12)},
    "disjoint": {"image": [(at, 1, "a") for at in range(3000)]},
    "a modality each": {f"m{at}": [(at, 1, "a")] for at in range(2000)},
    "overlapping by one": {"image": [(at, 2, "a") for at in range(3000)]},
    "huge": {"image": [(2**70, 10**400, "a")] * 200},
}


@pytest.mark.parametrize("form", MANY)
def test_media_cost_no_more_than_the_tokens_they_stand_for(form):
    features = json.dumps(features_of(MANY[form]))
    body = f'{{"token_ids":[{"1," * TOKENS}1]%s}}'
    plain = (body % "").encode()
    with_features = (body % f',"features":{features}').encode()
    alone, together = (
        seconds(lambda data=data: parse_request(Api.GENERATE, data))
        for data in (plain, with_features)
    )
    assert together < 3 * alone + 0.02


@pytest.mark.parametrize(
    "features",
    [
        None,
        5,
        "x",
        [],
        {},
        {"mm_hashes": None, "mm_placeholders": None},
        {"mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": ["a"]}},
        {"mm_hashes": {"image": []}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": [5]}, "mm_placeholders": {"image": [{"offset": 0, "length": 1}]}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": 0.5}]}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": {"offset": 0, "length": 1}}},
    ],
)
def test_what_are_no_features_changes_nothing(features):
    assert read(3, features) == plain(3)


def test_the_first_media_are_looked_at():
    media = {"image": [(at, 1, str(at)) for at in reversed(range(MAX_MEDIA + 9))]}
    seen = {"image": [(at, 1, str(at)) for at in range(MAX_MEDIA)]}
    assert read(300, features_of(media)) == replaced(300, seen)


def test_what_says_of_media_is_read_up_to_a_length():
    prompts = (plain(3),)
    places = b'{"i":[{"offset":0,"length":1}]}'
    hashes = b'{"i":["%s"]}'
    long = b"x" * (LONGEST_FEATURE - len(hashes % b""))
    assert with_media(prompts, hashes % long, places) != prompts
    assert with_media(prompts, hashes % (long + b"x"), places) == prompts
    padded = places + b" " * (LONGEST_FEATURE - len(places))
    assert with_media(prompts, hashes % b"a", padded) != prompts
    assert with_media(prompts, hashes % b"a", padded + b" ") == prompts


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_read_or_ignored(hashes, places):
    assert with_media((plain(3),), hashes, places) == (plain(3),)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1])
def test_media_over_grpc_are_read_up_to_a_length(size):
    inputs = pb.Multimodal(
        mm_placeholders=[pb.PlaceholderRange(offset=0, length=1)], mm_hashes=["a"]
    ).SerializeToString()
    rest = size - len(inputs) - 4  # a field that is not known: 15, its length in three bytes
    inputs += b"\x7a" + bytes([rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14]) + bytes(rest)
    request = pb.GenerateRequest(tokenized=pb.Tokenized(input_ids=[1, 2]), mm_inputs=inputs)
    parsed = parse_generate(request.SerializeToString())
    assert len(inputs) == size
    assert parsed.multimodal is (size == 1 << 18)
