// The rotation of channel pairs, compiled: (a, b) -> (a cos - b sin, b cos + a sin).
//
// A plain C interface for ctypes, without any header of PyTorch. Rows are [batch][heads][tokens][width], with strides
// (in elements) for the first three and a contiguous last dimension; cos and sin are [batch][heads][tokens][pairs],
// with stride 0 where they are shared. In place where out is x. The readable twin is rotate_pairs.py; it defines what
// is right, and both use the same precision: float32 and float64 are turned in float64, half precision in float32, and
// the result is rounded once.
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

// Raised whenever the interface below changes, so that an old library is never called by new code.
enum { INTERFACE = 1 };

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, TYPES };

// Which two channels form pair i: i and i + pairs, or 2 i and 2 i + 1.
enum { HALF, INTERLEAVED, LAYOUTS };

typedef struct {
  int64_t batch, heads, tokens, width, pairs;
  int64_t x[3], out[3], table[3];  // strides of batch, heads, tokens (elements)
  int64_t type, layout, inverse, set;
} rotation;

// So many rows, `x`, `out` and `table` elements apart.
typedef struct {
  int64_t rows, x, out, table, pairs, width;
} stretch;

typedef void turn_rows(const stretch *s, const void *x, void *out, const void *cos, const void *sin);

// ---- numbers

INLINE float from_bfloat16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

// To the nearest, ties to even; NaN stays NaN.
INLINE uint16_t to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

INLINE float from_float16(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff, wide;
  float value;
  if (magnitude >= 0x7c00) {  // infinity, NaN
    wide = sign | 0x7f800000 | (magnitude << 13);
  } else if (magnitude >= 0x0400) {
    wide = sign | ((magnitude << 13) + 0x38000000);
  } else {  // below the normal numbers: whole multiples of 2^-24
    value = (float)magnitude * 0x1p-24f;
    memcpy(&wide, &value, 4);
    wide |= sign;
  }
  memcpy(&value, &wide, 4);
  return value;
}

INLINE uint16_t to_float16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (uint16_t)((magnitude >> 13) & 0x3ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000) {  // the sum's own rounding is the one that is wanted
    float sum;
    memcpy(&sum, &magnitude, 4);
    sum += 0.5f;
    memcpy(&magnitude, &sum, 4);
    return sign | (uint16_t)(magnitude - 0x3f000000);
  }
  return sign | (uint16_t)((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13);
}

#define SAME(value) (value)
#define TO_FLOAT(value) ((float)(value))
#define NEAREST_FLOAT16(value) _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)

// ---- vectors of eight pairs or so: each does as many pairs of a row as fill whole vectors, and says how many
//
// The interleaved ones take the sign of the sine: -1 turns back.

#define NOTHING_AT_ONCE(...) 0

#ifdef X86
#define AVX2_TARGET __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE AVX2_TARGET INLINE

AVX2_INLINE void turn_four_avx2(__m128 *a, __m128 *b, const double *cos, const double *sin) {
  __m256d first = _mm256_cvtps_pd(*a), second = _mm256_cvtps_pd(*b), c = _mm256_loadu_pd(cos), s = _mm256_loadu_pd(sin);
  *a = _mm256_cvtpd_ps(_mm256_fnmadd_pd(second, s, _mm256_mul_pd(first, c)));
  *b = _mm256_cvtpd_ps(_mm256_fmadd_pd(first, s, _mm256_mul_pd(second, c)));
}

AVX2_INLINE int64_t half_float32_avx2(const float *first, const float *second, float *first_out, float *second_out,
                                      const double *cos, const double *sin, int64_t pairs) {
  int64_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    __m128 a = _mm_loadu_ps(first + i), b = _mm_loadu_ps(second + i);
    turn_four_avx2(&a, &b, cos + i, sin + i);
    _mm_storeu_ps(first_out + i, a);
    _mm_storeu_ps(second_out + i, b);
  }
  return i;
}

AVX2_INLINE int64_t interleaved_float32_avx2(const float *x, float *out, const double *cos, const double *sin,
                                             int64_t pairs, int inverse) {
  int64_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    __m128 low = _mm_loadu_ps(x + 2 * i), high = _mm_loadu_ps(x + 2 * i + 4);
    __m128 a = _mm_shuffle_ps(low, high, 0x88), b = _mm_shuffle_ps(low, high, 0xdd);
    if (inverse) turn_four_avx2(&b, &a, cos + i, sin + i);
    else turn_four_avx2(&a, &b, cos + i, sin + i);
    _mm_storeu_ps(out + 2 * i, _mm_unpacklo_ps(a, b));
    _mm_storeu_ps(out + 2 * i + 4, _mm_unpackhi_ps(a, b));
  }
  return i;
}

