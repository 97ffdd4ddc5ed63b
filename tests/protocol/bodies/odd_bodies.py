"""Bodies with keys that come twice, are written with escapes, or stand where they mean nothing.

And what is expected of them, by Python's own parser of JSON, as the servers have it.
"""

import json
from itertools import product

from hypothesis import strategies as st

NAME, PRIORITY = 'the "näme"', -7
WORDS = ("model", "priority", "response", "message", "x", "modelx", 'mod"el', "")
BLANKS = ("", "", "", " ", "\n\t", "  ")
SPACE = st.sampled_from(BLANKS)
SPACES = st.sampled_from(list(product(BLANKS, repeat=3)))
ESCAPED, QUARTERS = st.sampled_from([0, 0, 1, 2]), st.integers(0, 3)


@st.composite
def spelt(draw, words):
    """A text as JSON: any of its letters may be an escape."""
    word, escaped = draw(words), draw(ESCAPED)
    if not escaped:
        return json.dumps(word)
    letters = [
        f"\\u{ord(letter):04x}" if escaped > draw(QUARTERS) else json.dumps(letter)[1:-1]
        for letter in word
    ]
    return f'"{"".join(letters)}"'


ODD_TEXTS = ("", "alias", "-100", '"model":"m",', '\\"priority\\":1', "\\", '"', "}]", "é")
TEXTS = spelt(st.sampled_from((*ODD_TEXTS, '{"model":"m"}')))
SCALARS = TEXTS | st.sampled_from(["true", "null", "-100", "0", "1.5e3", "-0.1E-2", "[]", "{}"])


def an_object(draw, members):
    """Draw the white space of an object."""
    before, behind, inside = draw(SPACES)
    pairs = [f"{before}{key}{behind}:{inside}{value}{before}" for key, value in members]
    return "{" + (",".join(pairs) or before) + "}"


@st.composite
def objects(draw, listed):
    """An object of members as they are, with white space anywhere."""
    return an_object(draw, draw(listed))


KEYS = spelt(st.sampled_from(WORDS))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{' , '.join(items)}]"),
        objects(st.lists(st.tuples(KEYS, inner), max_size=4)),
    ),
    max_leaves=8,
)
ODD_MEMBERS = st.one_of(
    st.tuples(spelt(st.just("model")), TEXTS.filter(lambda text: text != '""')),
    st.tuples(spelt(st.just("priority")), VALUES),
    st.tuples(spelt(st.sampled_from(WORDS[2:])), VALUES),
)
SOME_MEMBERS = st.lists(ODD_MEMBERS, max_size=5)


@st.composite
def requests(draw, needed=(('"model"', '"m"'), ('"prompt"', '"say"'))):
    """A request's body: what it needs, and odd members before, between and behind."""
    members = [*needed, *draw(SOME_MEMBERS)]
    text = an_object(draw, draw(st.permutations(members)))
    return (draw(SPACE) + text + draw(SPACE)).encode()


ANSWERS = objects(st.lists(st.tuples(KEYS, VALUES), max_size=6)).map(str.encode)


def members_of(text, at):
    """The members of the object there: each key, and where its value starts and ends."""
    decoder = json.JSONDecoder()
    found = []

    def behind_space(place):
        return place + len(text[place:]) - len(text[place:].lstrip())

    at = behind_space(at + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        start = behind_space(behind_space(at) + 1)
        _, end = decoder.raw_decode(text, start)
        found.append((key, start, end))
        at = behind_space(end)
        at = behind_space(at + 1) if text[at] == "," else at
    return found


def edited(data, values):
    """What editing means: the last value of a key is replaced, or one added behind the others."""
    text = data.decode()
    members = members_of(text, text.index("{"))
    edits, added = [], ""
    for key, value in values.items():
        places = [(start, end) for found, start, end in members if found == key]
        if places:
            edits.append((*places[-1], json.dumps(value)))
        else:
            added += f',"{key}":{json.dumps(value)}'
    end = len(text.rstrip()) - 1
    edits.append((end, end, added if members else added[1:]))
    return _with(text, edits)


def restored(data, name, most=None):
    """What restoring means: texts under `model` at the top, and in what answers wrap it.

    `most` is how many of them, from the first on.
    """
    text = data.decode()
    edits = []
    for key, start, end in members_of(text, text.index("{")):
        inner = [(key, start, end)] if key == "model" else []
        if key in {"response", "message"} and text[start] == "{":
            inner = members_of(text, start)
        edits += [
            (first, last, json.dumps(name))
            for found, first, last in inner
            if found == "model" and text[first] == '"'
        ]
    return _with(text, sorted(edits)[:most])


def _with(text, edits):
    for start, end, put in sorted(edits, reverse=True):
        text = text[:start] + put + text[end:]
    return text.encode()
