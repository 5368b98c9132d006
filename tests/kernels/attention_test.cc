// AttentionInput, Attention and CopyPages against double-precision references.
#include <string>
#include <vector>

#include "tests/kernels/op_fixture.h"

namespace rollcast {
namespace {

using AttentionTest = OpTest;

struct Pages {
  Pages(Backend& backend, int layers, int num_pages, int page_size, int kv_heads, int dim,
        const std::vector<float>& k_values, const std::vector<float>& v_values)
      : k(backend, k_values, backend.kv_dtype()), v(backend, v_values, backend.kv_dtype()) {
    kv.dtype = backend.kv_dtype();
    kv.k = k.data();
    kv.v = v.data();
    kv.num_layers = layers;
    kv.num_pages = num_pages;
    kv.page_size = page_size;
    kv.num_kv_heads = kv_heads;
    kv.head_dim = dim;
  }
  /// Elements before those of one token in one kv head.
  size_t Offset(int layer, int page, int kv_head, int offset) const {
    return (((static_cast<size_t>(layer) * kv.num_pages + page) * kv.num_kv_heads + kv_head) *
                kv.page_size +
            offset) *
           kv.head_dim;
  }

  KvPages kv;
  Numbers k, v;
};

std::vector<double> Normed(const std::vector<double>& x, const std::vector<float>& w, double eps) {
  double squares = 0;
  for (double v : x) squares += v * v;
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i)
    y.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps) * w[i]);
  return y;
}

