"""Rules on names and labels that hold for every kind (apimachinery `validation`)."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from tests.kubeapi.status import Cause

Json = dict[str, Any]
LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"{LABEL}(\.{LABEL})*"
NAME_PART: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
LABEL_VALUE: Final = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
SUBDOMAIN_SAID: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'example.com', regex used for"
    rf" validation is '{SUBDOMAIN}')"
)
LABEL_SAID: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must"
    " start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for"
    f" validation is '{LABEL}')"
)
VALUE_SAID: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or"
    f" '12345', regex used for validation is '{LABEL_VALUE}')"
)
KEY_SAID: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    f" validation is '{NAME_PART}')"
)
KINDS_NAMED_BY_LABEL: Final = ("Service", "Namespace")


def _invalid(field: str, value: str, why: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value}": {why}', field)


def breaches(kind: str, metadata: Json) -> Iterator[Cause]:
    """What is wrong with an object's name, labels and annotations."""
    name = metadata.get("name", "")
    if not name:
        said = "Required value: name or generateName is required"
        yield Cause("FieldValueRequired", said, "metadata.name")
        return
    by_label = kind in KINDS_NAMED_BY_LABEL
    form, said = (LABEL, LABEL_SAID) if by_label else (SUBDOMAIN, SUBDOMAIN_SAID)
    if not re.fullmatch(form, name):
        yield _invalid("metadata.name", name, said)
    most = 63 if by_label else 253
    if len(name) > most:
        yield _invalid("metadata.name", name, f"must be no more than {most} bytes")
    yield from _labels(metadata.get("labels") or {})
    for key in metadata.get("annotations") or {}:
        yield from _key("metadata.annotations", key.lower())


def _labels(labels: dict[str, str]) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _key("metadata.labels", key)
        if not re.fullmatch(LABEL_VALUE, value):
            yield _invalid("metadata.labels", value, VALUE_SAID)
        if len(value) > 63:
            yield _invalid("metadata.labels", value, "must be no more than 63 bytes")


def _key(field: str, key: str) -> Iterator[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and not re.fullmatch(SUBDOMAIN, prefix):
        yield _invalid(field, key, f"prefix part {SUBDOMAIN_SAID}")
    if not re.fullmatch(NAME_PART, name):
        yield _invalid(field, key, KEY_SAID)
    if len(name) > 63:
        yield _invalid(field, key, "name part must be no more than 63 bytes")


def stamp(now: datetime | None = None) -> str:
    """A time as metav1.Time writes it: UTC, whole seconds."""
    return (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
