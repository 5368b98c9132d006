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
      : k(backend, k_values), v(backend, v_values) {
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
  DeviceArray<float> k, v;
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
        Case{64, 2, 1, 24, 0, 64, true, true}}) {
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
                std::vector<float>(kv_size, -3.0f), std::vector<float>(kv_size, -3.0f));
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
        sin_device(*backend, sin), q(*backend, rows * c.heads * c.dim, -9.0f);

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

    std::vector<double> q_expected(q.size(), -9.0), k_expected(kv_size, -3.0),
        v_expected(kv_size, -3.0);
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
    EXPECT_TRUE(Near(q.Get(), q_expected, 3e-5));
    EXPECT_TRUE(Near(pages.k.Get(), k_expected, 3e-5));
    EXPECT_TRUE(Near(pages.v.Get(), v_expected, 3e-5));
  }
}

struct AttentionCase {
  int heads, kv_heads, dim, page_size, window;
};

class AttentionSetup {
 public:
  AttentionSetup(Backend& backend, Random& random, const AttentionCase& c, int max_context,
                 const std::vector<int32_t>& written)
      : c_(c), slots_(backend, static_cast<int>(written.size()), max_context, c.page_size) {
    const size_t size = static_cast<size_t>(slots_.num_pages) * c.page_size * c.kv_heads * c.dim;
    // Only tokens that have been written hold numbers.
    k_.assign(size, kPoison);
    v_.assign(size, kPoison);
    table_ = slots_.page_table().Get();
    for (size_t s = 0; s < written.size(); ++s)
      for (int p = 0; p < written[s]; ++p)
        for (int h = 0; h < c.kv_heads; ++h) {
          const std::vector<float> k = random.Normal(c.dim), v = random.Normal(c.dim);
          std::copy(k.begin(), k.end(), k_.begin() + Token(static_cast<int>(s), h, p));
          std::copy(v.begin(), v.end(), v_.begin() + Token(static_cast<int>(s), h, p));
        }
    pages_ = std::make_unique<Pages>(backend, 1, slots_.num_pages, c.page_size, c.kv_heads, c.dim,
                                     k_, v_);
  }

  std::vector<float> Run(Backend& backend, const std::vector<int32_t>& position,
                         const std::vector<int32_t>& slot, const std::vector<float>& q) {
    TestBatch batch(backend, position, slot);
    const DeviceArray<float> q_device(backend, q), out(backend, q.size(), -5.0f);
    backend.Attention({&batch.batch, &slots_.state, &pages_->kv, 0, c_.heads, 0.3f, c_.window,
                       q_device.data(), out.data()});
    return out.Get();
  }

  std::vector<double> Reference(const std::vector<int32_t>& position,
                                const std::vector<int32_t>& slot, const std::vector<float>& q) {
    std::vector<double> out(q.size(), -5.0);
    const int group = c_.heads / c_.kv_heads;
    for (size_t r = 0; r < position.size(); ++r) {
      for (int h = 0; position[r] >= 0 && h < c_.heads; ++h) {
        const size_t at = (r * c_.heads + h) * c_.dim;
        const int first = c_.window > 0 ? std::max(0, position[r] - c_.window + 1) : 0;
        std::vector<double> score;
        double max = -1e300, sum = 0;
        for (int p = first; p <= position[r]; ++p) {
          const size_t k = Token(slot[r], h / group, p);
          double dot = 0;
          for (int d = 0; d < c_.dim; ++d) dot += static_cast<double>(q[at + d]) * k_[k + d];
          score.push_back(dot * 0.3);
          max = std::max(max, score.back());
        }
        for (double& s : score) sum += s = std::exp(s - max);
        for (int d = 0; d < c_.dim; ++d) {
          out[at + d] = 0;
          for (int p = first; p <= position[r]; ++p)
            out[at + d] += score[p - first] / sum * v_[Token(slot[r], h / group, p) + d];
        }
      }
    }
    return out;
  }

 private:
  size_t Token(int slot, int kv_head, int p) const {
    const size_t page = table_[slot * slots_.state.max_pages + p / c_.page_size];
    return ((page * c_.kv_heads + kv_head) * c_.page_size + p % c_.page_size) * c_.dim;
  }