// The upper 16 bits of each number are its nearest bfloat16, ties to even; NaN stays NaN.
AVX2_INLINE __m256i round_to_bfloat16(__m256 value) {
  __m256i bits = _mm256_castps_si256(value);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_or_si256(rounded, _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
}

// Eight numbers in the order in which unpacking leaves them: from 0 and from 8.
AVX2_INLINE __m256 load_apart(const float *from) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + 8), 1);
}

AVX2_INLINE int64_t half_bfloat16_avx2(const uint16_t *first, const uint16_t *second, uint16_t *first_out,
                                       uint16_t *second_out, const float *cos, const float *sin, int64_t pairs) {
  const __m256i zero = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 16 <= pairs; i += 16) {
    __m256i a16 = _mm256_loadu_si256((const __m256i *)(first + i));
    __m256i b16 = _mm256_loadu_si256((const __m256i *)(second + i));
    __m256 a = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a16)), c = load_apart(cos + i);
    __m256 b = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b16)), s = load_apart(sin + i);
    __m256i low_a = round_to_bfloat16(_mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c)));
    __m256i low_b = round_to_bfloat16(_mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    a = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a16)), c = load_apart(cos + i + 4);
    b = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b16)), s = load_apart(sin + i + 4);
    __m256i high_a = round_to_bfloat16(_mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c)));
    __m256i high_b = round_to_bfloat16(_mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    _mm256_storeu_si256((__m256i *)(first_out + i),
                        _mm256_packus_epi32(_mm256_srli_epi32(low_a, 16), _mm256_srli_epi32(high_a, 16)));
    _mm256_storeu_si256((__m256i *)(second_out + i),
                        _mm256_packus_epi32(_mm256_srli_epi32(low_b, 16), _mm256_srli_epi32(high_b, 16)));
  }
  return i;
}

AVX2_INLINE int64_t interleaved_bfloat16_avx2(const uint16_t *x, uint16_t *out, const float *cos, const float *sin,
                                              int64_t pairs, int inverse) {
  const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    // A pair is one 32-bit number: a is its lower half.
    __m256i both = _mm256_loadu_si256((const __m256i *)(x + 2 * i));
    __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)), c = _mm256_loadu_ps(cos + i);
    __m256 b = _mm256_castsi256_ps(_mm256_and_si256(both, upper)), s = _mm256_loadu_ps(sin + i);
    __m256 ac = _mm256_mul_ps(a, c), bc = _mm256_mul_ps(b, c);
    __m256i turned_a = round_to_bfloat16(inverse ? _mm256_fmadd_ps(b, s, ac) : _mm256_fnmadd_ps(b, s, ac));
    __m256i turned_b = round_to_bfloat16(inverse ? _mm256_fnmadd_ps(a, s, bc) : _mm256_fmadd_ps(a, s, bc));
    _mm256_storeu_si256((__m256i *)(out + 2 * i),
                        _mm256_or_si256(_mm256_srli_epi32(turned_a, 16), _mm256_and_si256(turned_b, upper)));
  }
  return i;
}

AVX2_INLINE __m256 load_float16(const uint16_t *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

AVX2_INLINE __m128i to_eight_float16(__m256 value) { return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

AVX2_INLINE int64_t half_float16_avx2(const uint16_t *first, const uint16_t *second, uint16_t *first_out,
                                      uint16_t *second_out, const float *cos, const float *sin, int64_t pairs) {
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    __m256 a = load_float16(first + i), b = load_float16(second + i);
    __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
    _mm_storeu_si128((__m128i *)(first_out + i), to_eight_float16(_mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c))));
    _mm_storeu_si128((__m128i *)(second_out + i), to_eight_float16(_mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c))));
  }
  return i;
}

AVX2_INLINE int64_t interleaved_float16_avx2(const uint16_t *x, uint16_t *out, const float *cos, const float *sin,
                                             int64_t pairs, int inverse) {
  const __m128i lower = _mm_set1_epi32(0xffff);
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    __m128i low = _mm_loadu_si128((const __m128i *)(x + 2 * i));
    __m128i high = _mm_loadu_si128((const __m128i *)(x + 2 * i + 8));
    __m256 a = _mm256_cvtph_ps(_mm_packus_epi32(_mm_and_si128(low, lower), _mm_and_si128(high, lower)));
    __m256 b = _mm256_cvtph_ps(_mm_packus_epi32(_mm_srli_epi32(low, 16), _mm_srli_epi32(high, 16)));
    __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
    __m256 ac = _mm256_mul_ps(a, c), bc = _mm256_mul_ps(b, c);
    __m128i turned_a = to_eight_float16(inverse ? _mm256_fmadd_ps(b, s, ac) : _mm256_fnmadd_ps(b, s, ac));
    __m128i turned_b = to_eight_float16(inverse ? _mm256_fnmadd_ps(a, s, bc) : _mm256_fmadd_ps(a, s, bc));
    _mm_storeu_si128((__m128i *)(out + 2 * i), _mm_unpacklo_epi16(turned_a, turned_b));
    _mm_storeu_si128((__m128i *)(out + 2 * i + 8), _mm_unpackhi_epi16(turned_a, turned_b));
  }
  return i;
}
#endif

