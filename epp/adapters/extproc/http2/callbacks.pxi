"""How nghttp2 calls a session; a part of `session.pyx`."""


cdef nghttp2_session* _new_session(Session session) except NULL:
    cdef nghttp2_session* handle = NULL
    cdef nghttp2_session_callbacks* callbacks = NULL
    cdef nghttp2_option* option = NULL
    _checked(nghttp2_session_callbacks_new(&callbacks))
    try:
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, _on_begin_frame)
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, _on_begin_headers)
        nghttp2_session_callbacks_set_on_header_callback(callbacks, _on_header)
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, _on_data)
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, _on_frame)
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, _on_frame_sent)
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, _on_close)
        nghttp2_session_callbacks_set_send_data_callback(callbacks, _on_send)
        _checked(nghttp2_option_new(&option))
        nghttp2_option_set_no_auto_window_update(option, 1)
        nghttp2_option_set_no_closed_streams(option, 1)
        warmpick_allow_resets(option)
        _checked(nghttp2_session_server_new2(&handle, callbacks, <void*>session, option))
    finally:
        nghttp2_option_del(option)
        nghttp2_session_callbacks_del(callbacks)
    return handle


cdef int _checked(int result) except -1:
    if result == NGHTTP2_ERR_NOMEM:
        raise MemoryError
    if result < 0:
        raise ConnectionFailure(nghttp2_strerror(result).decode())
    return 0


# nghttp2's callbacks. An exception is kept, stops nghttp2, and is raised again in its caller.

cdef inline Stream _stream_of(nghttp2_session* handle, int32_t stream_id):
    cdef void* found = nghttp2_session_get_stream_user_data(handle, stream_id)
    return None if found == NULL else <Stream>found


cdef int _on_begin_frame(
    nghttp2_session* handle, const nghttp2_frame_hd* head, void* user
) noexcept:
    cdef Session session = <Session>user
    cdef uint8_t kind = head.type
    session._frames += 1
    if kind == NGHTTP2_DATA:
        if head.length == 0 and not head.flags & NGHTTP2_FLAG_END_STREAM:
            session.abuse_score += 1
    elif kind == NGHTTP2_SETTINGS and not head.flags & NGHTTP2_FLAG_ACK:
        return session._count_settings()
    elif kind != NGHTTP2_HEADERS and kind != NGHTTP2_RST_STREAM and kind != NGHTTP2_WINDOW_UPDATE:
        session.abuse_score += 1
    return 0


cdef int _on_begin_headers(
    nghttp2_session* handle, const nghttp2_frame* frame, void* user
) noexcept:
    cdef Session session = <Session>user
    try:
        if frame.hd.type == NGHTTP2_HEADERS and frame.headers.cat == NGHTTP2_HCAT_REQUEST:
            session._open(frame.hd.stream_id)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_header(
    nghttp2_session* handle, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
    const uint8_t* value, size_t value_size, uint8_t flags, void* user,
) noexcept:
    cdef Session session = <Session>user
    try:
        stream = _stream_of(handle, frame.hd.stream_id)
        if stream is None or session._header(stream, name, name_size, value, value_size):
            return NGHTTP2_ERR_PAUSE if session._work() >= _TURN else 0
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_data(
    nghttp2_session* handle, uint8_t flags, int32_t stream_id, const uint8_t* data, size_t size,
    void* user,
) noexcept:
    cdef Session session = <Session>user
    try:
        stream = _stream_of(handle, stream_id)
        if stream is not None:
            session._data(stream, data, size)
        return NGHTTP2_ERR_PAUSE if session._work() >= _TURN else 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_frame(nghttp2_session* handle, const nghttp2_frame* frame, void* user) noexcept:
    cdef Session session = <Session>user
    try:
        if frame.hd.type == NGHTTP2_PING and frame.hd.flags & NGHTTP2_FLAG_ACK:
            session.pongs += 1
        elif frame.hd.type == NGHTTP2_SETTINGS:
            session.settings_received = True
        stream = _stream_of(handle, frame.hd.stream_id)
        if stream is not None:
            session._frame(stream, frame)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef int _on_frame_sent(nghttp2_session* handle, const nghttp2_frame* frame, void* user) noexcept:
    """Reset a stream whose end was sent, so that a peer that keeps sending takes no memory."""
    if frame.hd.type == NGHTTP2_RST_STREAM and frame.rst_stream.error_code != NGHTTP2_NO_ERROR:
        (<Session>user).abuse_score += _PER_ERROR
    elif (
        frame.hd.type == NGHTTP2_HEADERS
        and frame.hd.flags & NGHTTP2_FLAG_END_STREAM
        and nghttp2_session_get_stream_remote_close(handle, frame.hd.stream_id) == 0
    ):
        nghttp2_submit_rst_stream(
            handle, NGHTTP2_FLAG_NONE, frame.hd.stream_id, NGHTTP2_NO_ERROR
        )
    return 0


cdef int _on_close(
    nghttp2_session* handle, int32_t stream_id, uint32_t code, void* user
) noexcept:
    cdef Session session = <Session>user
    try:
        stream = _stream_of(handle, stream_id)
        if stream is not None:
            session._close(stream, code)
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE


cdef ssize_t _on_read(
    nghttp2_session* handle, int32_t stream_id, uint8_t* buffer, size_t length,
    uint32_t* flags, nghttp2_data_source* source, void* user,
) noexcept:
    """Say how many bytes the next DATA frame has; `_on_send` writes them."""
    cdef Stream stream = <Stream>source.ptr
    cdef nghttp2_nv fields[2]
    cdef size_t size = min(length, stream.queued)
    if size == 0 and not stream.ending:
        stream._deferred = True
        return NGHTTP2_ERR_DEFERRED
    if size:
        flags[0] |= NGHTTP2_DATA_FLAG_NO_COPY
    if size == stream.queued and stream.ending:
        flags[0] |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM
        if nghttp2_submit_trailer(handle, stream_id, fields, stream._trailers(fields)) < 0:
            return NGHTTP2_ERR_CALLBACK_FAILURE
    return <ssize_t>size


cdef int _on_send(
    nghttp2_session* handle, nghttp2_frame* frame, const uint8_t* head, size_t length,
    nghttp2_data_source* source, void* user,
) noexcept:
    """Write a DATA frame; there is no padding, since nothing here asks for it."""
    cdef Session session = <Session>user
    cdef uint8_t* room
    if session._size >= session._most:
        session.full = True
        return NGHTTP2_ERR_WOULDBLOCK
    try:
        room = session._room(9 + length)
        memcpy(room, head, 9)
        (<Stream>source.ptr)._pop(room + 9, length)
        session._size += 9 + length
        return 0
    except BaseException as error:
        session._failure = error
        return NGHTTP2_ERR_CALLBACK_FAILURE
