"""The part of nghttp2's C interface that `session.pyx` uses."""

from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef extern from "nghttp2_compat.h":
    ctypedef struct nghttp2_session:
        pass
    ctypedef struct nghttp2_session_callbacks:
        pass
    ctypedef struct nghttp2_option:
        pass

    ctypedef struct nghttp2_frame_hd:
        size_t length
        int32_t stream_id
        uint8_t type
        uint8_t flags

    ctypedef enum nghttp2_headers_category:
        NGHTTP2_HCAT_REQUEST

    ctypedef struct nghttp2_headers:
        nghttp2_headers_category cat

    ctypedef struct nghttp2_rst_stream:
        uint32_t error_code

    ctypedef union nghttp2_frame:
        nghttp2_frame_hd hd
        nghttp2_rst_stream rst_stream
        nghttp2_headers headers

    ctypedef struct nghttp2_settings_entry:
        int32_t settings_id
        uint32_t value

    ctypedef struct nghttp2_nv:
        uint8_t* name
        uint8_t* value
        size_t namelen
        size_t valuelen
        uint8_t flags

    ctypedef union nghttp2_data_source:
        int fd
        void* ptr

    ctypedef ssize_t (*nghttp2_data_source_read_callback)(
        nghttp2_session*, int32_t, uint8_t*, size_t, uint32_t*, nghttp2_data_source*, void*
    ) noexcept

    ctypedef struct nghttp2_data_provider:
        nghttp2_data_source source
        nghttp2_data_source_read_callback read_callback

    const uint8_t NGHTTP2_DATA, NGHTTP2_HEADERS, NGHTTP2_PRIORITY, NGHTTP2_RST_STREAM
    const uint8_t NGHTTP2_SETTINGS, NGHTTP2_PUSH_PROMISE, NGHTTP2_PING, NGHTTP2_GOAWAY
    const uint8_t NGHTTP2_WINDOW_UPDATE, NGHTTP2_CONTINUATION
    const uint8_t NGHTTP2_FLAG_NONE, NGHTTP2_FLAG_END_STREAM, NGHTTP2_FLAG_ACK
    const uint32_t NGHTTP2_DATA_FLAG_EOF, NGHTTP2_DATA_FLAG_NO_END_STREAM
    const uint32_t NGHTTP2_DATA_FLAG_NO_COPY
    const int NGHTTP2_NV_FLAG_NO_COPY_NAME, NGHTTP2_NV_FLAG_NO_COPY_VALUE
    const int NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE
    const int NGHTTP2_SETTINGS_MAX_FRAME_SIZE, NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE
    const int NGHTTP2_ERR_CALLBACK_FAILURE, NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE
    const int NGHTTP2_ERR_DEFERRED, NGHTTP2_ERR_PAUSE, NGHTTP2_ERR_WOULDBLOCK, NGHTTP2_ERR_NOMEM
    const uint32_t NGHTTP2_NO_ERROR, NGHTTP2_INTERNAL_ERROR, NGHTTP2_ENHANCE_YOUR_CALM

    ctypedef int (*nghttp2_on_begin_frame_callback)(
        nghttp2_session*, const nghttp2_frame_hd*, void*
    ) noexcept
    ctypedef int (*nghttp2_on_frame_callback)(
        nghttp2_session*, const nghttp2_frame*, void*
    ) noexcept
    ctypedef int (*nghttp2_on_header_callback)(
        nghttp2_session*, const nghttp2_frame*, const uint8_t*, size_t, const uint8_t*, size_t,
        uint8_t, void*
    ) noexcept
    ctypedef int (*nghttp2_on_data_chunk_recv_callback)(
        nghttp2_session*, uint8_t, int32_t, const uint8_t*, size_t, void*
    ) noexcept
    ctypedef int (*nghttp2_on_stream_close_callback)(
        nghttp2_session*, int32_t, uint32_t, void*
    ) noexcept
    ctypedef int (*nghttp2_send_data_callback)(
        nghttp2_session*, nghttp2_frame*, const uint8_t*, size_t, nghttp2_data_source*, void*
    ) noexcept

    int nghttp2_session_callbacks_new(nghttp2_session_callbacks**)
    void nghttp2_session_callbacks_del(nghttp2_session_callbacks*)
    void nghttp2_session_callbacks_set_on_begin_frame_callback(
        nghttp2_session_callbacks*, nghttp2_on_begin_frame_callback)
    void nghttp2_session_callbacks_set_on_begin_headers_callback(
        nghttp2_session_callbacks*, nghttp2_on_frame_callback)
    void nghttp2_session_callbacks_set_on_header_callback(
        nghttp2_session_callbacks*, nghttp2_on_header_callback)
    void nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        nghttp2_session_callbacks*, nghttp2_on_data_chunk_recv_callback)
    void nghttp2_session_callbacks_set_on_frame_recv_callback(
        nghttp2_session_callbacks*, nghttp2_on_frame_callback)
    void nghttp2_session_callbacks_set_on_frame_send_callback(
        nghttp2_session_callbacks*, nghttp2_on_frame_callback)
    void nghttp2_session_callbacks_set_on_stream_close_callback(
        nghttp2_session_callbacks*, nghttp2_on_stream_close_callback)
    void nghttp2_session_callbacks_set_send_data_callback(
        nghttp2_session_callbacks*, nghttp2_send_data_callback)

    int nghttp2_option_new(nghttp2_option**)
    void nghttp2_option_del(nghttp2_option*)
    void nghttp2_option_set_no_auto_window_update(nghttp2_option*, int)
    void nghttp2_option_set_no_closed_streams(nghttp2_option*, int)
    void warmpick_allow_resets(nghttp2_option*)

    int nghttp2_session_server_new2(
        nghttp2_session**, nghttp2_session_callbacks*, void*, nghttp2_option*)
    void nghttp2_session_del(nghttp2_session*)
    ssize_t nghttp2_session_mem_recv(nghttp2_session*, const uint8_t*, size_t)
    ssize_t nghttp2_session_mem_send(nghttp2_session*, const uint8_t**)
    int nghttp2_session_want_read(nghttp2_session*)
    int nghttp2_session_want_write(nghttp2_session*)
    int nghttp2_session_set_stream_user_data(nghttp2_session*, int32_t, void*)
    void* nghttp2_session_get_stream_user_data(nghttp2_session*, int32_t)
    int nghttp2_session_get_stream_remote_close(nghttp2_session*, int32_t)
    int nghttp2_session_set_local_window_size(nghttp2_session*, uint8_t, int32_t, int32_t)
    int nghttp2_session_consume_connection(nghttp2_session*, size_t)
    int nghttp2_session_consume_stream(nghttp2_session*, int32_t, size_t)
    int nghttp2_session_resume_data(nghttp2_session*, int32_t)
    int nghttp2_session_terminate_session(nghttp2_session*, uint32_t)
    int32_t nghttp2_session_get_last_proc_stream_id(nghttp2_session*)
    int nghttp2_submit_settings(
        nghttp2_session*, uint8_t, const nghttp2_settings_entry*, size_t)
    int nghttp2_submit_response(
        nghttp2_session*, int32_t, const nghttp2_nv*, size_t, const nghttp2_data_provider*)
    int nghttp2_submit_trailer(nghttp2_session*, int32_t, const nghttp2_nv*, size_t)
    int nghttp2_submit_rst_stream(nghttp2_session*, uint8_t, int32_t, uint32_t)
    int nghttp2_submit_ping(nghttp2_session*, uint8_t, const uint8_t*)
    int nghttp2_submit_shutdown_notice(nghttp2_session*)
    int nghttp2_submit_goaway(
        nghttp2_session*, uint8_t, int32_t, uint32_t, const uint8_t*, size_t)
    const char* nghttp2_strerror(int)