TEST_P(AttentionTest, InputWritesRotatedKvAndQ) {
  struct Case {
    int hidden, heads, kv_heads, dim, rotary, page_size;
    bool bias, qk_norm;
  };
  for (const Case& c :
       {Case{100, 3, 1, 16, 16, 1, true, false}, Case{17, 4, 4, 80, 32, 16, false, true},
        Case{64, 2, 1, 24, 0, 64, true, true}, Case{136, 7, 1, 128, 128, 16, true, false},
        Case{72, 6, 3, 96, 48, 8, false, true}, Case{40, 3, 3, 17, 10, 16, true, true}}) {
    SCOPED_TRACE(StrCat("hidden ", c.hidden, " dim ", c.dim));
    const int layers = 2, layer = 1, max_context = 70, half = c.rotary / 2;
    TestSlots slots(*backend, 3, max_context, c.page_size);
    // Slot 2: positions 66..69; slot 0: position 5; between them an inactive row.
    const std::vector<int32_t> position = {66, 67, 68, 69, -1, 5};
    const std::vector<int32_t> slot = {2, 2, 2, 2, -1, 0};
    const int rows = 6, n = (c.heads + 2 * c.kv_heads) * c.dim;
    TestBatch batch(*backend, position, slot);
    const size_t kv_size =
        static_cast<size_t>(layers) * slots.num_pages * c.page_size * c.kv_heads * c.dim;
    Pages pages(*backend, layers, slots.num_pages, c.page_size, c.kv_heads, c.dim,
                std::vector<float>(kv_size, kPoison), std::vector<float>(kv_size, kPoison));
    const std::vector<float> hidden = random.Normal(rows * c.hidden, 2);
    const Weight norm(*backend, random.Normal(c.hidden, 0.3f, 1), {c.hidden}, DType::kF32);
    const Weight qkv(*backend, random.Normal(n * c.hidden, 0.3f), {n, c.hidden}, DType::kBF16);
    Weight bias, q_norm, k_norm;
    if (c.bias) bias = Weight(*backend, random.Normal(n), {n}, DType::kBF16);
    if (c.qk_norm) {
      q_norm = Weight(*backend, random.Normal(c.dim, 0.3f, 1), {c.dim}, DType::kBF16);
      k_norm = Weight(*backend, random.Normal(c.dim, 0.3f, 1), {c.dim}, DType::kBF16);
    }
    const std::vector<float> cos = random.Normal(max_context * half + 1);
    const std::vector<float> sin = random.Normal(max_context * half + 1);
    const DeviceArray<float> hidden_device(*backend, hidden), cos_device(*backend, cos),
        sin_device(*backend, sin);
    const Numbers q = Poisoned(rows * c.heads * c.dim);

    AttentionInputArgs args = {};
    args.batch = &batch.batch;
    args.slots = &slots.state;
    args.kv = &pages.kv;
    args.layer = layer;
    args.hidden = hidden_device.data();
    args.hidden_size = c.hidden;
    args.num_heads = c.heads;
    args.num_kv_heads = c.kv_heads;
    args.head_dim = c.dim;
    args.norm = norm.view;
    args.rms_eps = 1e-6f;
    args.qkv = qkv.view;
    args.qkv_bias = bias.view;
    args.q_norm = q_norm.view;
    args.k_norm = k_norm.view;
    args.rope = {cos_device.data(), sin_device.data(), c.rotary};
    args.q = q.data();
    backend->AttentionInput(args);

    std::vector<double> q_expected(q.size(), kPoison), k_expected(kv_size, kPoison),
        v_expected(kv_size, kPoison);
    const std::vector<int32_t> table = slots.page_table().Get();
    for (int r = 0; r < rows; ++r) {
      if (position[r] < 0) continue;
      const std::vector<double> x = Normed(
          {hidden.begin() + r * c.hidden, hidden.begin() + (r + 1) * c.hidden}, norm.exact, 1e-6);
      const int page = table[slot[r] * slots.state.max_pages + position[r] / c.page_size];
      const auto token = [&](int kv_head) {
        return pages.Offset(layer, page, kv_head, position[r] % c.page_size);
      };
      for (int h = 0; h < c.heads + 2 * c.kv_heads; ++h) {
        std::vector<double> y(c.dim);
        for (int d = 0; d < c.dim; ++d) {
          y[d] = c.bias ? bias.exact[h * c.dim + d] : 0;
          for (int i = 0; i < c.hidden; ++i)
            y[d] += x[i] * qkv.exact[(h * c.dim + d) * c.hidden + i];
        }
        const bool is_q = h < c.heads, is_v = h >= c.heads + c.kv_heads;
        if (!is_v && c.qk_norm) y = Normed(y, is_q ? q_norm.exact : k_norm.exact, 1e-6);
        for (int i = 0; !is_v && i < half; ++i) {
          const double a = y[i], b = y[i + half];
          y[i] = a * cos[position[r] * half + i] - b * sin[position[r] * half + i];
          y[i + half] = b * cos[position[r] * half + i] + a * sin[position[r] * half + i];
        }
        double* to = is_q   ? &q_expected[(r * c.heads + h) * c.dim]
                     : is_v ? &v_expected[token(h - c.heads - c.kv_heads)]
                            : &k_expected[token(h - c.heads)];
        std::copy(y.begin(), y.end(), to);
      }
    }
    EXPECT_TRUE(Matches(*backend, q.Get(), q_expected, 3e-5, Precision::kRounded));
    EXPECT_TRUE(Matches(*backend, pages.k.Get(), k_expected, 3e-5, Precision::kRounded));
    EXPECT_TRUE(Matches(*backend, pages.v.Get(), v_expected, 3e-5, Precision::kRounded));
  }
}

struct AttentionCase {
  int heads, kv_heads, dim, page_size, window;
};

/// A backend for `rows` rows and segments, with pages for `sequences` sequences of max_context.
std::unique_ptr<Backend> Reserved(const BackendOptions& options, const AttentionCase& c, int rows,
                                  int sequences, int max_context) {
  OpLimits limits;
  limits.max_rows = limits.max_segments = limits.max_samples = rows;
  limits.hidden_size = limits.intermediate_size = limits.vocab_size = 64;
  limits.num_heads = c.heads;
  limits.num_kv_heads = c.kv_heads;
  limits.head_dim = c.dim;
  limits.page_size = c.page_size;
  limits.num_pages = sequences * max_context / c.page_size;
  limits.max_context = max_context;
  std::unique_ptr<Backend> backend = MakeBackend(options);
  backend->Reserve(limits);
  return backend;
}