// ---- rows
//
// In the half layout the inverse is the same rotation with the two channels of each pair exchanged.

#define ROWS(NAME, TARGET, CHANNEL, NUMBER, ...)                                                                  \
  TARGET static void NAME(const stretch *s, const void *from, void *to, const void *cosines, const void *sines) { \
    const CHANNEL *x = from;                                                                                      \
    CHANNEL *out = to;                                                                                            \
    const NUMBER *cos = cosines, *sin = sines;                                                                    \
    const int64_t pairs = s->pairs, passed = s->width - 2 * pairs;                                                \
    for (int64_t row = 0; row < s->rows; row++) {                                                                 \
      __VA_ARGS__                                                                                                 \
      if (passed && out != x) memcpy(out + 2 * pairs, x + 2 * pairs, passed * sizeof(CHANNEL));                   \
      x += s->x, out += s->out, cos += s->table, sin += s->table;                                                 \
    }                                                                                                             \
  }

#define HALF_ROWS(NAME, TARGET, CHANNEL, NUMBER, READ, WRITE, AT_ONCE, INVERSE)                     \
  ROWS(NAME, TARGET, CHANNEL, NUMBER, {                                                             \
    const CHANNEL *first = x + INVERSE * pairs, *second = x + (1 - INVERSE) * pairs;                \
    CHANNEL *first_out = out + INVERSE * pairs, *second_out = out + (1 - INVERSE) * pairs;          \
    int64_t done = AT_ONCE(first, second, first_out, second_out, cos, sin, pairs);                  \
    INDEPENDENT for (int64_t i = done; i < pairs; i++) {                                            \
      NUMBER a = READ(first[i]), b = READ(second[i]);                                               \
      first_out[i] = WRITE(a * cos[i] - b * sin[i]);                                                \
      second_out[i] = WRITE(b * cos[i] + a * sin[i]);                                               \
    }                                                                                               \
  })

#define INTERLEAVED_ROWS(NAME, TARGET, CHANNEL, NUMBER, READ, WRITE, AT_ONCE, INVERSE) \
  ROWS(NAME, TARGET, CHANNEL, NUMBER, {                                                \
    int64_t done = AT_ONCE(x, out, cos, sin, pairs, INVERSE);                          \
    INDEPENDENT for (int64_t i = done; i < pairs; i++) {                               \
      NUMBER a = READ(x[2 * i]), b = READ(x[2 * i + 1]);                               \
      NUMBER sine = INVERSE ? -sin[i] : sin[i];                                        \
      out[2 * i] = WRITE(a * cos[i] - b * sine);                                       \
      out[2 * i + 1] = WRITE(b * cos[i] + a * sine);                                   \
    }                                                                                  \
  })

