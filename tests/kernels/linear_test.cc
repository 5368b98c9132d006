// ProjectAdd and MlpInput against double-precision references; large ones against the CPU backend.
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/linear_tiling.h"
#include "tests/kernels/op_fixture.h"

namespace rollcast {
namespace {

using LinearTest = OpTest;

/// Positions and slots of `rows` rows, every fifth one inactive.
TestBatch SomeInactive(Backend& backend, int rows, std::vector<bool>& active) {
  std::vector<int32_t> position, slot;
  active.clear();
  for (int i = 0; i < rows; ++i) {
    active.push_back(i % 5 != 3);
    position.push_back(active[i] ? i : -1);
    slot.push_back(active[i] ? 0 : -1);
  }
  return TestBatch(backend, position, slot);
}

double Dot(const float* x, const float* w, int k) {
  double sum = 0;
  for (int i = 0; i < k; ++i) sum += static_cast<double>(x[i]) * w[i];
  return sum;
}

std::vector<double> NormReference(const float* x, const std::vector<float>& weight, double eps) {
  const int n = static_cast<int>(weight.size());
  const double factor = 1 / std::sqrt(Dot(x, x, n) / n + eps);
  std::vector<double> y(n);
  for (int i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
  return y;
}

TEST_P(LinearTest, ProjectAdd) {
  struct Case {
    int rows, n, k;
    DType dtype;
    bool bias;
  };
  for (const Case& c :
       {Case{1, 1, 1, DType::kF32, false}, Case{3, 17, 17, DType::kBF16, true},
        Case{8, 50, 100, DType::kF16, true}, Case{13, 97, 896, DType::kBF16, false},
        Case{70, 33, 48, DType::kF32, true}, Case{9, 301, 15, DType::kF16, false}}) {
    SCOPED_TRACE(StrCat(c.rows, " x ", c.n, " x ", c.k));
    std::vector<bool> active;
    TestBatch batch = SomeInactive(*backend, c.rows, active);
    std::vector<float> x = random.Normal(c.rows * c.k), hidden = random.Normal(c.rows * c.n);
    for (int r = 0; r < c.rows; ++r)
      if (!active[r]) std::fill_n(x.begin() + r * c.k, c.k, kPoison);
    const Weight weight(*backend, random.Normal(c.n * c.k), {c.n, c.k}, c.dtype);
    Weight bias;
    if (c.bias) bias = Weight(*backend, random.Normal(c.n), {c.n}, c.dtype);
    const Numbers x_device = Activations(x);
    const DeviceArray<float> hidden_device(*backend, hidden);
    backend->ProjectAdd(
        {&batch.batch, x_device.data(), c.k, weight.view, bias.view, hidden_device.data()});
    std::vector<double> expected(hidden.begin(), hidden.end());
    for (int r = 0; r < c.rows; ++r)
      for (int j = 0; active[r] && j < c.n; ++j)
        expected[r * c.n + j] += Dot(&x_device.exact[r * c.k], &weight.exact[j * c.k], c.k) +
                                 (c.bias ? static_cast<double>(bias.exact[j]) : 0.0);
    EXPECT_TRUE(Matches(*backend, hidden_device.Get(), expected, 2e-5, Precision::kSummed));
  }
}

TEST_P(LinearTest, RowsDoNotDependOnTheBatch) {
  for (int k : {17, 100, 896}) {
    const int n = 51, most = 33;
    const Numbers x_device = Activations(random.Normal(most * k));
    const Weight weight(*backend, random.Normal(n * k), {n, k}, DType::kBF16);
    std::vector<float> alone;
    for (int r = 0; r < most; ++r) {
      TestBatch batch(*backend, {0}, {0});
      const DeviceArray<float> out(*backend, n, 0.0f);
      backend->ProjectAdd(
          {&batch.batch, x_device.data(r * k), k, weight.view, TensorView(), out.data()});
      const std::vector<float> row = out.Get();
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int rows = 1; rows <= most; ++rows) {
      TestBatch batch(*backend, std::vector<int32_t>(rows, 0), std::vector<int32_t>(rows, 0));
      const DeviceArray<float> out(*backend, rows * n, 0.0f);
      backend->ProjectAdd(
          {&batch.batch, x_device.data(), k, weight.view, TensorView(), out.data()});
      EXPECT_TRUE(SameBits(out.Get(), {alone.begin(), alone.begin() + rows * n})) << rows;
    }
  }
}

TEST_P(LinearTest, MlpInput) {
  struct Case {
    int rows, n, k;
    DType dtype;
    bool bias;
  };
  for (const Case& c : {Case{1, 5, 17, DType::kF32, true}, Case{6, 50, 100, DType::kBF16, false},
                        Case{67, 131, 64, DType::kF16, true}}) {
    SCOPED_TRACE(StrCat(c.rows, " x ", c.n, " x ", c.k));
    std::vector<bool> active;
    TestBatch batch = SomeInactive(*backend, c.rows, active);
    const std::vector<float> hidden = random.Normal(c.rows * c.k, 3);
    const Weight norm(*backend, random.Normal(c.k, 0.3f, 1), {c.k}, c.dtype);
    const Weight weight(*backend, random.Normal(2 * c.n * c.k, 0.5f), {2 * c.n, c.k}, c.dtype);
    Weight bias;
    if (c.bias) bias = Weight(*backend, random.Normal(2 * c.n), {2 * c.n}, c.dtype);
    const DeviceArray<float> hidden_device(*backend, hidden);
    const Numbers out = Poisoned(c.rows * c.n);
    backend->MlpInput({&batch.batch, hidden_device.data(), c.k, norm.view, 1e-5f, weight.view,
                       bias.view, c.n, out.data()});
    std::vector<double> expected(c.rows * c.n, kPoison);
    for (int r = 0; r < c.rows; ++r) {
      if (!active[r]) continue;
      const std::vector<double> x = NormReference(&hidden[r * c.k], norm.exact, 1e-5);
      for (int j = 0; j < c.n; ++j) {
        double gate = c.bias ? bias.exact[j] : 0, up = c.bias ? bias.exact[c.n + j] : 0;
        for (int i = 0; i < c.k; ++i) {
          gate += x[i] * weight.exact[j * c.k + i];
          up += x[i] * weight.exact[(c.n + j) * c.k + i];
        }
        expected[r * c.n + j] = gate / (1 + std::exp(-gate)) * up;
      }
    }
    EXPECT_TRUE(Matches(*backend, out.Get(), expected, 3e-5, Precision::kRounded));
  }
}

TEST_P(LinearTest, SiluOfExtremeGates) {
  // hidden = {x}, norm weight large: the gate takes the value of its bias.
  const std::vector<float> gates = {0, -0.5f, 20, -20, 87.5f, -87.5f, 200, -200, 3e30f, -3e30f};
  const int n = static_cast<int>(gates.size());
  TestBatch batch(*backend, {0}, {0});
  const Weight norm(*backend, {1}, {1}, DType::kF32);
  const Weight weight(*backend, std::vector<float>(2 * n, 0.0f), {2 * n, 1}, DType::kF32);
  std::vector<float> biases = gates;
  biases.resize(2 * n, 1.0f);
  const Weight bias(*backend, biases, {2 * n}, DType::kF32);
  const DeviceArray<float> hidden(*backend, 1, 1.0f);
  const Numbers out = Poisoned(n);
  backend->MlpInput(
      {&batch.batch, hidden.data(), 1, norm.view, 1e-5f, weight.view, bias.view, n, out.data()});
  std::vector<double> expected;
  for (int i = 0; i < n; ++i)
    expected.push_back(bias.exact[i] / (1 + std::exp(-static_cast<double>(bias.exact[i]))));
  // exp saturates at exp(88): what should be zero is then below 1e-7.
  EXPECT_TRUE(Near(out.Get(), expected, exact() ? 1e-6 : 4e-3));
}

TEST_P(LinearTest, WrongShapesAreRefused) {
  TestBatch batch(*backend, {0}, {0});
  const Weight weight(*backend, random.Normal(12), {3, 4}, DType::kF32);
  const Numbers x = Activations(std::vector<float>(5, 0.0f));
  const DeviceArray<float> hidden(*backend, 5, 0.0f);
  EXPECT_THROW(
      backend->ProjectAdd({&batch.batch, x.data(), 5, weight.view, TensorView(), hidden.data()}),
      CheckFailure);
  TensorView ints = weight.view;
  ints.dtype = DType::kI32;
  EXPECT_THROW(backend->ProjectAdd({&batch.batch, x.data(), 4, ints, TensorView(), hidden.data()}),
               CheckFailure);
}

RC_FOR_ALL_DEVICES(LinearTest);

/// Sizes for which a GPU cuts its products in all the ways it has, none a multiple of a tile; the
/// CPU backend is the reference.
class ProductTest : public OpTest {
 protected:
  struct Size {
    int n, k;
  };
  const std::vector<int> kRows = {1, 8, 9, 17, 33, 63, 64, 65, 129, 200, 2181};
  // More tiles than multiprocessors, by so much that a CTA takes 2, 3, 4, 5 of them; fewer; slices
  // over clusters of 8, 4, 2, and 4 with two tiles each.
  const std::vector<Size> kSizes = {{8520, 72}, {17000, 40}, {25400, 24},  {34000, 40}, {4300, 520},
                                    {200, 136}, {330, 1032}, {2140, 1040}, {2130, 8200}};

  std::unique_ptr<Backend> oracle = MakeBackend({"cpu", 2, "auto"});
};

TEST_P(ProductTest, ProjectAddOfEveryCut) {
  for (const auto& [n, k] : kSizes) {
    const Weight weight(*backend, random.Normal(static_cast<size_t>(n) * k, 0.5f), {n, k},
                        DType::kBF16);
    const Weight bias(*backend, random.Normal(n), {n}, DType::kBF16);
    const Weight oracle_weight(*oracle, weight.exact, {n, k}, DType::kBF16);
    const Weight oracle_bias(*oracle, bias.exact, {n}, DType::kBF16);
    for (int rows : kRows) {
      if (k > 8000 && rows > 64) continue;
      if (rows > 1000 && n > 200) continue;
      SCOPED_TRACE(StrCat(rows, " x ", n, " x ", k));
      std::vector<bool> active;
      TestBatch batch = SomeInactive(*backend, rows, active);
      TestBatch oracle_batch = SomeInactive(*oracle, rows, active);
      std::vector<float> x = random.Normal(rows * k);
      for (int r = 0; r < rows; ++r)
        if (!active[r]) std::fill_n(x.begin() + r * k, k, kPoison);
      const std::vector<float> hidden = random.Normal(static_cast<size_t>(rows) * n);
      const Numbers aligned = Activations(x), oracle_x(*oracle, aligned.exact, DType::kF32);
      x.insert(x.begin(), 0.0f);
      const Numbers unaligned = Activations(x);
      const DeviceArray<float> out(*backend, hidden), again(*backend, hidden),
          expected(*oracle, hidden);
      backend->ProjectAdd({&batch.batch, aligned.data(), k, weight.view, bias.view, out.data()});
      oracle->ProjectAdd({&oracle_batch.batch, oracle_x.data(), k, oracle_weight.view,
                          oracle_bias.view, expected.data()});
      const std::vector<float> e = expected.Get();
      EXPECT_TRUE(Matches(*backend, out.Get(), {e.begin(), e.end()}, 2e-5, Precision::kSummed));
      if (rows > 33) continue;
      // From an address that the fast kernels do not take: the same bits.
      backend->ProjectAdd(
          {&batch.batch, unaligned.data(1), k, weight.view, bias.view, again.data()});
      EXPECT_TRUE(SameBits(again.Get(), out.Get()));
    }
  }
}

TEST_P(ProductTest, MlpInputOfEveryCut) {
  for (const auto& [n, k] : {Size{4264, 72},
                             {8504, 40},
                             {12704, 24},
                             {17000, 40},
                             {104, 136},
                             {1064, 1040},
                             {164, 600},
                             {1501, 72}}) {
    const Weight norm(*backend, random.Normal(k, 0.3f, 1), {k}, DType::kBF16);
    const Weight weight(*backend, random.Normal(2 * static_cast<size_t>(n) * k, 0.2f), {2 * n, k},
                        DType::kBF16);
    const Weight bias(*backend, random.Normal(2 * n), {2 * n}, DType::kBF16);
    const Weight oracle_norm(*oracle, norm.exact, {k}, DType::kBF16);
    const Weight oracle_weight(*oracle, weight.exact, {2 * n, k}, DType::kBF16);
    const Weight oracle_bias(*oracle, bias.exact, {2 * n}, DType::kBF16);
    for (int rows : kRows) {
      if (rows > 1000 && n > 104) continue;
      SCOPED_TRACE(StrCat(rows, " x ", n, " x ", k));
      std::vector<bool> active;
      TestBatch batch = SomeInactive(*backend, rows, active);
      TestBatch oracle_batch = SomeInactive(*oracle, rows, active);
      std::vector<float> hidden = random.Normal(rows * k, 2);
      for (int r = 0; r < rows; ++r)
        if (!active[r]) std::fill_n(hidden.begin() + r * k, k, kPoison);
      const DeviceArray<float> x(*backend, hidden), oracle_x(*oracle, hidden);
      const size_t size = static_cast<size_t>(rows) * n;
      const Numbers out = Poisoned(size);
      const DeviceArray<float> expected(*oracle, size, kPoison);
      backend->MlpInput(
          {&batch.batch, x.data(), k, norm.view, 1e-5f, weight.view, bias.view, n, out.data()});
      oracle->MlpInput({&oracle_batch.batch, oracle_x.data(), k, oracle_norm.view, 1e-5f,
                        oracle_weight.view, oracle_bias.view, n, expected.data()});
      const std::vector<float> e = expected.Get();
      EXPECT_TRUE(Matches(*backend, out.Get(), {e.begin(), e.end()}, 3e-5, Precision::kRounded));
    }
  }
}

struct ProductSize {
  int rows, n, k;
};

/// Products of more than 64 rows that a GPU cuts in each of the ways it has for them.
const std::vector<ProductSize> kWideSizes = {
    {65, 208, 40},      {65, 208, 1544},    {2100, 1008, 776}, {900, 1552, 3080},
    {1100, 2576, 1032}, {1100, 2576, 1544}, {1100, 9232, 1032}};
/// Products whose slices it spreads over clusters.
const std::vector<ProductSize> kClusterSizes = {{8, 208, 1032},   {64, 208, 1032},
                                                {32, 2144, 520},  {64, 2144, 520},
                                                {16, 2128, 8200}, {64, 2144, 8200}};

TEST(ProductSizes, AreCutInEveryWay) {
  using Cut = std::tuple<int, int, int>;  // tokens, warpgroups, split
  const auto cuts = [](const std::vector<ProductSize>& sizes, cuda::Epilogue epilogue) {
    std::set<Cut> taken;
    for (const ProductSize& s : sizes) {
      const cuda::LinearTiling t = cuda::ChooseTiling(s.rows, s.n, s.k, epilogue);
      taken.insert({t.token_tile, t.warpgroups, t.split});
    }
    return taken;
  };
  const std::set<Cut> wide = {{64, 1, 1}, {64, 2, 1}, {64, 4, 1}, {128, 2, 1}, {128, 3, 1}};
  EXPECT_EQ(cuts(kWideSizes, cuda::Epilogue::kAdd), wide);
  EXPECT_EQ(cuts(kWideSizes, cuda::Epilogue::kGated), wide);
  EXPECT_EQ(cuts(kClusterSizes, cuda::Epilogue::kAdd),
            (std::set<Cut>{{8, 1, 8}, {16, 2, 4}, {32, 1, 4}, {64, 1, 2}, {64, 1, 8}, {64, 2, 4}}));
  EXPECT_EQ(cuts(kClusterSizes, cuda::Epilogue::kGated),
            (std::set<Cut>{{8, 1, 4}, {16, 2, 4}, {32, 1, 4}, {64, 1, 2}, {64, 1, 4}, {64, 2, 4}}));
}

/// However a product is cut, and by whichever kernel of the table: the same bits.
class ProductBits : public ProductTest {
 protected:
  void ExpectReferenceBits(const std::vector<ProductSize>& sizes) {
    BackendOptions options = ParseDevice(GetParam());
    options.profile = "reference";
    const auto reference = MakeBackend(options);
    const bool gpu = TakesCuda(options);
    for (const auto& [rows, n, k] : sizes) {
      if (!gpu && static_cast<double>(rows) * n * k > 1e8) continue;  // plain code is slow
      SCOPED_TRACE(StrCat(rows, " x ", n, " x ", k));
      std::vector<bool> active;
      TestBatch batch = SomeInactive(*backend, rows, active);
      const size_t size = static_cast<size_t>(rows) * n;
      const Weight weight(*backend, random.Normal(static_cast<size_t>(n) * k), {n, k},
                          DType::kBF16);
      const Weight bias(*backend, random.Normal(n), {n}, DType::kBF16);
      const Weight norm(*backend, random.Normal(k, 0.3f, 1), {k}, DType::kBF16);
      const std::vector<float> x = random.Normal(static_cast<size_t>(rows) * k);
      const Numbers activations = Activations(x);
      const DeviceArray<float> hidden(*backend, x), out(*backend, size, 1.0f),
          expected(*backend, size, 1.0f);
      const Numbers gated = Poisoned(size / 2), expected_gated = Poisoned(size / 2);
      backend->Synchronize();
      const auto run = [&](Backend& on, const DeviceArray<float>& to, const Numbers& gated_to) {
        on.ProjectAdd({&batch.batch, activations.data(), k, weight.view, bias.view, to.data()});
        on.MlpInput({&batch.batch, hidden.data(), k, norm.view, 1e-5f, weight.view, bias.view,
                     n / 2, gated_to.data()});
        on.Synchronize();
      };
      run(*backend, out, gated);
      run(*reference, expected, expected_gated);
      EXPECT_TRUE(SameBits(out.Get(), expected.Get()));
      EXPECT_TRUE(SameBits(gated.Get(), expected_gated.Get()));
    }
  }
};

TEST_P(ProductBits, WideProductsAreThoseOfTheReferenceKernel) { ExpectReferenceBits(kWideSizes); }

TEST_P(ProductBits, ClustersGiveThoseOfTheReferenceKernel) { ExpectReferenceBits(kClusterSizes); }

INSTANTIATE_TEST_SUITE_P(Devices, ProductBits, ::testing::ValuesIn(WithGpu({"cpu"})),
                         DeviceTestName);
INSTANTIATE_TEST_SUITE_P(Devices, ProductTest, ::testing::ValuesIn(WithGpu({"cpu"})),
                         DeviceTestName);

}  // namespace
}  // namespace rollcast
