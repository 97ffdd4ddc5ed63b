/* What bytes of JSON are, and how far a string goes before something in it wants a look. */

#include <stdint.h>
#include <string.h>

typedef uint8_t warmpick_block __attribute__((vector_size(16)));

static inline int warmpick_is_plain(uint8_t byte) {
    return byte >= 0x20 && byte != '"' && byte != '\\';
}

/* Return where the first byte is that was found: 0xff among zeros. */
static inline size_t warmpick_first(const uint64_t found[2]) {
    uint64_t half = found[0] ? found[0] : found[1];
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    size_t at = (size_t)__builtin_ctzll(half) >> 3;
#else
    size_t at = (size_t)__builtin_clzll(half) >> 3;
#endif
    return found[0] ? at : at + sizeof half;
}

/* Return how many of `size` bytes are neither a quote, a backslash nor a control character. */
static inline size_t warmpick_plain(const uint8_t *data, size_t size) {
    size_t at = 0;
    while (size - at >= sizeof(warmpick_block)) {
        warmpick_block block;
        uint64_t found[2];
        memcpy(&block, data + at, sizeof block);
        block = (warmpick_block)((block < 0x20) | (block == '"') | (block == '\\'));
        memcpy(found, &block, sizeof found);
        if (found[0] | found[1])
            return at + warmpick_first(found);
        at += sizeof(warmpick_block);
    }
    while (at < size && warmpick_is_plain(data[at]))
        at++;
    return at;
}

static inline int warmpick_is_simple_escape(uint8_t byte) {
    switch (byte) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return 1;
    default:
        return 0;
    }
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
