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
enum { INTERFACE = 2 };

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, TYPES };

// Which two channels form pair i: i and i + pairs, or 2 i and 2 i + 1.
enum { HALF, INTERLEAVED, LAYOUTS };

typedef struct {
  int64_t batch, heads, tokens, width, pairs;
  int64_t x[3], out[3], table[3];  // strides of batch, heads, tokens (elements)
  int64_t type, layout, inverse, set;
} rotation;

// Queries and keys by one table, whose sines lie `to_sin` bytes behind its cosines; the addresses of one call.
typedef struct {
  rotation q, k;
  int64_t to_sin;
} rotation_of_both;

typedef struct {
  const void *q;
  void *q_out;
  const void *k;
  void *k_out;
  const char *cos;
  int64_t threads;
} both;

// So many rows, `x`, `out` and `table` elements apart, of so many heads, `x_head` and `out_head` elements apart.
typedef struct {
  int64_t rows, x, out, table, heads, x_head, out_head, pairs, width;
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

// ---- chunks: as many pairs of one head as fill a vector, turned by cosines and sines that are loaded already

#ifdef X86
#define AVX2_TARGET __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE AVX2_TARGET INLINE

AVX2_INLINE __m256d load_numbers_avx2(const double *from) { return _mm256_loadu_pd(from); }

AVX2_INLINE void turn_four(__m128 *a, __m128 *b, __m256d c, __m256d s) {
  __m256d first = _mm256_cvtps_pd(*a), second = _mm256_cvtps_pd(*b);
  *a = _mm256_cvtpd_ps(_mm256_fnmadd_pd(second, s, _mm256_mul_pd(first, c)));
  *b = _mm256_cvtpd_ps(_mm256_fmadd_pd(first, s, _mm256_mul_pd(second, c)));
}

AVX2_INLINE void half_float32_avx2(const float *first, const float *second, float *first_out, float *second_out,
                                   __m256d c, __m256d s) {
  __m128 a = _mm_loadu_ps(first), b = _mm_loadu_ps(second);
  turn_four(&a, &b, c, s);
  _mm_storeu_ps(first_out, a);
  _mm_storeu_ps(second_out, b);
}

AVX2_INLINE void interleaved_float32_avx2(const float *x, float *out, __m256d c, __m256d s, int inverse) {
  __m128 low = _mm_loadu_ps(x), high = _mm_loadu_ps(x + 4);
  __m128 a = _mm_shuffle_ps(low, high, 0x88), b = _mm_shuffle_ps(low, high, 0xdd);
  if (inverse) turn_four(&b, &a, c, s);
  else turn_four(&a, &b, c, s);
  _mm_storeu_ps(out, _mm_unpacklo_ps(a, b));
  _mm_storeu_ps(out + 4, _mm_unpackhi_ps(a, b));
}

AVX2_INLINE __m256 load_floats_avx2(const float *from) { return _mm256_loadu_ps(from); }

// Eight numbers as unpacking leaves them, from 0 and from 8, and the eight between.
typedef struct {
  __m256 low, high;
} sixteen;

AVX2_INLINE sixteen load_apart(const float *from) {
  __m256 first = _mm256_loadu_ps(from), last = _mm256_loadu_ps(from + 8);
  return (sixteen){_mm256_permute2f128_ps(first, last, 0x20), _mm256_permute2f128_ps(first, last, 0x31)};
}

// The upper 16 bits of each number are its nearest bfloat16, ties to even; NaN stays NaN.
AVX2_INLINE __m256i round_to_bfloat16(__m256 value) {
  __m256i bits = _mm256_castps_si256(value);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  return _mm256_or_si256(rounded, _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
}

AVX2_INLINE void half_bfloat16_avx2(const uint16_t *first, const uint16_t *second, uint16_t *first_out,
                                    uint16_t *second_out, sixteen c, sixteen s) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i a16 = _mm256_loadu_si256((const __m256i *)first), b16 = _mm256_loadu_si256((const __m256i *)second);
  __m256 a = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a16));
  __m256 b = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b16));
  __m256i low_a = round_to_bfloat16(_mm256_fnmadd_ps(b, s.low, _mm256_mul_ps(a, c.low)));
  __m256i low_b = round_to_bfloat16(_mm256_fmadd_ps(a, s.low, _mm256_mul_ps(b, c.low)));
  a = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a16));
  b = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b16));
  __m256i high_a = round_to_bfloat16(_mm256_fnmadd_ps(b, s.high, _mm256_mul_ps(a, c.high)));
  __m256i high_b = round_to_bfloat16(_mm256_fmadd_ps(a, s.high, _mm256_mul_ps(b, c.high)));
  low_a = _mm256_packus_epi32(_mm256_srli_epi32(low_a, 16), _mm256_srli_epi32(high_a, 16));
  low_b = _mm256_packus_epi32(_mm256_srli_epi32(low_b, 16), _mm256_srli_epi32(high_b, 16));
  _mm256_storeu_si256((__m256i *)first_out, low_a);
  _mm256_storeu_si256((__m256i *)second_out, low_b);
}