  AttentionCase c_;
  TestSlots slots_;
  std::vector<int32_t> table_;
  std::vector<float> k_, v_;
  std::unique_ptr<Pages> pages_;
};

TEST_P(AttentionTest, MatchesReferenceAndDoesNotDependOnTheBatch) {
  for (const AttentionCase& c : {AttentionCase{4, 4, 16, 16, 0}, AttentionCase{9, 3, 64, 16, 0},
                                 AttentionCase{8, 2, 80, 1, 0}, AttentionCase{7, 1, 96, 64, 0},
                                 AttentionCase{3, 1, 128, 16, 40}, AttentionCase{2, 2, 256, 16, 64},
                                 AttentionCase{16, 1, 20, 16, 7}, AttentionCase{3, 1, 17, 64, 1}}) {
    SCOPED_TRACE(StrCat(c.heads, "/", c.kv_heads, " dim ", c.dim, " page ", c.page_size, " window ",
                        c.window));
    // Slot 0: a chunk across two slice boundaries; slot 1: one decode row; slot 2: the first token;
    // slot 3: a decode row far in.
    AttentionSetup setup(*backend, random, c, 400, {135, 64, 1, 390});
    std::vector<int32_t> position, slot;
    for (int p = 50; p < 135; ++p) {
      position.push_back(p);
      slot.push_back(0);
    }
    for (const auto& [p, s] : {std::pair{63, 1}, {-1, -1}, {0, 2}, {389, 3}}) {
      position.push_back(p);
      slot.push_back(s);
    }
    const size_t width = static_cast<size_t>(c.heads) * c.dim;
    const std::vector<float> q = random.Normal(position.size() * width);
    const std::vector<float> out = setup.Run(*backend, position, slot, q);
    EXPECT_TRUE(Near(out, setup.Reference(position, slot, q), 1e-5));
    for (size_t r : {size_t{0}, size_t{13}, size_t{14}, size_t{40}, position.size() - 1}) {
      const std::vector<float> q_row(q.begin() + r * width, q.begin() + (r + 1) * width);
      EXPECT_TRUE(SameBits(setup.Run(*backend, {position[r]}, {slot[r]}, q_row),
                           {out.begin() + r * width, out.begin() + (r + 1) * width}))
          << "row " << r;
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const AttentionCase c = {1, 1, 16, 16, 0};
  AttentionSetup setup(*backend, random, c, 200, {200});
  const std::vector<float> q = random.Normal(16, 500);
  const std::vector<float> out = setup.Run(*backend, {199}, {0}, q);
  // One key wins outright; scores carry an absolute error of about 1e-4 here.
  EXPECT_TRUE(Near(out, setup.Reference({199}, {0}, q), 1e-3));
}

TEST_P(AttentionTest, CopyPages) {
  const std::vector<float> k = random.Normal(2 * 5 * 4 * 2 * 3), v = random.Normal(k.size());
  Pages pages(*backend, 2, 5, 4, 2, 3, k, v);
  const int32_t from[] = {0, 3}, to[] = {4, 1};
  backend->CopyPages(pages.kv, from, to, 2);
  std::vector<float> k_expected = k, v_expected = v;
  const int page = 4 * 2 * 3;
  for (int layer = 0; layer < 2; ++layer)
    for (int i = 0; i < 2; ++i)
      for (int e = 0; e < page; ++e) {
        k_expected[(layer * 5 + to[i]) * page + e] = k[(layer * 5 + from[i]) * page + e];
        v_expected[(layer * 5 + to[i]) * page + e] = v[(layer * 5 + from[i]) * page + e];
      }
  EXPECT_TRUE(SameBits(pages.k.Get(), k_expected));
  EXPECT_TRUE(SameBits(pages.v.Get(), v_expected));
  const int32_t beyond = 5;
  EXPECT_THROW(backend->CopyPages(pages.kv, from, &beyond, 1), CheckFailure);
}

RC_FOR_ALL_DEVICES(AttentionTest);

}  // namespace
}  // namespace rollcast
