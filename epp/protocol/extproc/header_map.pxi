# Headers as a dictionary of text: the first of each name, in lower case.


cdef bint _header_map(dict found, Span span) except -1:
    cdef Field field
    while span.at < span.end:
        if not _field(&span, &field):
            return False
        if field.number == 1 and (field.kind != _LENGTH or not _header(found, field.inside)):
            return False
    return True


cdef class _Names:
    """Names of headers as they were read before, in lower case: few are used again and again."""

    cdef list _bytes
    cdef list _names

    def __init__(self):
        self._bytes = [b""] * _KEPT_NAMES
        self._names = [""] * _KEPT_NAMES

    cdef str name(self, Span span):
        """Give a name; None for one that is not ASCII."""
        cdef Py_ssize_t size = span.end - span.at
        cdef Py_ssize_t place
        cdef bytes known
        cdef str name
        if size == 0:
            return ""
        place = (size * 31 + span.at[0] * 7 + span.at[size >> 1] * 3 + span.at[size - 1]) % _KEPT_NAMES
        known = <bytes>self._bytes[place]
        if PyBytes_GET_SIZE(known) == size and not memcmp(PyBytes_AS_STRING(known), span.at, size):
            return <str>self._names[place]
        name = _text(span)
        if name is None or not PyUnicode_IS_ASCII(name):
            return None
        name = name.lower()
        if size <= _LONGEST_KEPT:
            self._bytes[place] = PyBytes_FromStringAndSize(<const char*>span.at, size)
            self._names[place] = name
        return name


cdef _Names _names = _Names()


cdef bint _header(dict found, Span span) except -1:
    """Put a header if none of its name is; return whether it could be read."""
    cdef Field field
    cdef Span[3] parts
    cdef str key
    cdef str plain
    cdef int number
    for number in range(3):
        parts[number].at = parts[number].end = NULL
    while span.at < span.end:
        if not _field(&span, &field):
            return False
        if field.number <= 3:
            if field.kind != _LENGTH or parts[field.number - 1].at != NULL:
                return False
            parts[field.number - 1] = field.inside
    key, plain = _names.name(parts[0]), _text(parts[1])
    if key is None or plain is None:
        return False
    if parts[2].at < parts[2].end:
        plain = PyUnicode_DecodeUTF8(<const char*>parts[2].at, parts[2].end - parts[2].at, "replace")
    found.setdefault(key, plain)
    return True
