// Sixteen lanes in two AVX2 registers. Included by isa_avx2.cc alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace rollcast::cpu {
namespace {

// Accumulators of a tile: 12 of the 16 registers.
constexpr int kMaxTileRows = 2;
constexpr int TileColumns(int rows) { return rows == 1 ? 6 : 3; }
constexpr int kAccumulateRows = 2;
constexpr int kAccumulateVectors = 2;

#define RC_LANE inline __attribute__((always_inline))

struct F16 {
  __m256 lo, hi;
};
struct U16 {
  __m256i lo, hi;
};
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

RC_LANE F16 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
RC_LANE F16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RC_LANE F16 Load(const Half* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
RC_LANE __m256 Widen(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
RC_LANE F16 Load(const BFloat* p) {
  return {Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
template <class T>
RC_LANE F16 LoadFirst(const T* p, int n) {
  T buffer[16] = {};
  __builtin_memcpy(buffer, p, sizeof(T) * n);
  return Load(buffer);
}
RC_LANE void Store(float* p, F16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
RC_LANE void StoreFirst(float* p, int n, F16 a) {
  float buffer[16];
  Store(buffer, a);
  __builtin_memcpy(p, buffer, 4 * n);
}

#define RC_PAIRWISE(name, op) \
  RC_LANE F16 name(F16 a, F16 b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
RC_PAIRWISE(Add, _mm256_add_ps)
RC_PAIRWISE(Sub, _mm256_sub_ps)
RC_PAIRWISE(Mul, _mm256_mul_ps)
RC_PAIRWISE(Div, _mm256_div_ps)
RC_PAIRWISE(Max, _mm256_max_ps)
RC_PAIRWISE(Min, _mm256_min_ps)
#undef RC_PAIRWISE
RC_LANE F16 Sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
RC_LANE F16 Fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
RC_LANE F16 ZeroWhereLess(F16 x, F16 limit, F16 y) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ), y.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ), y.hi)};
}
RC_LANE uint32_t MaskGreaterEqual(F16 a, F16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
  return static_cast<uint32_t>(lo | hi << 8);
}
RC_LANE U16 Bits(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
RC_LANE F16 AsFloat(U16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
RC_LANE F16 ToFloat(U16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

RC_LANE U16 Set1U(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
RC_LANE U16 LoadU(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
RC_LANE void StoreU(uint32_t* p, U16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
RC_LANE U16 AddU(U16 a, U16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
RC_LANE U16 XorU(U16 a, U16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int kBits>
RC_LANE U16 ShiftLeft(U16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
RC_LANE U16 ShiftRight(U16 a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
RC_LANE void MulHiLo8(__m256i a, __m256i factor, __m256i& hi, __m256i& lo) {
  const __m256i even = _mm256_mul_epu32(a, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
RC_LANE void MulHiLo(U16 a, uint32_t m, U16& hi, U16& lo) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(m));
  MulHiLo8(a.lo, factor, hi.lo, lo.lo);
  MulHiLo8(a.hi, factor, hi.hi, lo.hi);
}
RC_LANE void TransposeGroups8(__m256i& p, __m256i& q, __m256i& r, __m256i& s) {
  const __m256i a = _mm256_unpacklo_epi32(p, q), b = _mm256_unpackhi_epi32(p, q);
  const __m256i c = _mm256_unpacklo_epi32(r, s), d = _mm256_unpackhi_epi32(r, s);
  p = _mm256_unpacklo_epi64(a, c);
  q = _mm256_unpackhi_epi64(a, c);
  r = _mm256_unpacklo_epi64(b, d);
  s = _mm256_unpackhi_epi64(b, d);
}
RC_LANE void TransposeGroups(U16 v[4]) {
  TransposeGroups8(v[0].lo, v[1].lo, v[2].lo, v[3].lo);
  TransposeGroups8(v[0].hi, v[1].hi, v[2].hi, v[3].hi);
}

RC_LANE __m128 FoldTo4(F16 a) {
  const __m256 b = _mm256_add_ps(a.lo, a.hi);
  return _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
}
RC_LANE float Fold(F16 a) {
  const __m128 c = FoldTo4(a);
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
RC_LANE float FoldMax(F16 a) {
  const __m256 b = _mm256_max_ps(a.lo, a.hi);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
RC_LANE void Fold4(const F16* a, float* out) {
  const __m128 p = FoldTo4(a[0]), q = FoldTo4(a[1]), r = FoldTo4(a[2]), s = FoldTo4(a[3]);
  const __m128 pq = _mm_add_ps(_mm_shuffle_ps(p, q, 0x44), _mm_shuffle_ps(p, q, 0xee));
  const __m128 rs = _mm_add_ps(_mm_shuffle_ps(r, s, 0x44), _mm_shuffle_ps(r, s, 0xee));
  _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(pq, rs, 0x88), _mm_shuffle_ps(pq, rs, 0xdd)));
}

}  // namespace
}  // namespace rollcast::cpu
