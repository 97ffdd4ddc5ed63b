"""Two questions to the API server: whose a token is, and whether that user may read a path."""

from typing import Any

import msgspec

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 (a path)
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RULES = (
    '{apiGroups: ["authentication.k8s.io"], resources: [tokenreviews], verbs: [create]}',
    '{apiGroups: ["authorization.k8s.io"], resources: [subjectaccessreviews], verbs: [create]}',
)
"""What a ClusterRole must hold to ask."""


class User(msgspec.Struct, frozen=True):
    """Whose a token is."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: User = User()


class _TokenAnswer(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessAnswer(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


def token_review(token: str) -> dict[str, Any]:
    """Ask whose a token is."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    }


def user_of(answer: bytes) -> User | None:
    """Read whose it is; None: nobody's. Raises `MsgspecError` for what is no answer."""
    status = msgspec.json.decode(answer, type=_TokenAnswer).status
    return status.user if status.authenticated else None


def access_review(user: User, path: str) -> dict[str, Any]:
    """Ask whether a user may `get` a path that is no resource."""
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
    """Read whether it may. Raises `MsgspecError` for what is no answer."""
    return msgspec.json.decode(answer, type=_AccessAnswer).status.allowed
