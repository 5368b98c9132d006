// Sixteen lanes in plain C++. Included by isa_plain.cc alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace rollcast::cpu {
namespace {

#define RC_LANE inline

constexpr int kMaxTileRows = 1;
constexpr int TileColumns(int) { return 1; }
constexpr int kAccumulateRows = 1;
constexpr int kAccumulateVectors = 1;

struct F16 {
  float v[16];
};
struct U16 {
  uint32_t v[16];
};
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

template <class Fn>
F16 Map(Fn fn) {
  F16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
  return r;
}
template <class Fn>
U16 MapU(Fn fn) {
  U16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = fn(i);
  return r;
}

float FromBits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
uint32_t ToBits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}
float FromHalf(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return FromBits(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return FromBits(sign | (exponent + 112) << 23 | mantissa << 13);
}

F16 Set1(float x) {
  return Map([&](int) { return x; });
}
F16 Load(const float* p) {
  F16 r;
  memcpy(&r, p, sizeof(r));
  return r;
}
F16 Load(const Half* p) {
  uint16_t h[16];
  memcpy(h, p, sizeof(h));
  return Map([&](int i) { return FromHalf(h[i]); });
}
F16 Load(const BFloat* p) {
  uint16_t h[16];
  memcpy(h, p, sizeof(h));
  return Map([&](int i) { return FromBits(static_cast<uint32_t>(h[i]) << 16); });
}
template <class T>
F16 LoadFirst(const T* p, int n) {
  unsigned char buffer[16 * sizeof(T)] = {};
  memcpy(buffer, p, sizeof(T) * n);
  return Load(reinterpret_cast<const T*>(buffer));
}
void Store(float* p, F16 a) { memcpy(p, &a, sizeof(a)); }
void StoreFirst(float* p, int n, F16 a) { memcpy(p, &a, 4 * n); }

F16 Add(F16 a, F16 b) {
  return Map([&](int i) { return a.v[i] + b.v[i]; });
}
F16 Sub(F16 a, F16 b) {
  return Map([&](int i) { return a.v[i] - b.v[i]; });
}
F16 Mul(F16 a, F16 b) {
  return Map([&](int i) { return a.v[i] * b.v[i]; });
}
F16 Div(F16 a, F16 b) {
  return Map([&](int i) { return a.v[i] / b.v[i]; });
}
F16 Sqrt(F16 a) {
  return Map([&](int i) { return std::sqrt(a.v[i]); });
}
F16 Fma(F16 a, F16 b, F16 c) {
  return Map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
/// The second operand where either is NaN, as the x86 instructions have it.
F16 Max(F16 a, F16 b) {
  return Map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
F16 Min(F16 a, F16 b) {
  return Map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
/// x < limit ? 0 : y, and y where x is NaN.
F16 ZeroWhereLess(F16 x, F16 limit, F16 y) {
  return Map([&](int i) { return x.v[i] < limit.v[i] ? 0.0f : y.v[i]; });
}
uint32_t MaskGreaterEqual(F16 a, F16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.v[i] >= b.v[i]) << i;
  return mask;
}
U16 Bits(F16 a) {
  return MapU([&](int i) { return ToBits(a.v[i]); });
}
F16 AsFloat(U16 a) {
  return Map([&](int i) { return FromBits(a.v[i]); });
}
/// From signed integers.
F16 ToFloat(U16 a) {
  return Map([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
}

U16 Set1U(uint32_t x) {
  return MapU([&](int) { return x; });
}
U16 LoadU(const uint32_t* p) {
  U16 r;
  memcpy(&r, p, sizeof(r));
  return r;
}
void StoreU(uint32_t* p, U16 a) { memcpy(p, &a, sizeof(a)); }
U16 AddU(U16 a, U16 b) {
  return MapU([&](int i) { return a.v[i] + b.v[i]; });
}
U16 XorU(U16 a, U16 b) {
  return MapU([&](int i) { return a.v[i] ^ b.v[i]; });
}
template <int kBits>
U16 ShiftLeft(U16 a) {
  return MapU([&](int i) { return a.v[i] << kBits; });
}
template <int kBits>
U16 ShiftRight(U16 a) {
  return MapU([&](int i) { return a.v[i] >> kBits; });
}
/// The 64-bit products of a and m.
void MulHiLo(U16 a, uint32_t m, U16& hi, U16& lo) {
  for (int i = 0; i < 16; ++i) {
    const uint64_t product = static_cast<uint64_t>(a.v[i]) * m;
    hi.v[i] = static_cast<uint32_t>(product >> 32);
    lo.v[i] = static_cast<uint32_t>(product);
  }
}
/// Within each group of four lanes: a 4 x 4 transpose over the four vectors.
void TransposeGroups(U16 v[4]) {
  U16 r[4];
  for (int j = 0; j < 4; ++j)
    for (int g = 0; g < 4; ++g)
      for (int i = 0; i < 4; ++i) r[j].v[4 * g + i] = v[i].v[4 * g + j];
  for (int j = 0; j < 4; ++j) v[j] = r[j];
}

float Fold(F16 a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}
float FoldMax(F16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
void Fold4(const F16* a, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = Fold(a[i]);
}

}  // namespace
}  // namespace rollcast::cpu
