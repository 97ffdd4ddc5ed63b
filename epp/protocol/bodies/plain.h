/* What bytes of JSON are, and how far a string goes before something in it wants a look. */

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef uint8_t warmpick_block __attribute__((vector_size(16)));

static inline int warmpick_is_plain(uint8_t byte) {
    return byte >= 0x20 && byte != '"' && byte != '\\';
}

static const uint8_t warmpick_simple_escapes[256] = {
    ['"'] = 1, ['\\'] = 1, ['/'] = 1, ['b'] = 1, ['f'] = 1, ['n'] = 1, ['r'] = 1, ['t'] = 1,
};

static inline int warmpick_is_simple_escape(uint8_t byte) {
    return warmpick_simple_escapes[byte];
}

/* Return a bit for each byte of a block, the lowest for the first, of bytes that are 0xff or 0. */
static inline uint32_t warmpick_bits(warmpick_block block) {
#ifdef __SSE2__
    return (uint32_t)_mm_movemask_epi8((__m128i)block);
#else
    uint64_t halves[2];
    uint32_t bits = 0;
    memcpy(halves, &block, sizeof halves);
    for (int half = 1; half >= 0; half--) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        halves[half] = __builtin_bswap64(halves[half]);
#endif
        /* Byte i is moved to bit 56 + i. */
        halves[half] = (halves[half] & 0x0101010101010101) * 0x0102040810204080;
        bits = bits << 8 | (uint32_t)(halves[half] >> 56);
    }
    return bits;
#endif
}

/* Return which of 16 bytes are a quote, a backslash or a control character. */
static inline uint32_t warmpick_marks(const uint8_t *data) {
    warmpick_block block;
    memcpy(&block, data, sizeof block);
    /* A quote is 0x20 after the exclusive or, control characters are less, all else is more. */
    return warmpick_bits((warmpick_block)((block ^ 2) <= 0x20) | (warmpick_block)(block == '\\'));
}

/* Return whether two bytes are a simple escape, if there may be any. */
static inline int warmpick_escaped(const uint8_t *data, size_t size, int escapes) {
    return escapes && size > 1 && data[0] == '\\' && warmpick_is_simple_escape(data[1]);
}

/* Return how many of `size` bytes of a string are plain; simple escapes are if they may be. */
static inline size_t warmpick_plain(const uint8_t *data, size_t size, int escapes) {
    size_t at = 0;
    while (size - at >= 32) {
        uint32_t marks = warmpick_marks(data + at) | warmpick_marks(data + at + 16) << 16;
        size_t next = at + 32;
        while (marks) {
            size_t mark = at + (size_t)__builtin_ctz(marks);
            if (!warmpick_escaped(data + mark, size - mark, escapes))
                return mark;
            next += mark + 1 == next; /* the escape's letter stands behind the 32 */
            marks &= ~(3u << (mark - at));
        }
        at = next;
    }
    while (at < size) {
        if (warmpick_is_plain(data[at]))
            at++;
        else if (warmpick_escaped(data + at, size - at, escapes))
            at += 2;
        else
            break;
    }
    return at;
}

static inline int warmpick_is_space(uint8_t byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static inline int warmpick_is_digit(uint8_t byte) {
    return byte >= '0' && byte <= '9';
}

/* Return what a hexadecimal digit stands for, or -1. */
static inline int warmpick_hex(uint8_t byte) {
    if (warmpick_is_digit(byte))
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}