#define ROWS_OF(SET, TARGET, TYPE, CHANNEL, NUMBER, READ, WRITE, HALF_AT_ONCE, INTERLEAVED_AT_ONCE)                    \
  HALF_ROWS(half_##TYPE##_rows_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE, HALF_AT_ONCE, 0)                           \
  HALF_ROWS(half_##TYPE##_back_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE, HALF_AT_ONCE, 1)                           \
  INTERLEAVED_ROWS(interleaved_##TYPE##_rows_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE, INTERLEAVED_AT_ONCE, 0)      \
  INTERLEAVED_ROWS(interleaved_##TYPE##_back_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE, INTERLEAVED_AT_ONCE, 1)

#define LISTED(SET, TYPE)                                       \
  {                                                             \
    {half_##TYPE##_rows_##SET, half_##TYPE##_back_##SET}, {     \
      interleaved_##TYPE##_rows_##SET, interleaved_##TYPE##_back_##SET \
    }                                                           \
  }

#define LIST(SET) {LISTED(SET, float32), LISTED(SET, float64), LISTED(SET, bfloat16), LISTED(SET, float16)}

ROWS_OF(plain, , float32, float, double, SAME, TO_FLOAT, NOTHING_AT_ONCE, NOTHING_AT_ONCE)
ROWS_OF(plain, , float64, double, double, SAME, SAME, NOTHING_AT_ONCE, NOTHING_AT_ONCE)
ROWS_OF(plain, , bfloat16, uint16_t, float, from_bfloat16, to_bfloat16, NOTHING_AT_ONCE, NOTHING_AT_ONCE)
ROWS_OF(plain, , float16, uint16_t, float, from_float16, to_float16, NOTHING_AT_ONCE, NOTHING_AT_ONCE)

#ifdef X86
ROWS_OF(avx2, AVX2_TARGET, float32, float, double, SAME, TO_FLOAT, half_float32_avx2, interleaved_float32_avx2)
ROWS_OF(avx2, AVX2_TARGET, float64, double, double, SAME, SAME, NOTHING_AT_ONCE, NOTHING_AT_ONCE)
ROWS_OF(avx2, AVX2_TARGET, bfloat16, uint16_t, float, from_bfloat16, to_bfloat16, half_bfloat16_avx2,
        interleaved_bfloat16_avx2)
ROWS_OF(avx2, AVX2_TARGET, float16, uint16_t, float, _cvtsh_ss, NEAREST_FLOAT16, half_float16_avx2,
        interleaved_float16_avx2)
#endif

enum { PLAIN, AVX2 };

static turn_rows *const turns[][TYPES][LAYOUTS][2] = {
    LIST(plain),
#ifdef X86
    LIST(avx2),
#endif
};

static int best_set(void) {
#ifdef X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return AVX2;
#endif
  return PLAIN;
}

// ---- the walk
//
// A block of table rows serves all heads before the next block is read, so that it stays in the second-level cache;
// within it each head is one long stretch of memory. Where the heads of a token lie together, a token is the stretch.
enum { BLOCK = 128, ENOUGH_FOR_THREADS = 32768 };

static void walk(const rotation *r, const void *x, void *out, const void *cos, const void *sin, int64_t threads) {
  turn_rows *turn = turns[r->set][r->type][r->layout][r->inverse];
  const int64_t channel = r->type == FLOAT64 ? 8 : r->type == FLOAT32 ? 4 : 2, number = r->type <= FLOAT64 ? 8 : 4;
  const int by_token = r->x[1] < r->x[2] || r->tokens == 1, axis = by_token ? 1 : 2;
  const int64_t blocks = by_token ? r->tokens : (r->tokens + BLOCK - 1) / BLOCK, parts = by_token ? 1 : r->heads;
  const int64_t stretches = r->batch * blocks * parts;
#define TURN_A_STRETCH(item)                                                                                     \
  {                                                                                                              \
    const int64_t h = item % parts, block = item / parts % blocks, b = item / parts / blocks;                    \
    const int64_t t = by_token ? block : block * BLOCK, left = r->tokens - t;                                    \
    const int64_t place = (b * r->table[0] + h * r->table[1] + t * r->table[2]) * number;                        \
    const stretch s = {by_token ? r->heads : left < BLOCK ? left : BLOCK, r->x[axis], r->out[axis],              \
                       r->table[axis], r->pairs, r->width};                                                      \
    turn(&s, (const char *)x + (b * r->x[0] + h * r->x[1] + t * r->x[2]) * channel,                              \
         (char *)out + (b * r->out[0] + h * r->out[1] + t * r->out[2]) * channel, (const char *)cos + place,     \
         (const char *)sin + place);                                                                             \
  }
  if (threads > 1 && stretches > 1 && r->batch * r->heads * r->tokens * r->width >= ENOUGH_FOR_THREADS) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t item = 0; item < stretches; item++) TURN_A_STRETCH(item)
  } else {
    // Not the same loop under an `if` clause: entering even a team of one takes as long as turning a token.
    for (int64_t item = 0; item < stretches; item++) TURN_A_STRETCH(item)
  }
}

// ---- the interface

EXPORT int64_t posenc_interface(void) { return INTERFACE; }

EXPORT int64_t posenc_has_threads(void) {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

EXPORT int64_t posenc_best_set(void) { return best_set(); }

EXPORT void posenc_rotate(const rotation *r, const void *x, void *out, const void *cos, const void *sin,
                          int64_t threads) {
  walk(r, x, out, cos, sin, threads);
}

// Queries and keys by one table: for a token decoded alone, a call costs more than its rotation.
EXPORT void posenc_rotate_both(const rotation *r, const void *x, void *out, const rotation *other, const void *y,
                               void *other_out, const void *cos, const void *sin, int64_t threads) {
  walk(r, x, out, cos, sin, threads);
  walk(other, y, other_out, cos, sin, threads);
}
