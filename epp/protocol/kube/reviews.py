"""TokenReview and SubjectAccessReview: the user of a token, and the user's right to read a path."""

from typing import Any

import msgspec

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 (a path)
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RULES = (
    '{apiGroups: ["authentication.k8s.io"], resources: [tokenreviews], verbs: [create]}',
    '{apiGroups: ["authorization.k8s.io"], resources: [subjectaccessreviews], verbs: [create]}',
)
"""Rules that a ClusterRole needs to create both reviews."""


class User(msgspec.Struct, frozen=True):
    """The user of a token (`authentication.k8s.io/v1` UserInfo)."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: User = User()
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    """The answer to either review."""

    status: _Status = _Status()


def token_review(token: str) -> dict[str, Any]:
    """Return a TokenReview of a token."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    }


def user_of(answer: bytes) -> User | None:
    """Return the user of a reviewed token; None if the token is not valid.

    Raises `watch.UNREADABLE` for a body that is not a TokenReview.
    """
    status = msgspec.json.decode(answer, type=_Review).status
    return status.user if status.authenticated else None


def access_review(user: User, path: str) -> dict[str, Any]:
    """Return a SubjectAccessReview of `get` on `path`, which is not a resource."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        },
    }


def allowed(answer: bytes) -> bool:
    """Return whether the review allows it.

    Raises `watch.UNREADABLE` for a body that is not a SubjectAccessReview.
    """
    return msgspec.json.decode(answer, type=_Review).status.allowed
