// Sixteen lanes in one AVX-512 register. Included by isa_avx512.cc alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace rollcast::cpu {
namespace {

// Accumulators of a tile: 24 of the 32 registers, fewer where rows are few.
constexpr int kMaxTileRows = 4;  // at most 4
constexpr int TileColumns(int rows) { return rows <= 2 ? 8 : 6; }
constexpr int kAccumulateRows = 4;
constexpr int kAccumulateVectors = 4;

#define RC_LANE inline __attribute__((always_inline))

struct F16 {
  __m512 v;
};
struct U16 {
  __m512i v;
};
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

RC_LANE F16 Set1(float x) { return {_mm512_set1_ps(x)}; }
RC_LANE F16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
RC_LANE F16 Load(const Half* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
RC_LANE F16 Load(const BFloat* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
RC_LANE __mmask16 FirstMask(int n) { return static_cast<__mmask16>((1u << n) - 1); }
RC_LANE F16 LoadFirst(const float* p, int n) { return {_mm512_maskz_loadu_ps(FirstMask(n), p)}; }
RC_LANE F16 LoadFirst(const Half* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstMask(n), p))};
}
RC_LANE F16 LoadFirst(const BFloat* p, int n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(FirstMask(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
RC_LANE void Store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
RC_LANE void StoreFirst(float* p, int n, F16 a) { _mm512_mask_storeu_ps(p, FirstMask(n), a.v); }

RC_LANE F16 Add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
RC_LANE F16 Sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
RC_LANE F16 Mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
RC_LANE F16 Div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
RC_LANE F16 Sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
RC_LANE F16 Fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
RC_LANE F16 Max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
RC_LANE F16 Min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
RC_LANE F16 ZeroWhereLess(F16 x, F16 limit, F16 y) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), y.v)};
}
RC_LANE uint32_t MaskGreaterEqual(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
RC_LANE U16 Bits(F16 a) { return {_mm512_castps_si512(a.v)}; }
RC_LANE F16 AsFloat(U16 a) { return {_mm512_castsi512_ps(a.v)}; }
RC_LANE F16 ToFloat(U16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

RC_LANE U16 Set1U(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
RC_LANE U16 LoadU(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
RC_LANE void StoreU(uint32_t* p, U16 a) { _mm512_storeu_si512(p, a.v); }
RC_LANE U16 AddU(U16 a, U16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
RC_LANE U16 XorU(U16 a, U16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
RC_LANE U16 ShiftLeft(U16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
RC_LANE U16 ShiftRight(U16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
RC_LANE void MulHiLo(U16 a, uint32_t m, U16& hi, U16& lo) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(m));
  const __m512i even = _mm512_mul_epu32(a.v, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  hi.v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
  lo.v = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
}
RC_LANE void TransposeGroups(U16 v[4]) {
  const __m512i a = _mm512_unpacklo_epi32(v[0].v, v[1].v),
                b = _mm512_unpackhi_epi32(v[0].v, v[1].v);
  const __m512i c = _mm512_unpacklo_epi32(v[2].v, v[3].v),
                d = _mm512_unpackhi_epi32(v[2].v, v[3].v);
  v[0].v = _mm512_unpacklo_epi64(a, c);
  v[1].v = _mm512_unpackhi_epi64(a, c);
  v[2].v = _mm512_unpacklo_epi64(b, d);
  v[3].v = _mm512_unpackhi_epi64(b, d);
}

RC_LANE __m128 FoldTo4(F16 a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
}
RC_LANE float Fold(F16 a) {
  const __m128 c = FoldTo4(a);
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
RC_LANE float FoldMax(F16 a) { return _mm512_reduce_max_ps(a.v); }
RC_LANE void Fold4(const F16* a, float* out) {
  const __m128 p = FoldTo4(a[0]), q = FoldTo4(a[1]), r = FoldTo4(a[2]), s = FoldTo4(a[3]);
  const __m128 pq = _mm_add_ps(_mm_shuffle_ps(p, q, 0x44), _mm_shuffle_ps(p, q, 0xee));
  const __m128 rs = _mm_add_ps(_mm_shuffle_ps(r, s, 0x44), _mm_shuffle_ps(r, s, 0xee));
  _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(pq, rs, 0x88), _mm_shuffle_ps(pq, rs, 0xdd)));
}

}  // namespace
}  // namespace rollcast::cpu