/// Sequences whose KV is random numbers where it has been written and poison everywhere else.
class AttentionSetup {
 public:
  using Segment = SegmentBatch::Segment;

  /// Slot s has `written[s]` tokens; the pages of its first `shared` tokens are those of slot 0.
  AttentionSetup(Backend& backend, Random& random, const AttentionCase& c, int max_context,
                 const std::vector<int32_t>& written, int shared = 0)
      : c_(c), slots_(backend, static_cast<int>(written.size()), max_context, c.page_size) {
    const size_t size = static_cast<size_t>(slots_.num_pages) * c.page_size * c.kv_heads * c.dim;
    std::vector<float> k(size, kPoison), v(size, kPoison);
    table_ = slots_.page_table().Get();
    for (size_t s = 1; s < written.size(); ++s)
      std::copy_n(table_.begin(), shared / c.page_size,
                  table_.begin() + s * slots_.state.max_pages);
    slots_.page_table().Set(table_);
    for (size_t s = 0; s < written.size(); ++s)
      for (int p = s == 0 ? 0 : shared; p < written[s]; ++p)
        for (int h = 0; h < c.kv_heads; ++h) {
          const std::vector<float> one = random.Normal(c.dim), other = random.Normal(c.dim);
          std::copy(one.begin(), one.end(), k.begin() + Token(static_cast<int>(s), h, p));
          std::copy(other.begin(), other.end(), v.begin() + Token(static_cast<int>(s), h, p));
        }
    pages_ =
        std::make_unique<Pages>(backend, 1, slots_.num_pages, c.page_size, c.kv_heads, c.dim, k, v);
  }

  /// `q` is rounded to what the backend takes.
  std::vector<float> Run(Backend& backend, const std::vector<Segment>& segments,
                         std::vector<float>& q) {
    const SegmentBatch batch(backend, slots_, segments);
    position_ = batch.positions;
    slot_ = batch.row_slots;
    const Numbers q_device(backend, q, backend.activation_dtype()),
        out(backend, std::vector<float>(q.size(), kPoison), backend.activation_dtype());
    q = q_device.exact;
    backend.Attention({&batch.batch, &slots_.state, &pages_->kv, 0, c_.heads, kScale, c_.window,
                       q_device.data(), out.data()});
    return out.Get();
  }

  /// Of the last Run.
  std::vector<double> Reference(const std::vector<float>& q) const {
    const std::vector<float>&k_values = pages_->k.exact, &v_values = pages_->v.exact;
    std::vector<double> out(q.size(), kPoison);
    const int group = c_.heads / c_.kv_heads;
    for (size_t r = 0; r < position_.size(); ++r) {
      for (int h = 0; position_[r] >= 0 && h < c_.heads; ++h) {
        const size_t at = (r * c_.heads + h) * c_.dim;
        const int first = c_.window > 0 ? std::max(0, position_[r] - c_.window + 1) : 0;
        std::vector<double> score;
        double max = -1e300, sum = 0;
        for (int p = first; p <= position_[r]; ++p) {
          const float* k = &k_values[Token(slot_[r], h / group, p)];
          double dot = 0;
          for (int d = 0; d < c_.dim; ++d) dot += static_cast<double>(q[at + d]) * k[d];
          score.push_back(dot * kScale);
          max = std::max(max, score.back());
        }
        for (double& s : score) sum += s = std::exp(s - max);
        std::fill_n(out.begin() + at, c_.dim, 0.0);
        for (int p = first; p <= position_[r]; ++p) {
          const float* v = &v_values[Token(slot_[r], h / group, p)];
          const double weight = score[p - first] / sum;
          for (int d = 0; d < c_.dim; ++d) out[at + d] += weight * v[d];
        }
      }
    }
    return out;
  }

 private:
  static constexpr float kScale = 0.3f;

  size_t Token(int slot, int kv_head, int p) const {
    const size_t page = table_[slot * slots_.state.max_pages + p / c_.page_size];
    return ((page * c_.kv_heads + kv_head) * c_.page_size + p % c_.page_size) * c_.dim;
  }