AVX2_INLINE void interleaved_bfloat16_avx2(const uint16_t *x, uint16_t *out, __m256 c, __m256 s, int inverse) {
  const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
  // A pair is one 32-bit number: a is its lower half.
  __m256i both = _mm256_loadu_si256((const __m256i *)x);
  __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  __m256 b = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
  __m256 ac = _mm256_mul_ps(a, c), bc = _mm256_mul_ps(b, c);
  __m256i turned_a = round_to_bfloat16(inverse ? _mm256_fmadd_ps(b, s, ac) : _mm256_fnmadd_ps(b, s, ac));
  __m256i turned_b = round_to_bfloat16(inverse ? _mm256_fnmadd_ps(a, s, bc) : _mm256_fmadd_ps(a, s, bc));
  turned_b = _mm256_and_si256(turned_b, upper);
  _mm256_storeu_si256((__m256i *)out, _mm256_or_si256(_mm256_srli_epi32(turned_a, 16), turned_b));
}

AVX2_INLINE __m256 load_float16(const uint16_t *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

AVX2_INLINE __m128i to_eight_float16(__m256 value) { return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

AVX2_INLINE void half_float16_avx2(const uint16_t *first, const uint16_t *second, uint16_t *first_out,
                                   uint16_t *second_out, __m256 c, __m256 s) {
  __m256 a = load_float16(first), b = load_float16(second);
  _mm_storeu_si128((__m128i *)first_out, to_eight_float16(_mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c))));
  _mm_storeu_si128((__m128i *)second_out, to_eight_float16(_mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c))));
}

AVX2_INLINE void interleaved_float16_avx2(const uint16_t *x, uint16_t *out, __m256 c, __m256 s, int inverse) {
  const __m128i lower = _mm_set1_epi32(0xffff);
  __m128i low = _mm_loadu_si128((const __m128i *)x), high = _mm_loadu_si128((const __m128i *)(x + 8));
  __m256 a = _mm256_cvtph_ps(_mm_packus_epi32(_mm_and_si128(low, lower), _mm_and_si128(high, lower)));
  __m256 b = _mm256_cvtph_ps(_mm_packus_epi32(_mm_srli_epi32(low, 16), _mm_srli_epi32(high, 16)));
  __m256 ac = _mm256_mul_ps(a, c), bc = _mm256_mul_ps(b, c);
  __m128i turned_a = to_eight_float16(inverse ? _mm256_fmadd_ps(b, s, ac) : _mm256_fnmadd_ps(b, s, ac));
  __m128i turned_b = to_eight_float16(inverse ? _mm256_fnmadd_ps(a, s, bc) : _mm256_fmadd_ps(a, s, bc));
  _mm_storeu_si128((__m128i *)out, _mm_unpacklo_epi16(turned_a, turned_b));
  _mm_storeu_si128((__m128i *)(out + 8), _mm_unpackhi_epi16(turned_a, turned_b));
}

#define AVX512_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define AVX512_INLINE AVX512_TARGET INLINE

AVX512_INLINE __m512d load_numbers_avx512(const double *from) { return _mm512_loadu_pd(from); }

AVX512_INLINE void turn_eight(__m256 *a, __m256 *b, __m512d c, __m512d s) {
  __m512d first = _mm512_cvtps_pd(*a), second = _mm512_cvtps_pd(*b);
  *a = _mm512_cvtpd_ps(_mm512_fnmadd_pd(second, s, _mm512_mul_pd(first, c)));
  *b = _mm512_cvtpd_ps(_mm512_fmadd_pd(first, s, _mm512_mul_pd(second, c)));
}

