// ProjectAdd and MlpInput against double-precision references.
#include <string>
#include <vector>

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
    const DeviceArray<float> x_device(*backend, x), hidden_device(*backend, hidden);
    backend->ProjectAdd(
        {&batch.batch, x_device.data(), c.k, weight.view, bias.view, hidden_device.data()});
    std::vector<double> expected(hidden.begin(), hidden.end());
    for (int r = 0; r < c.rows; ++r)
      for (int j = 0; active[r] && j < c.n; ++j)
        expected[r * c.n + j] += Dot(&x[r * c.k], &weight.exact[j * c.k], c.k) +
                                 (c.bias ? static_cast<double>(bias.exact[j]) : 0.0);
    EXPECT_TRUE(Near(hidden_device.Get(), expected, 2e-5));
  }
}

TEST_P(LinearTest, RowsDoNotDependOnTheBatch) {
  for (int k : {17, 100, 896}) {
    const int n = 51, most = 33;
    const std::vector<float> x = random.Normal(most * k);
    const Weight weight(*backend, random.Normal(n * k), {n, k}, DType::kBF16);
    const DeviceArray<float> x_device(*backend, x);
    std::vector<float> alone;
    for (int r = 0; r < most; ++r) {
      TestBatch batch(*backend, {0}, {0});
      const DeviceArray<float> out(*backend, n, 0.0f);
      backend->ProjectAdd(
          {&batch.batch, x_device.data() + r * k, k, weight.view, TensorView(), out.data()});
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
    const DeviceArray<float> hidden_device(*backend, hidden), out(*backend, c.rows * c.n, -7.0f);
    backend->MlpInput({&batch.batch, hidden_device.data(), c.k, norm.view, 1e-5f, weight.view,
                       bias.view, c.n, out.data()});
    std::vector<double> expected(c.rows * c.n, -7.0);
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
    EXPECT_TRUE(Near(out.Get(), expected, 3e-5));
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
  const DeviceArray<float> hidden(*backend, 1, 1.0f), out(*backend, n, kPoison);
  backend->MlpInput(
      {&batch.batch, hidden.data(), 1, norm.view, 1e-5f, weight.view, bias.view, n, out.data()});
  std::vector<double> expected;
  for (float g : gates) expected.push_back(g / (1 + std::exp(-static_cast<double>(g))));
  // exp saturates at exp(88): what should be zero is then below 1e-7.
  EXPECT_TRUE(Near(out.Get(), expected, 1e-6));
}

TEST_P(LinearTest, WrongShapesAreRefused) {
  TestBatch batch(*backend, {0}, {0});
  const Weight weight(*backend, random.Normal(12), {3, 4}, DType::kF32);
  const DeviceArray<float> x(*backend, 5, 0.0f), hidden(*backend, 5, 0.0f);
  EXPECT_THROW(
      backend->ProjectAdd({&batch.batch, x.data(), 5, weight.view, TensorView(), hidden.data()}),
      CheckFailure);
  TensorView ints = weight.view;
  ints.dtype = DType::kI32;
  EXPECT_THROW(backend->ProjectAdd({&batch.batch, x.data(), 4, ints, TensorView(), hidden.data()}),
               CheckFailure);
}

RC_FOR_ALL_DEVICES(LinearTest);

}  // namespace
}  // namespace rollcast