  AttentionCase c_;
  TestSlots slots_;
  std::vector<int32_t> table_;
  std::vector<int32_t> position_, slot_;
  std::unique_ptr<Pages> pages_;
};

// Groups of 1, 2, 3, 4, 6, 7, 8 and 16 query heads, and of more; head sizes with a kernel of their
// own and without.
const AttentionCase kAttentionCases[] = {
    {4, 4, 16, 16, 0},   {9, 3, 64, 16, 0},   {8, 2, 80, 1, 0},   {7, 1, 96, 64, 0},
    {3, 1, 128, 16, 40}, {2, 2, 256, 16, 64}, {16, 1, 20, 16, 7}, {3, 1, 17, 64, 1},
    {4, 2, 128, 16, 0},  {12, 2, 128, 8, 70}, {16, 2, 64, 16, 0}, {14, 2, 64, 32, 130},
    {20, 1, 32, 16, 0},  {2, 1, 112, 16, 0},  {4, 1, 96, 16, 65}, {1, 1, 200, 16, 0}};

TEST_P(AttentionTest, MatchesReferenceAndDoesNotDependOnTheBatch) {
  for (const AttentionCase& c : kAttentionCases) {
    SCOPED_TRACE(StrCat(c.heads, "/", c.kv_heads, " dim ", c.dim, " page ", c.page_size, " window ",
                        c.window));
    // Slot 0: a chunk across two slice boundaries; slot 1: one decode row; slot 2: the first token;
    // slot 3: a decode row far in.
    AttentionSetup setup(*backend, random, c, 400, {135, 64, 1, 390});
    const size_t width = static_cast<size_t>(c.heads) * c.dim;
    std::vector<float> q = random.Normal(89 * width);
    const std::vector<float> out =
        setup.Run(*backend, {{0, 50, 85}, {1, 63, 1}, {-1, 0, 1}, {2, 0, 1}, {3, 389, 1}}, q);
    EXPECT_TRUE(Matches(*backend, out, setup.Reference(q), 1e-5, Precision::kRounded));
    const auto row = [&](const std::vector<float>& all, int r) {
      return std::vector<float>(all.begin() + r * width, all.begin() + (r + 1) * width);
    };
    for (int r : {0, 13, 14, 40, 88}) {
      std::vector<float> q_row = row(q, r);
      const SegmentBatch::Segment segment =
          r < 85 ? SegmentBatch::Segment{0, 50 + r, 1} : SegmentBatch::Segment{3, 389, 1};
      EXPECT_TRUE(SameBits(setup.Run(*backend, {segment}, q_row), row(out, r))) << "row " << r;
    }
    // Decode rows alone: a GPU spreads their slices.
    std::vector<float> decode_q(q.begin() + 85 * width, q.end());
    EXPECT_TRUE(
        SameBits(setup.Run(*backend, {{1, 63, 1}, {-1, 0, 1}, {2, 0, 1}, {3, 389, 1}}, decode_q),
                 {out.begin() + 85 * width, out.end()}));
  }
}

TEST_P(AttentionTest, ALongContextIsExactToItsEnd) {
  for (const AttentionCase& c : {AttentionCase{7, 1, 128, 16, 0}, AttentionCase{4, 2, 64, 32, 5000},
                                 AttentionCase{3, 1, 80, 64, 0}}) {
    SCOPED_TRACE(StrCat(c.heads, "/", c.kv_heads, " window ", c.window));
    const int max_context = 12288;
    const auto reserved = Reserved(ParseDevice(GetParam()), c, 64, 4, max_context);
    AttentionSetup setup(*reserved, random, c, max_context, {max_context, 8193, 4096, 2050});
    const std::vector<AttentionSetup::Segment> decode = {
        {0, max_context - 1, 1}, {1, 8192, 1}, {2, 4095, 1}, {3, 2049, 1}};
    const size_t width = static_cast<size_t>(c.heads) * c.dim;
    std::vector<float> q = random.Normal(decode.size() * width);
    const std::vector<float> out = setup.Run(*reserved, decode, q);
    EXPECT_TRUE(Matches(*reserved, out, setup.Reference(q), 1e-5, Precision::kRounded));
    // The same rows as the last of a prompt's chunk.
    std::vector<float> chunk_q = random.Normal(20 * width);
    std::copy_n(q.begin() + width, width, chunk_q.end() - width);
    const std::vector<float> chunk = setup.Run(*reserved, {{1, 8173, 20}}, chunk_q);
    EXPECT_TRUE(Matches(*reserved, chunk, setup.Reference(chunk_q), 1e-5, Precision::kRounded));
    EXPECT_TRUE(SameBits(std::vector<float>(chunk.end() - width, chunk.end()),
                         std::vector<float>(out.begin() + width, out.begin() + 2 * width)));
  }
}