AVX512_INLINE void half_float32_avx512(const float *first, const float *second, float *first_out, float *second_out,
                                       __m512d c, __m512d s) {
  __m256 a = _mm256_loadu_ps(first), b = _mm256_loadu_ps(second);
  turn_eight(&a, &b, c, s);
  _mm256_storeu_ps(first_out, a);
  _mm256_storeu_ps(second_out, b);
}

AVX512_INLINE void interleaved_float32_avx512(const float *x, float *out, __m512d c, __m512d s, int inverse) {
  const __m512i apart = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m512i together = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  __m512 both = _mm512_permutexvar_ps(apart, _mm512_loadu_ps(x));
  __m256 a = _mm512_castps512_ps256(both), b = _mm512_extractf32x8_ps(both, 1);
  if (inverse) turn_eight(&b, &a, c, s);
  else turn_eight(&a, &b, c, s);
  both = _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(together, both));
}

AVX512_INLINE __m512 load_floats_avx512(const float *from) { return _mm512_loadu_ps(from); }

// As round_to_bfloat16. The processor's own conversion would take the smallest numbers for zero.
AVX512_INLINE __m512i round_sixteen_to_bfloat16(__m512 value) {
  __m512i bits = _mm512_castps_si512(value);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_set1_epi32(rounded, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), -1);
}

AVX512_INLINE __m512 load_bfloat16(const uint16_t *from) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

AVX512_INLINE void store_bfloat16(uint16_t *to, __m512 value) {
  __m512i upper = _mm512_srli_epi32(round_sixteen_to_bfloat16(value), 16);
  _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(upper));
}

AVX512_INLINE void half_bfloat16_avx512(const uint16_t *first, const uint16_t *second, uint16_t *first_out,
                                        uint16_t *second_out, __m512 c, __m512 s) {
  __m512 a = load_bfloat16(first), b = load_bfloat16(second);
  store_bfloat16(first_out, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)));
  store_bfloat16(second_out, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
}

AVX512_INLINE void interleaved_bfloat16_avx512(const uint16_t *x, uint16_t *out, __m512 c, __m512 s, int inverse) {
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
  __m512i both = _mm512_loadu_si512(x);
  __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  __m512 b = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
  __m512 ac = _mm512_mul_ps(a, c), bc = _mm512_mul_ps(b, c);
  __m512i turned_a = round_sixteen_to_bfloat16(inverse ? _mm512_fmadd_ps(b, s, ac) : _mm512_fnmadd_ps(b, s, ac));
  __m512i turned_b = round_sixteen_to_bfloat16(inverse ? _mm512_fnmadd_ps(a, s, bc) : _mm512_fmadd_ps(a, s, bc));
  turned_b = _mm512_and_si512(turned_b, upper);
  _mm512_storeu_si512(out, _mm512_or_si512(_mm512_srli_epi32(turned_a, 16), turned_b));
}

AVX512_INLINE __m256i to_sixteen_float16(__m512 value) { return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

AVX512_INLINE void half_float16_avx512(const uint16_t *first, const uint16_t *second, uint16_t *first_out,
                                       uint16_t *second_out, __m512 c, __m512 s) {
  __m512 a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)first));
  __m512 b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)second));
  _mm256_storeu_si256((__m256i *)first_out, to_sixteen_float16(_mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c))));
  _mm256_storeu_si256((__m256i *)second_out, to_sixteen_float16(_mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c))));
}

AVX512_INLINE void interleaved_float16_avx512(const uint16_t *x, uint16_t *out, __m512 c, __m512 s, int inverse) {
  __m512i both = _mm512_loadu_si512(x);
  __m512 a = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
  __m512 b = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
  __m512 ac = _mm512_mul_ps(a, c), bc = _mm512_mul_ps(b, c);
  __m256i turned_a = to_sixteen_float16(inverse ? _mm512_fmadd_ps(b, s, ac) : _mm512_fnmadd_ps(b, s, ac));
  __m256i turned_b = to_sixteen_float16(inverse ? _mm512_fnmadd_ps(a, s, bc) : _mm512_fmadd_ps(a, s, bc));
  __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(turned_b), 16);
  _mm512_storeu_si512(out, _mm512_or_si512(_mm512_cvtepu16_epi32(turned_a), upper));
}
#endif

