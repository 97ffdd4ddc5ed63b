/* nghttp2, with what only its newer or patched versions have as weak symbols. */
#ifndef WARMPICK_NGHTTP2_COMPAT_H
#define WARMPICK_NGHTTP2_COMPAT_H

#include <nghttp2/nghttp2.h>

#if NGHTTP2_VERSION_NUM < 0x012900
#error "nghttp2 1.41 or newer is needed"
#endif

extern void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option *option, uint64_t burst,
                                                       uint64_t rate) __attribute__((weak));

/* Take the limit off where this nghttp2 has one: Envoy resets every stream that is done. */
static inline void warmpick_allow_resets(nghttp2_option *option) {
  if (nghttp2_option_set_stream_reset_rate_limit) {
    nghttp2_option_set_stream_reset_rate_limit(option, UINT64_MAX >> 1, UINT64_MAX >> 1);
  }
}

#endif
