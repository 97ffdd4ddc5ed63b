"""Habits that no other tool checks: names of modules, and that every error can be answered."""

import json
from pathlib import Path

import pytest

import epp
from epp.errors import RequestError, WarmpickError
from epp.protocol.extproc.errors import error_reply

PACKAGE = Path(epp.__file__).parent


def modules():
    return [path for path in PACKAGE.rglob("*.py") if "_pb" not in path.parts]


def test_no_module_is_named_for_nothing():
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert {path.stem for path in modules()} & vague == set()


def family(kind):
    return [kind, *(each for child in kind.__subclasses__() for each in family(child))]


ERRORS = list(dict.fromkeys(family(RequestError)))


def test_every_error_has_a_place_in_the_tree():
    names = [kind.__name__ for kind in family(WarmpickError) if kind.__module__ == "epp.errors"]
    text = (PACKAGE / "errors.py").read_text()
    drawn = text[: text.index('"""', 3)]
    assert [name for name in names if name not in drawn] == []


def test_reasons_are_told_apart():
    reasons = [kind.default_reason for kind in ERRORS if "default_reason" in vars(kind)]
    assert len(reasons) == len(set(reasons))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_is_answered_in_the_forms_of_openai_and_anthropic(kind):
    error = kind('it says "no"', retry_after=3)
    reply = error_reply(error)
    body = json.loads(reply.body)
    assert 400 <= reply.status == kind.status < 600
    assert body == {
        "type": "error",
        "error": {
            "message": 'it says "no"',
            "type": kind.kind,
            "param": None,
            "code": error.reason,
        },
    }
    headers = dict(reply.headers)
    assert headers["content-type"] == "application/json"
    assert headers["x-warmpick-reason"] == error.reason == kind.default_reason
    assert headers["retry-after"] == "3"
    assert headers.get("x-llm-d-request-dropped-reason", "") == kind.dropped_reason
    assert kind.code
    assert error.reason.replace("-", "").isalpha()


def test_an_error_may_have_a_reason_of_its_own():
    reply = error_reply(RequestError("no", reason="other"))
    assert ("x-warmpick-reason", "other") in reply.headers
    assert not any(name == "retry-after" for name, _ in reply.headers)