// ---- rows
//
// Heads of one row side by side, which share its cosines and sines: chunk by chunk where there are vectors, and what is
// left, or all, pair by pair. In the half layout the inverse is the same rotation with the two channels of each pair
// exchanged.

#define NO_CHUNKS(...)

// Four heads are four instructions and no loop: processors see ahead what one instruction reads from row to row, and
// would lose that where it goes from head to head. One head alone needs no count of them.
#define CHUNKS(STEP, VECTOR, LOAD, TURN, OF_HEAD)        \
  if (heads == 1) {                                      \
    for (; i + STEP <= pairs; i += STEP) {               \
      const VECTOR c = LOAD(cos + i), s = LOAD(sin + i); \
      TURN(OF_HEAD(0));                                  \
    }                                                    \
  }                                                      \
  for (; i + STEP <= pairs; i += STEP) {                 \
    const VECTOR c = LOAD(cos + i), s = LOAD(sin + i);   \
    int64_t h = 0;                                       \
    for (; h + 4 <= heads; h += 4) {                     \
      TURN(OF_HEAD(h));                                  \
      TURN(OF_HEAD(h + 1));                              \
      TURN(OF_HEAD(h + 2));                              \
      TURN(OF_HEAD(h + 3));                              \
    }                                                    \
    for (; h < heads; h++) TURN(OF_HEAD(h));             \
  }
#define HALVES(h) \
  first + (h) * X + i, second + (h) * X + i, first_out + (h) * O + i, second_out + (h) * O + i, c, s
#define NEIGHBOURS(h) x + (h) * X + 2 * i, out + (h) * O + 2 * i, c, s, inverse

#define ROWS(NAME, TARGET, CHANNEL, NUMBER, ...)                                                                     \
  TARGET static void NAME(const stretch *r, const void *from, void *to, const void *cosines, const void *sines) {    \
    const CHANNEL *x = from;                                                                                         \
    CHANNEL *out = to;                                                                                               \
    const NUMBER *cos = cosines, *sin = sines;                                                                       \
    const int64_t pairs = r->pairs, passed = r->width - 2 * pairs, heads = r->heads, X = r->x_head, O = r->out_head; \
    for (int64_t row = 0; row < r->rows; row++) {                                                                    \
      int64_t i = 0;                                                                                                 \
      __VA_ARGS__                                                                                                    \
      if (passed && out != x)                                                                                        \
        for (int64_t h = 0; h < heads; h++)                                                                          \
          memcpy(out + h * O + 2 * pairs, x + h * X + 2 * pairs, passed * sizeof(CHANNEL));                          \
      x += r->x, out += r->out, cos += r->table, sin += r->table;                                                    \
    }                                                                                                                \
  }

#define HALF_ROWS(NAME, TARGET, CHANNEL, NUMBER, READ, WRITE, IN_CHUNKS, STEP, VECTOR, LOAD, TURN, INVERSE) \
  ROWS(NAME, TARGET, CHANNEL, NUMBER, {                                                                     \
    const CHANNEL *first = x + INVERSE * pairs, *second = x + (1 - INVERSE) * pairs;                        \
    CHANNEL *first_out = out + INVERSE * pairs, *second_out = out + (1 - INVERSE) * pairs;                  \
    IN_CHUNKS(STEP, VECTOR, LOAD, TURN, HALVES)                                                             \
    for (int64_t h = 0; h < heads; h++) {                                                                   \
      INDEPENDENT for (int64_t j = i; j < pairs; j++) {                                                     \
        NUMBER a = READ(first[h * X + j]), b = READ(second[h * X + j]);                                     \
        first_out[h * O + j] = WRITE(a * cos[j] - b * sin[j]);                                              \
        second_out[h * O + j] = WRITE(b * cos[j] + a * sin[j]);                                             \
      }                                                                                                     \
    }                                                                                                       \
  })

