# What the proxy says in `metadata_context`: the endpoint that served, and those that may be picked.
# Strings, numbers and lists of them are read here; deeper values are left to generated code.

cdef enum:  # of google.protobuf.Value
    _NULL = 1
    _NUMBER = 2
    _STRING = 3
    _BOOL = 4
    _LIST = 6

cdef bytes _BALANCER = b"envoy.lb"
cdef bytes _SERVED = b"x-gateway-destination-endpoint-served"
cdef bytes _HINT = b"envoy.lb.subset_hint"
cdef bytes _SUBSET = b"x-gateway-destination-endpoint-subset"


cdef dict _context(Span span):
    """Return `served` and `subset` if they are given; None if they cannot be read here."""
    cdef Field field
    cdef Span key, value
    cdef dict told = {}
    cdef list texts
    while span.at < span.end:
        if not _field(&span, &field) or field.number != 1 or not _entry(&field, &key, &value):
            return None
        texts = []
        if _is(key, _BALANCER):
            if not _struct(value, _SERVED, texts) or "served" in told:
                return None
            if texts:
                told["served"] = next(iter(_parts(texts)), None)
        elif not _struct(value, _SUBSET, texts):
            return None
        elif _is(key, _HINT):
            if "subset" in told:
                return None
            if texts:
                told["subset"] = tuple(_parts(texts))
    return told


cdef list _parts(list texts):
    """Take texts apart at their commas. The first stands for the key itself."""
    return [part for text in texts[1:] for part in map(str.strip, text.split(",")) if part]


cdef bint _is(Span span, bytes name) noexcept:
    cdef Py_ssize_t size = span.end - span.at
    return size == PyBytes_GET_SIZE(name) and not memcmp(PyBytes_AS_STRING(name), span.at, size)


cdef bint _entry(Field* field, Span* key, Span* value):
    """Read an entry of a map; return whether it could be, its key being text."""
    cdef Field part
    cdef Span span = field.inside
    key.at = key.end = value.at = value.end = NULL
    if field.kind != _LENGTH:
        return False
    while span.at < span.end:
        if not _field(&span, &part) or part.kind != _LENGTH or part.number > 2:
            return False
        if part.number == 1 and key.at == NULL:
            key[0] = part.inside
        elif part.number == 2 and value.at == NULL:
            value[0] = part.inside
        else:
            return False
    return key.at != NULL and _text(key[0]) is not None


cdef bint _struct(Span span, bytes name, list texts):
    """Read a `Struct`; put the texts of what has that name into `texts`, behind an empty one."""
    cdef Field field
    cdef Span key, value
    cdef bint sought
    while span.at < span.end:
        if not _field(&span, &field) or field.number != 1 or not _entry(&field, &key, &value):
            return False
        sought = _is(key, name)
        if sought and texts:
            return False
        if sought:
            texts.append("")
        if not _value(value, texts if sought else [], False):
            return False
    return True


cdef bint _value(Span span, list texts, bint listed):
    """Read a `Value`, which holds one thing; add it to `texts` if it is text."""
    cdef Field field
    if span.at == span.end:
        return True
    if not _field(&span, &field) or span.at != span.end:
        return False
    if field.number == _STRING and field.kind == _LENGTH:
        text = _text(field.inside)
        texts.append(text)
        return text is not None
    if field.number == _LIST and field.kind == _LENGTH and not listed:
        span = field.inside
        while span.at < span.end:
            if not _field(&span, &field) or field.number != 1 or field.kind != _LENGTH:
                return False
            if not _value(field.inside, texts, True):
                return False
        return True
    if field.number == _NUMBER:
        return field.kind == _EIGHT_BYTES
    return field.number in (_NULL, _BOOL) and field.kind == _VARINT