// The list of slices that a GPU's decode works through has room for every sequence at its longest,
// however many share their pages, on both sides of the number from which sequences are no longer
// cut.
TEST_P(AttentionTest, ManySequencesShareAPrefix) {
  for (const AttentionCase& c :
       {AttentionCase{8, 8, 16, 16, 0}, AttentionCase{7, 7, 24, 8, 0},
        AttentionCase{12, 6, 32, 16, 100}, AttentionCase{8, 1, 64, 16, 0}}) {
    const int max_context = 320, shared = 256, most = 200;
    const auto reserved = Reserved(ParseDevice(GetParam()), c, most, most, max_context);
    for (int count : {5, 99, 100, 113, 114, 132, 133, most}) {
      SCOPED_TRACE(StrCat(count, " sequences of ", c.heads, "/", c.kv_heads));
      std::vector<int32_t> written;
      std::vector<SegmentBatch::Segment> segments;
      for (int s = 0; s < count; ++s) {
        written.push_back(s % 3 == 0 ? max_context : shared + 1 + s % 60);
        segments.push_back({s, written[s] - 1, 1});
      }
      AttentionSetup setup(*reserved, random, c, max_context, written, shared);
      std::vector<float> q = random.Normal(static_cast<size_t>(count) * c.heads * c.dim);
      const std::vector<float> out = setup.Run(*reserved, segments, q);
      EXPECT_TRUE(Matches(*reserved, out, setup.Reference(q), 1e-5, Precision::kRounded));
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const AttentionCase c = {1, 1, 16, 16, 0};
  AttentionSetup setup(*backend, random, c, 200, {200});
  std::vector<float> q = random.Normal(16, 500);
  const std::vector<float> out = setup.Run(*backend, {{0, 199, 1}}, q);
  // One key wins outright; scores carry an absolute error of about 1e-4 here.
  EXPECT_TRUE(Matches(*backend, out, setup.Reference(q), 1e-3, Precision::kRounded));
}

TEST_P(AttentionTest, CopyPages) {
  struct Case {
    int page_size, kv_heads, dim;
  };
  for (const Case& c : {Case{4, 2, 3}, Case{1, 1, 5}, Case{16, 8, 128}}) {
    const int page = c.page_size * c.kv_heads * c.dim;
    Pages pages(*backend, 2, 5, c.page_size, c.kv_heads, c.dim, random.Normal(2 * 5 * page),
                random.Normal(2 * 5 * page));
    const int32_t from[] = {0, 3}, to[] = {4, 1};
    backend->CopyPages(pages.kv, from, to, 2);
    std::vector<float> k_expected = pages.k.exact, v_expected = pages.v.exact;
    for (int layer = 0; layer < 2; ++layer)
      for (int i = 0; i < 2; ++i)
        for (int e = 0; e < page; ++e) {
          const int at = (layer * 5 + to[i]) * page + e, source = (layer * 5 + from[i]) * page + e;
          k_expected[at] = pages.k.exact[source];
          v_expected[at] = pages.v.exact[source];
        }
    EXPECT_TRUE(SameBits(pages.k.Get(), k_expected));
    EXPECT_TRUE(SameBits(pages.v.Get(), v_expected));
    const int32_t beyond = 5;
    EXPECT_THROW(backend->CopyPages(pages.kv, from, &beyond, 1), CheckFailure);
  }
}

RC_FOR_ALL_DEVICES(AttentionTest);

}  // namespace
}  // namespace rollcast