#define INTERLEAVED_ROWS(NAME, TARGET, CHANNEL, NUMBER, READ, WRITE, IN_CHUNKS, STEP, VECTOR, LOAD, TURN, INVERSE) \
  ROWS(NAME, TARGET, CHANNEL, NUMBER, {                                                                            \
    enum { inverse = INVERSE };                                                                                    \
    IN_CHUNKS(STEP, VECTOR, LOAD, TURN, NEIGHBOURS)                                                                \
    for (int64_t h = 0; h < heads; h++) {                                                                          \
      INDEPENDENT for (int64_t j = i; j < pairs; j++) {                                                            \
        NUMBER a = READ(x[h * X + 2 * j]), b = READ(x[h * X + 2 * j + 1]), sine = inverse ? -sin[j] : sin[j];      \
        out[h * O + 2 * j] = WRITE(a * cos[j] - b * sine);                                                         \
        out[h * O + 2 * j + 1] = WRITE(b * cos[j] + a * sine);                                                     \
      }                                                                                                            \
    }                                                                                                              \
  })

// HALF and INTERLEAVED are (how chunks are walked, pairs of a chunk, its vector, how that is loaded, how it is turned).
#define CALL(MACRO, ...) MACRO(__VA_ARGS__)
#define WITHOUT_PARENTHESES(...) __VA_ARGS__
#define ROWS_OF(SET, TARGET, TYPE, CHANNEL, NUMBER, READ, WRITE, HALF, INTERLEAVED)                                \
  CALL(HALF_ROWS, half_##TYPE##_rows_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE, WITHOUT_PARENTHESES HALF, 0)     \
  CALL(HALF_ROWS, half_##TYPE##_back_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE, WITHOUT_PARENTHESES HALF, 1)     \
  CALL(INTERLEAVED_ROWS, interleaved_##TYPE##_rows_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE,                    \
       WITHOUT_PARENTHESES INTERLEAVED, 0)                                                                         \
  CALL(INTERLEAVED_ROWS, interleaved_##TYPE##_back_##SET, TARGET, CHANNEL, NUMBER, READ, WRITE,                    \
       WITHOUT_PARENTHESES INTERLEAVED, 1)

#define LISTED(SET, TYPE)                                       \
  {                                                             \
    {half_##TYPE##_rows_##SET, half_##TYPE##_back_##SET}, {     \
      interleaved_##TYPE##_rows_##SET, interleaved_##TYPE##_back_##SET \
    }                                                           \
  }

#define LIST(SET) {LISTED(SET, float32), LISTED(SET, float64), LISTED(SET, bfloat16), LISTED(SET, float16)}

#define PAIR_BY_PAIR (NO_CHUNKS, 0, 0, 0, 0)

ROWS_OF(plain, , float32, float, double, SAME, TO_FLOAT, PAIR_BY_PAIR, PAIR_BY_PAIR)
ROWS_OF(plain, , float64, double, double, SAME, SAME, PAIR_BY_PAIR, PAIR_BY_PAIR)
ROWS_OF(plain, , bfloat16, uint16_t, float, from_bfloat16, to_bfloat16, PAIR_BY_PAIR, PAIR_BY_PAIR)
ROWS_OF(plain, , float16, uint16_t, float, from_float16, to_float16, PAIR_BY_PAIR, PAIR_BY_PAIR)

#ifdef X86
ROWS_OF(avx2, AVX2_TARGET, float32, float, double, SAME, TO_FLOAT,
        (CHUNKS, 4, __m256d, load_numbers_avx2, half_float32_avx2),
        (CHUNKS, 4, __m256d, load_numbers_avx2, interleaved_float32_avx2))
ROWS_OF(avx2, AVX2_TARGET, float64, double, double, SAME, SAME, PAIR_BY_PAIR, PAIR_BY_PAIR)
ROWS_OF(avx2, AVX2_TARGET, bfloat16, uint16_t, float, from_bfloat16, to_bfloat16,
        (CHUNKS, 16, sixteen, load_apart, half_bfloat16_avx2),
        (CHUNKS, 8, __m256, load_floats_avx2, interleaved_bfloat16_avx2))
ROWS_OF(avx2, AVX2_TARGET, float16, uint16_t, float, _cvtsh_ss, NEAREST_FLOAT16,
        (CHUNKS, 8, __m256, load_floats_avx2, half_float16_avx2),
        (CHUNKS, 8, __m256, load_floats_avx2, interleaved_float16_avx2))
ROWS_OF(avx512, AVX512_TARGET, float32, float, double, SAME, TO_FLOAT,
        (CHUNKS, 8, __m512d, load_numbers_avx512, half_float32_avx512),
        (CHUNKS, 8, __m512d, load_numbers_avx512, interleaved_float32_avx512))
ROWS_OF(avx512, AVX512_TARGET, float64, double, double, SAME, SAME, PAIR_BY_PAIR, PAIR_BY_PAIR)
ROWS_OF(avx512, AVX512_TARGET, bfloat16, uint16_t, float, from_bfloat16, to_bfloat16,
        (CHUNKS, 16, __m512, load_floats_avx512, half_bfloat16_avx512),
        (CHUNKS, 16, __m512, load_floats_avx512, interleaved_bfloat16_avx512))
ROWS_OF(avx512, AVX512_TARGET, float16, uint16_t, float, _cvtsh_ss, NEAREST_FLOAT16,
        (CHUNKS, 16, __m512, load_floats_avx512, half_float16_avx512),
        (CHUNKS, 16, __m512, load_floats_avx512, interleaved_float16_avx512))
#endif

enum { PLAIN, AVX2, AVX512 };

static turn_rows *const turns[][TYPES][LAYOUTS][2] = {
    LIST(plain),
#ifdef X86
    LIST(avx2),
    LIST(avx512),
#endif
};

static int best_set(void) {
#ifdef X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? AVX512 : AVX2;
  }
#endif
  return PLAIN;
}

// ---- the walk
//
// Tokens of a few heads at a time, from the first to the last, so that memory is read in order and prefetched. If the
// heads of a token are contiguous, they are the rows; if each head has its own table, one head is walked alone.
enum { SIDE_BY_SIDE = 4, LEAST_TOKENS = 64, STRETCHES_A_THREAD = 4, ENOUGH_FOR_THREADS = 32768 };

static int64_t divided(int64_t number, int64_t by) { return (number + by - 1) / by; }

static void walk(const rotation *r, const void *x, void *out, const void *cos, const void *sin, int64_t threads) {
  turn_rows *turn = turns[r->set][r->type][r->layout][r->inverse];
  const int64_t channel = r->type == FLOAT64 ? 8 : r->type == FLOAT32 ? 4 : 2, number = r->type <= FLOAT64 ? 8 : 4;
  const int by_token = r->x[1] < r->x[2] || r->tokens == 1, axis = by_token ? 1 : 2;
  const int in_threads = threads > 1 && r->batch * r->heads * r->tokens * r->width >= ENOUGH_FOR_THREADS;
  const int64_t group = by_token ? r->heads : r->table[1] ? 1 : SIDE_BY_SIDE, groups = divided(r->heads, group);
  int64_t block = by_token ? 1 : r->tokens;
  if (in_threads && !by_token) {
    // Few heads are cut, so that there is work for all.
    block = divided(r->tokens, divided(STRETCHES_A_THREAD * threads, r->batch * groups));
    block = block > LEAST_TOKENS ? block : LEAST_TOKENS;
  }
  const int64_t blocks = divided(r->tokens, block), stretches = r->batch * groups * blocks;
#define TURN_A_STRETCH(item)                                                                                   \
  {                                                                                                            \
    const int64_t t = item % blocks * block, h = item / blocks % groups * group, b = item / blocks / groups;   \
    const int64_t tokens = r->tokens - t < block ? r->tokens - t : block;                                      \
    const int64_t heads = r->heads - h < group ? r->heads - h : group;                                         \
    const int64_t place = (b * r->table[0] + h * r->table[1] + t * r->table[2]) * number;                      \
    const stretch s = {by_token ? heads : tokens, r->x[axis], r->out[axis], r->table[axis],                    \
                       by_token ? 1 : heads, r->x[1], r->out[1], r->pairs, r->width};                          \
    turn(&s, (const char *)x + (b * r->x[0] + h * r->x[1] + t * r->x[2]) * channel,                            \
         (char *)out + (b * r->out[0] + h * r->out[1] + t * r->out[2]) * channel, (const char *)cos + place,   \
         (const char *)sin + place);                                                                           \
  }
  if (in_threads && stretches > 1) {
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

// Queries and keys: for a token decoded alone, a call and each of its arguments cost more than its rotation.
EXPORT void posenc_rotate_both(const rotation_of_both *r, const both *of) {
  const char *sin = of->cos + r->to_sin;
  walk(&r->q, of->q, of->q_out, of->cos, sin, of->threads);
  walk(&r->k, of->k, of->k_out, of->cos, sin, of->threads);
}
