"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386) on one object."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

from tests.kubeapi.status import bad_request, unprocessable

Json = dict[str, Any]


def merge(value: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, part in patch.items():
        if part is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), part)
    return merged


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(step: str, last: int) -> int:
    if not step.isdigit() or int(step) > last:
        raise unprocessable()
    return int(step)


def _child(holder: Any, step: str) -> Any:
    if isinstance(holder, list):
        return holder[_index(step, len(holder) - 1)]
    if not isinstance(holder, dict) or step not in holder:
        raise unprocessable()
    return holder[step]


def _find(root: Any, pointer: str) -> Any:
    for step in _steps(pointer):
        root = _child(root, step)
    return root


def _holder(root: Any, pointer: str) -> tuple[Any, str]:
    *way, last = _steps(pointer)
    for step in way:
        root = _child(root, step)
    return root, last


def _add(root: Any, pointer: str, value: Any) -> None:
    holder, last = _holder(root, pointer)
    if isinstance(holder, list):
        end = len(holder)
        holder.insert(end if last == "-" else _index(last, end), value)
    elif isinstance(holder, dict):
        holder[last] = value
    else:
        raise unprocessable()


def _remove(root: Any, pointer: str) -> Any:
    holder, last = _holder(root, pointer)
    _child(holder, last)
    return holder.pop(int(last) if isinstance(holder, list) else last)


def _replace(root: Any, operation: Json) -> None:
    _remove(root, operation["path"])
    _add(root, operation["path"], operation["value"])


def _test(root: Any, operation: Json) -> None:
    if _find(root, operation["path"]) != operation["value"]:
        raise unprocessable()


OPERATIONS: Final[dict[str, Callable[[Any, Json], None]]] = {
    "add": lambda root, said: _add(root, said["path"], said["value"]),
    "remove": lambda root, said: _remove(root, said["path"]) and None,
    "replace": _replace,
    "move": lambda root, said: _add(root, said["path"], _remove(root, said["from"])),
    "copy": lambda root, said: _add(root, said["path"], deepcopy(_find(root, said["from"]))),
    "test": _test,
}


def json_patch(value: Json, operations: Any) -> Json:
    """RFC 6902. Errors: ApiError 400 for what is no patch, 422 for one that does not fit."""
    if not isinstance(operations, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into a jsonpatch.Patch"
        )
    root = deepcopy(value)
    for said in operations:
        operation = OPERATIONS.get(said.get("op", ""))
        if operation is None or not str(said.get("path", "")).startswith("/"):
            raise unprocessable()
        try:
            operation(root, deepcopy(said))
        except KeyError:
            raise unprocessable() from None
    return root
