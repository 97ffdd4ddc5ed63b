"""Detects the form of `content` that a chat template expects, from the template itself.

Mirrors the result of vLLM 0.32 `vllm/renderers/hf.py` `_detect_content_format`: a template that
loops over a message's content expects a list of parts, any other a string.
"""

from collections.abc import Iterator

from jinja2 import nodes

from epp.adapters.tokens.local.chat_messages import ContentFormat

_CONTENT = "content"


def content_format(tree: nodes.Template) -> ContentFormat:
    """Return the content format of a parsed template."""
    messages = set(_messages(tree))
    if any(_loops_over_content(tree, messages)):
        return ContentFormat.PARTS
    return ContentFormat.STRING


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Return the operand of filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test | nodes.Getitem):
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
            break
        node = node.node
    return node


def _name(node: nodes.Node | None) -> str | None:
    bare = _bare(node)
    return bare.name if isinstance(bare, nodes.Name) and bare.ctx == "load" else None


def _messages(tree: nodes.Template) -> Iterator[str]:
    """Yield the variables that hold one message: targets of loops over `messages` or an alias."""
    lists, before = {"messages"}, 0
    while len(lists) > before:
        before = len(lists)
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and _name(assign.node) in lists:
                lists.add(assign.target.name)
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and _name(loop.iter) in lists:
            yield loop.target.name


def _is_content(node: nodes.Node | None, messages: set[str]) -> bool:
    """Whether this is `message.content` or `message['content']`."""
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr):
        return bare.attr == _CONTENT and _name(bare.node) in messages
    if isinstance(bare, nodes.Getitem) and isinstance(bare.arg, nodes.Const):
        return bare.arg.value == _CONTENT and _name(bare.node) in messages
    return False


def _loops_over_content(tree: nodes.Template, messages: set[str]) -> Iterator[bool]:
    macros = list(tree.find_all(nodes.Macro))
    inside = {id(loop) for macro in macros for loop in macro.find_all(nodes.For)}
    for macro in macros:
        passed = set(_parameters_with_content(tree, macro, messages))
        for loop in macro.find_all(nodes.For):
            yield isinstance(loop.iter, nodes.Name) and loop.iter.name in passed
    for loop in tree.find_all(nodes.For):
        plain = isinstance(loop.iter, nodes.Name) and loop.iter.name == _CONTENT
        yield _is_content(loop.iter, messages) or (plain and id(loop) not in inside)


def _parameters_with_content(
    tree: nodes.Template, macro: nodes.Macro, messages: set[str]
) -> Iterator[str]:
    """Yield the parameters of a macro to which some call passes a message's content."""
    names = [argument.name for argument in macro.args]
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        for name, argument in zip(names, call.args, strict=False):
            if _is_content(argument, messages):
                yield name
        for keyword in call.kwargs:
            if keyword.key in names and _is_content(keyword.value, messages):
                yield keyword.key
