// The body of every instruction set's IsaKernels, in terms of the lanes of the file named RC_LANES.
// Everything has internal linkage and no standard inline function is called; see isa_kernels.h.
#include RC_LANES
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/scalar_math.h"

#ifdef __clang__
#define RC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RC_UNROLL _Pragma("GCC unroll 8")
#endif

namespace rollcast::cpu {
namespace {

// Below this exp is taken as zero; the smallest result is then a normal number.
constexpr float kExpLow = -87.0f;
constexpr float kLowest = -3.402823466e38f;
constexpr float kInfinity = __builtin_inff();

/// Into the second-level cache: the first is too small for what memory has to be asked ahead.
RC_LANE void Prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
// How far ahead, and at least how far beyond the tile that is being read.
constexpr int64_t kPrefetchBytes = 32768, kPrefetchBeyondTile = 16384;

RC_LANE int Smaller(int a, int b) { return a < b ? a : b; }
RC_LANE int Larger(int a, int b) { return a > b ? a : b; }

/// exp(x): x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 (its error,
/// r^8 / 8! < 6e-9, is below half a unit). Saturates at exp(88); NaN stays NaN.
RC_LANE F16 Exp(F16 x) {
  const F16 clamped = Min(Set1(88.0f), Max(Set1(kExpLow), x));
  const F16 magic = Set1(12582912.0f);  // 1.5 * 2^23: leaves n in the low bits
  const F16 shifted = Fma(clamped, Set1(1.44269504f), magic);
  const F16 n = Sub(shifted, magic);
  // ln 2 in two parts, the first with 10 bits so that its multiples are exact.
  F16 r = Fma(n, Set1(-0.693359375f), clamped);
  r = Fma(n, Set1(2.12194440e-4f), r);
  F16 p = Set1(1.0f / 5040);
  p = Fma(p, r, Set1(1.0f / 720));
  p = Fma(p, r, Set1(1.0f / 120));
  p = Fma(p, r, Set1(1.0f / 24));
  p = Fma(p, r, Set1(1.0f / 6));
  p = Fma(p, r, Set1(0.5f));
  p = Fma(p, r, Set1(1.0f));
  p = Fma(p, r, Set1(1.0f));
  const F16 power = AsFloat(AddU(ShiftLeft<23>(Bits(shifted)), Set1U(0x3f800000)));
  return ZeroWhereLess(x, Set1(kExpLow), Mul(p, power));
}

RC_LANE float ExpScalar(float x) {
  float lanes[16];
  Store(lanes, Exp(Set1(x)));
  return lanes[0];
}

RC_LANE F16 LoadUpTo(const float* p, int n) { return n >= 16 ? Load(p) : LoadFirst(p, n); }

/// out[r * out_stride + c] = x[r] . w[c] for a tile of R rows and C weight rows. `step` is the
/// distance in `x` from one group of 16 k to the next.
///
/// With kStream the weight rows follow one another in memory and so do the tiles: memory that far
/// ahead is asked for as the tile is read. The rows of a tile are too many short streams for the
/// processor to follow by itself.
template <int R, int C, bool kStream, class W>
void Tile(const float* x, int64_t step, int k, const W* const* weight, float* out,
          int64_t out_stride) {
  constexpr int kStepBytes = C * 16 * static_cast<int>(sizeof(W));
  const int64_t beyond = C * static_cast<int64_t>(sizeof(W)) * k + kPrefetchBeyondTile;
  const char* ahead = reinterpret_cast<const char*>(weight[0]) +
                      (beyond > kPrefetchBytes ? beyond : kPrefetchBytes);
  constexpr int kPadded = (R * C + 3) / 4 * 4;
  F16 acc[kPadded];
  RC_UNROLL
  for (int i = 0; i < kPadded; ++i) acc[i] = Set1(0);
  const W* w[C];
  RC_UNROLL
  for (int c = 0; c < C; ++c) w[c] = weight[c];
  int i = 0;
  for (; i + 16 <= k; i += 16, x += step) {
    if constexpr (kStream) {
      RC_UNROLL
      for (int j = 0; j < kStepBytes; j += 64) Prefetch(ahead + j);
      ahead += kStepBytes;
    }
    F16 wv[C];
    RC_UNROLL
    for (int c = 0; c < C; ++c) wv[c] = Load(w[c] + i);
    RC_UNROLL
    for (int r = 0; r < R; ++r) {
      const F16 xv = Load(x + 16 * r);
      RC_UNROLL
      for (int c = 0; c < C; ++c) acc[r * C + c] = Fma(xv, wv[c], acc[r * C + c]);
    }
  }
  if (i < k) {
    RC_UNROLL
    for (int c = 0; c < C; ++c) {
      const F16 wv = LoadFirst(w[c] + i, k - i);
      RC_UNROLL
      for (int r = 0; r < R; ++r) acc[r * C + c] = Fma(Load(x + 16 * r), wv, acc[r * C + c]);
    }
  }
  float folded[kPadded];
  RC_UNROLL
  for (int j = 0; j < kPadded; j += 4) Fold4(acc + j, folded + j);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) out[r * out_stride + c] = folded[r * C + c];
}

template <int R, class W>
void TileColumnsOf(const float* x, int64_t step, int k, const W* weight, int n, float* out,
                   int64_t out_stride) {
  constexpr int kColumns = TileColumns(R);
  const W* w[kColumns];
  int j = 0;
  for (; j + kColumns <= n; j += kColumns) {
    for (int c = 0; c < kColumns; ++c) w[c] = weight + static_cast<int64_t>(j + c) * k;
    Tile<R, kColumns, true>(x, step, k, w, out + j, out_stride);
  }
  for (; j < n; ++j) {
    w[0] = weight + static_cast<int64_t>(j) * k;
    Tile<R, 1, true>(x, step, k, w, out + j, out_stride);
  }
}

/// Calls fn.operator()<R>(first row) so that all rows of a block are covered.
template <class Fn>
RC_LANE void ForRowTiles(int rows, const Fn& fn) {
  int r = 0;
  for (; r + kMaxTileRows <= rows; r += kMaxTileRows) fn.template operator()<kMaxTileRows>(r);
  switch (rows - r) {
    case 3:
      if constexpr (kMaxTileRows > 3) fn.template operator()<3>(r);
      break;
    case 2:
      if constexpr (kMaxTileRows > 2) fn.template operator()<2>(r);
      break;
    case 1:
      if constexpr (kMaxTileRows > 1) fn.template operator()<1>(r);
      break;
    default:
      break;
  }
}

template <class W>
void ProductOf(const ProductArgs& a) {
  const int64_t padded = (a.k + 15) / 16 * 16;
  const W* weight = static_cast<const W*>(a.weight);
  for (int block = 0; block < a.num_rows; block += kRowBlock) {
    const int rows = Smaller(kRowBlock, a.num_rows - block);
    const float* x = a.x + block * padded;
    float* out = a.out + block * a.out_stride;
    ForRowTiles(rows, [&]<int R>(int r) {
      TileColumnsOf<R>(x + 16 * r, 16 * rows, a.k, weight, a.num_columns, out + r * a.out_stride,
                       a.out_stride);
    });
  }
}

void Product(const ProductArgs& a) {
  switch (a.type) {
    case WeightType::kF32:
      return ProductOf<float>(a);
    case WeightType::kF16:
      return ProductOf<Half>(a);
    case WeightType::kBF16:
      return ProductOf<BFloat>(a);
  }
}

template <class W>
void NormOf(const float* x, int n, const W* weight, float eps, float* out, int64_t out_stride) {
  F16 squares = Set1(0);
  for (int i = 0; i < n; i += 16) {
    const F16 v = LoadUpTo(x + i, n - i);
    squares = Fma(v, v, squares);
  }
  const float mean = Fold(squares) / static_cast<float>(n);
  const F16 factor = Div(Set1(1.0f), Sqrt(Set1(mean + eps)));
  for (int i = 0; i < n; i += 16, out += out_stride) {
    const F16 v = LoadUpTo(x + i, n - i);
    const F16 w = n - i >= 16 ? Load(weight + i) : LoadFirst(weight + i, n - i);
    Store(out, Mul(Mul(v, factor), w));
  }
}

void RmsNorm(const float* x, int32_t n, const void* weight, WeightType type, float eps, float* out,
             int64_t out_stride) {
  switch (type) {
    case WeightType::kF32:
      return NormOf(x, n, static_cast<const float*>(weight), eps, out, out_stride);
    case WeightType::kF16:
      return NormOf(x, n, static_cast<const Half*>(weight), eps, out, out_stride);
    case WeightType::kBF16:
      return NormOf(x, n, static_cast<const BFloat*>(weight), eps, out, out_stride);
  }
}

template <class W>
void ConvertOf(const W* weight, int n, float scale, float* out) {
  int i = 0;
  for (; i + 16 <= n; i += 16) Store(out + i, Mul(Load(weight + i), Set1(scale)));
  if (i < n) StoreFirst(out + i, n - i, Mul(LoadFirst(weight + i, n - i), Set1(scale)));
}

void Convert(const void* weight, WeightType type, int32_t n, float scale, float* out) {
  switch (type) {
    case WeightType::kF32:
      return ConvertOf(static_cast<const float*>(weight), n, scale, out);
    case WeightType::kF16:
      return ConvertOf(static_cast<const Half*>(weight), n, scale, out);
    case WeightType::kBF16:
      return ConvertOf(static_cast<const BFloat*>(weight), n, scale, out);
  }
}

void SiluMul(const float* gate, const float* up, int32_t n, float* out) {
  for (int i = 0; i < n; i += 16) {
    const F16 g = LoadUpTo(gate + i, n - i), u = LoadUpTo(up + i, n - i);
    const F16 silu = Div(g, Add(Set1(1.0f), Exp(Sub(Set1(0), g))));
    if (n - i >= 16)
      Store(out + i, Mul(silu, u));
    else
      StoreFirst(out + i, n - i, Mul(silu, u));
  }
}

/// acc[r][d] += p[r][t] * v[t][d] for t in [t0, t1), in order of t; D vectors of d from `d`, the
/// last with `tail` elements.
template <int R, int D>
void AccumulateValues(const float* p, const float* const* v, int t0, int t1, int d, int tail,
                      float* acc, int64_t acc_stride) {
  F16 sum[R][D];
  RC_UNROLL
  for (int r = 0; r < R; ++r) {
    RC_UNROLL
    for (int j = 0; j < D; ++j) sum[r][j] = Load(acc + r * acc_stride + d + 16 * j);
  }
  for (int t = t0; t < t1; ++t) {
    F16 value[D];
    RC_UNROLL
    for (int j = 0; j < D; ++j)
      value[j] =
          tail < 16 && j == D - 1 ? LoadFirst(v[t] + d + 16 * j, tail) : Load(v[t] + d + 16 * j);
    RC_UNROLL
    for (int r = 0; r < R; ++r) {
      const F16 weight = Set1(p[r * kAttentionSlice + t]);
      RC_UNROLL
      for (int j = 0; j < D; ++j) sum[r][j] = Fma(weight, value[j], sum[r][j]);
    }
  }
  RC_UNROLL
  for (int r = 0; r < R; ++r) {
    RC_UNROLL
    for (int j = 0; j < D; ++j) Store(acc + r * acc_stride + d + 16 * j, sum[r][j]);
  }
}

template <int R>
void AccumulateRows(const float* p, const float* const* v, int t0, int t1, int head_dim, float* acc,
                    int64_t acc_stride) {
  if (t0 >= t1) return;
  int d = 0;
  for (; d + 16 * kAccumulateVectors <= head_dim; d += 16 * kAccumulateVectors)
    AccumulateValues<R, kAccumulateVectors>(p, v, t0, t1, d, 16, acc, acc_stride);
  for (; d < head_dim; d += 16)
    AccumulateValues<R, 1>(p, v, t0, t1, d, Smaller(16, head_dim - d), acc, acc_stride);
}

/// Asks for what is needed after the scores: token t of V here and of K in the next slice.
RC_LANE void PrefetchToken(const AttentionSliceArgs& a, int t) {
  for (int d = 0; d < a.head_dim; d += 16) Prefetch(a.v[t] + d);
  if (t < a.next_begin || t >= a.next_end) return;
  for (int d = 0; d < a.head_dim; d += 16) Prefetch(a.next_k[t] + d);
}

void AttentionSlice(const AttentionSliceArgs& a) {
  int first = kAttentionSlice, last = 0;          // seen by some query
  int all_first = 0, all_last = kAttentionSlice;  // seen by every query
  for (int r = 0; r < a.num_queries; ++r) {
    if (a.begin[r] < a.end[r]) {
      first = Smaller(first, a.begin[r]);
      last = Larger(last, a.end[r]);
    }
    all_first = Larger(all_first, a.begin[r]);
    all_last = Smaller(all_last, a.end[r]);
  }
  if (first >= last) return;

  float p[kRowBlock * kAttentionSlice];
  ForRowTiles(a.num_queries, [&]<int R>(int r) {
    constexpr int kColumns = TileColumns(R);
    const float* q = a.q + 16 * r;
    float* out = p + r * kAttentionSlice;
    int t = first;
    for (; t + kColumns <= last; t += kColumns) {
      if (r == 0)
        for (int i = t; i < t + kColumns; ++i) PrefetchToken(a, i);
      Tile<R, kColumns, false>(q, 16 * a.num_queries, a.head_dim, a.k + t, out + t,
                               kAttentionSlice);
    }
    for (; t < last; ++t)
      Tile<R, 1, false>(q, 16 * a.num_queries, a.head_dim, a.k + t, out + t, kAttentionSlice);
  });
  for (int r = 0; r < a.num_queries; ++r) {
    float* s = p + r * kAttentionSlice;
    const int begin = a.begin[r], end = Larger(a.begin[r], a.end[r]);
    for (int t = 0; t < begin; ++t) s[t] = -kInfinity;
    for (int t = begin; t < end; ++t) s[t] *= a.scale;
    for (int t = end; t < kAttentionSlice; ++t) s[t] = -kInfinity;
    if (begin >= end) continue;
    F16 highest = Load(s);
    for (int t = 16; t < kAttentionSlice; t += 16) highest = Max(highest, Load(s + t));
    const float max = FoldMax(highest);
    F16 sum = Set1(0);
    for (int t = 0; t < kAttentionSlice; t += 16) {
      const F16 e = Exp(Sub(Load(s + t), Set1(max)));
      sum = Add(sum, e);
      Store(s + t, e);
    }
    a.max[r] = max;
    a.sum[r] = Fold(sum);
    float* acc = a.acc + r * a.acc_stride;
    for (int d = 0; d < a.head_dim; d += 16) Store(acc + d, Set1(0));
  }

  // Tokens that only some queries see come in the same order, one query at a time, so that a query
  // never touches a value that it does not see.
  const bool common = all_first < all_last;
  for (int r = 0; r < a.num_queries; ++r)
    AccumulateRows<1>(p + r * kAttentionSlice, a.v, a.begin[r], common ? all_first : a.end[r],
                      a.head_dim, a.acc + r * a.acc_stride, a.acc_stride);
  if (!common) return;
  for (int r = 0; r < a.num_queries;) {
    const float* weights = p + r * kAttentionSlice;
    float* acc = a.acc + r * a.acc_stride;
    if (kAccumulateRows >= 4 && a.num_queries - r >= 4) {
      AccumulateRows<kAccumulateRows>(weights, a.v, all_first, all_last, a.head_dim, acc,
                                      a.acc_stride);
      r += kAccumulateRows;
    } else if (kAccumulateRows >= 3 && a.num_queries - r == 3) {
      AccumulateRows<kAccumulateRows >= 3 ? 3 : 1>(weights, a.v, all_first, all_last, a.head_dim,
                                                   acc, a.acc_stride);
      r += 3;
    } else if (kAccumulateRows >= 2 && a.num_queries - r >= 2) {
      AccumulateRows<kAccumulateRows >= 2 ? 2 : 1>(weights, a.v, all_first, all_last, a.head_dim,
                                                   acc, a.acc_stride);
      r += 2;
    } else {
      AccumulateRows<1>(weights, a.v, all_first, all_last, a.head_dim, acc, a.acc_stride);
      r += 1;
    }
  }
  for (int r = 0; r < a.num_queries; ++r)
    AccumulateRows<1>(p + r * kAttentionSlice, a.v, all_last, a.end[r], a.head_dim,
                      a.acc + r * a.acc_stride, a.acc_stride);
}

void AttentionFold(float* max, float* sum, float* acc, float max2, float sum2, const float* acc2,
                   int32_t head_dim) {
  const float highest = *max > max2 ? *max : max2;
  const F16 keep = Set1(ExpScalar(*max - highest)), take = Set1(ExpScalar(max2 - highest));
  float lanes[16];
  Store(lanes, Fma(Set1(sum2), take, Mul(Set1(*sum), keep)));
  *sum = lanes[0];
  *max = highest;
  for (int d = 0; d < head_dim; d += 16)
    Store(acc + d, Fma(Load(acc2 + d), take, Mul(Load(acc + d), keep)));
}

/// Sixteen values from `p`, those beyond the first n replaced by -infinity.
RC_LANE F16 LoadLow(const float* p, int n) {
  if (n >= 16) return Load(p);
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = i < n ? p[i] : -kInfinity;
  return Load(lanes);
}

SliceStats SliceStatistics(const float* logits, int32_t n, float scale) {
  F16 highest = Set1(kLowest);
  for (int i = 0; i < n; i += 16) highest = Max(LoadLow(logits + i, n - i), highest);
  const float max = FoldMax(highest);
  if (!(max > kLowest)) {
    // All are masked, or not a number: that must not vanish from the sum over all slices.
    SliceStats none = {kLowest, 0, -1};
    for (int i = 0; i < n; ++i)
      if (logits[i] != logits[i]) none.sum = logits[i];
    return none;
  }
  SliceStats stats = {max * scale, 0, -1};
  const F16 top = Set1(stats.max), factor = Set1(scale);
  F16 sum = Set1(0);
  for (int i = 0; i < n; i += 16) {
    const F16 v = LoadLow(logits + i, n - i);
    if (stats.argmax < 0) {
      const uint32_t mask = MaskGreaterEqual(v, Set1(max));
      if (mask != 0) stats.argmax = i + __builtin_ctz(mask);
    }
    sum = Add(sum, Exp(Sub(Mul(v, factor), top)));
  }
  stats.sum = Fold(sum);
  return stats;
}

/// Philox4x32-10 at counters (first / 4 + lane, position, 0, 0), the 64 words in order of id.
RC_LANE void Noise64(uint64_t seed, uint32_t position, int32_t first_id, U16 words[4]) {
  // So ordered that the transpose below leaves the words in order of id.
  static const uint32_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  U16 c0 = AddU(LoadU(kOrder), Set1U(static_cast<uint32_t>(first_id) / 4));
  U16 c1 = Set1U(position), c2 = Set1U(0), c3 = Set1U(0);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U16 hi0, lo0, hi1, lo1;
    MulHiLo(c0, kPhiloxM0, hi0, lo0);
    MulHiLo(c2, kPhiloxM1, hi1, lo1);
    c0 = XorU(XorU(hi1, c1), Set1U(k0));
    c2 = XorU(XorU(hi0, c3), Set1U(k1));
    c1 = lo1;
    c3 = lo0;
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
  TransposeGroups(words);
}

/// Score of an id = x + Gumbel(noise). Its noise is turned into a Gumbel number only where an upper
/// bound could reach the best score: with q = ~word, 1 - u >= q 2^-32, so
/// g = -log(-log u) <= -log(1 - u) <= (32 - log2 q) ln 2, and the bits of float(q) read as an
/// integer give log2 q from below.
void Draw(DrawArgs& a) {
  const F16 factor = Set1(a.scale);
  const F16 slope = Set1(-0.693147181f * 0x1p-23f);
  // 24 - log2(q >> 8) = 24 + 127 - bits 2^-23; rounding is covered by the last term.
  const F16 offset = Set1((24 + 127) * 0.693147181f + 1e-3f);
  float buffer[64];
  for (int i = 0; i < a.count; i += 64) {
    const float* logits = a.logits + i;
    if (a.count - i < 64) {
      for (int j = 0; j < 64; ++j) buffer[j] = i + j < a.count ? logits[j] : -kInfinity;
      logits = buffer;
    }
    F16 x[4];
    for (int j = 0; j < 4; ++j) x[j] = Mul(Load(logits + 16 * j), factor);
    const F16 highest = Max(Max(x[0], x[1]), Max(x[2], x[3]));
    if (MaskGreaterEqual(Add(highest, Set1(kMaxGumbel)), Set1(a.best)) == 0) continue;
    U16 words[4];
    Noise64(a.seed, a.position, a.first_id + i, words);
    for (int j = 0; j < 4; ++j) {
      const U16 q = ShiftRight<8>(XorU(words[j], Set1U(0xffffffff)));
      const F16 bound = Fma(ToFloat(Bits(ToFloat(q))), slope, offset);
      uint32_t mask = MaskGreaterEqual(Add(x[j], bound), Set1(a.best));
      if (mask == 0) continue;
      float values[16];
      uint32_t noise[16];
      Store(values, x[j]);
      StoreU(noise, words[j]);
      for (; mask != 0; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        const int32_t id = a.first_id + i + 16 * j + lane;
        if (!(values[lane] > kLowest)) continue;
        const float score = values[lane] + Gumbel(noise[lane]);
        if (score > a.best || (score == a.best && (a.best_id < 0 || id < a.best_id))) {
          a.best = score;
          a.best_id = id;
        }
      }
    }
  }
}

/// DigestMix and DigestKey of kernels/digest.h, again because of their linkage.
RC_LANE uint64_t MixedWord(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t Digest(const void* words, int64_t count, uint64_t key) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15ull;
  const auto* at = static_cast<const unsigned char*>(words);
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i, key += kStep) {
    uint64_t word;
    __builtin_memcpy(&word, at + 8 * i, 8);
    sum += MixedWord(word ^ key);
  }
  return sum;
}

}  // namespace
}  // namespace rollcast::cpu
