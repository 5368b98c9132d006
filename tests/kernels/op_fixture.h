// What the op tests share: arrays on a device, random data, and the list of devices that one test
// body is run on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace rollcast {

/// Memory of a backend with `size` elements.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Backend& backend, const std::vector<T>& host)
      : backend_(&backend), size_(host.size()), buffer_(backend.Allocate(host.size() * sizeof(T))) {
    Set(host);
  }
  DeviceArray(Backend& backend, size_t size, T value)
      : DeviceArray(backend, std::vector<T>(size, value)) {}

  void Set(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    backend_->Upload(buffer_.data(), host.data(), size_ * sizeof(T));
  }
  std::vector<T> Get() const {
    std::vector<T> host(size_);
    backend_->Download(host.data(), buffer_.data(), size_ * sizeof(T));
    return host;
  }
  T* data() const { return buffer_.template as<T>(); }
  size_t size() const { return size_; }

 private:
  Backend* backend_ = nullptr;
  size_t size_ = 0;
  Buffer buffer_;
};

/// The nearest bfloat16 or float16 (ties to even; normal range) or the value itself.
inline uint16_t ToBFloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint16_t ToFloat16(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float a = std::fabs(x);
  if (a < 0x1p-14f) return sign | static_cast<uint16_t>(std::nearbyint(a * 0x1p24f));
  int exponent;
  const float fraction = std::frexp(a, &exponent);  // [0.5, 1)
  const int mantissa = static_cast<int>(std::nearbyint(fraction * 2048));
  return static_cast<uint16_t>(sign + ((exponent + 13) << 10) + mantissa);
}
inline float FromFloat16(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float a =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return h & 0x8000 ? -a : a;
}

/// A weight on the device, and what its elements are exactly.
struct Weight {
  Weight() = default;
  Weight(Backend& backend, const std::vector<float>& values, Shape shape, DType dtype)
      : exact(values) {
    std::vector<uint8_t> bytes(values.size() * SizeOf(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
        continue;
      }
      const uint16_t bits = dtype == DType::kBF16 ? ToBFloat16(values[i]) : ToFloat16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
      if (dtype == DType::kBF16) {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        std::memcpy(&exact[i], &wide, 4);
      } else {
        exact[i] = FromFloat16(bits);
      }
    }
    memory = DeviceArray<uint8_t>(backend, bytes);
    view = TensorView{memory.data(), dtype, shape};
  }

  std::vector<float> exact;
  DeviceArray<uint8_t> memory;
  TensorView view;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// Close to normal: the sum of four uniform numbers. Large weights are made with it.
  std::vector<float> Normal(size_t n, float scale = 1, float mean = 0) {
    std::vector<float> v(n);
    for (float& x : v) {
      const uint64_t bits = engine_();
      const float sum = static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                           (bits >> 32 & 0xffff) + (bits >> 48));
      x = mean + scale * (sum * 0x1p-16f - 2) * 1.7320508f;
    }
    return v;
  }
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(engine_); }

 private:
  std::mt19937_64 engine_;
};

inline const float kPoison = std::numeric_limits<float>::quiet_NaN();

/// True when all bits are equal (NaN equals itself).
template <class T>
::testing::AssertionResult SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " elements";
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure()
             << "element " << i << ": " << a[i] << " against " << b[i];
  return ::testing::AssertionSuccess();
}

/// Every element within `tolerance` * (1 + |expected|).
inline ::testing::AssertionResult Near(const std::vector<float>& actual,
                                       const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure()
           << actual.size() << " against " << expected.size() << " elements";
  for (size_t i = 0; i < actual.size(); ++i)
    if (!(std::abs(actual[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i]))))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << actual[i] << ", expected " << expected[i];
  return ::testing::AssertionSuccess();
}

/// "cpu:avx2:3" = device, instruction set, threads.
inline BackendOptions ParseDevice(const std::string& text) {
  BackendOptions options;
  const size_t a = text.find(':');
  options.device = text.substr(0, a);
  if (a == std::string::npos) return options;
  const size_t b = text.find(':', a + 1);
  options.isa = text.substr(a + 1, b - a - 1);
  if (b != std::string::npos) options.threads = std::stoi(text.substr(b + 1));
  return options;
}

/// Devices of this machine that op tests run on, plain CPU code on one thread first.
inline std::vector<std::string> TestDevices() {
  std::vector<std::string> devices;
  for (const char* isa : {"plain", "avx2", "avx512"}) {
    const std::string device = std::string("cpu:") + isa;
    try {
      MakeBackend(ParseDevice(device + ":1"));
    } catch (const Error&) {
      continue;
    }
    devices.push_back(device + ":1");
    devices.push_back(device + ":3");
  }
  return devices;
}

inline std::string DeviceTestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == ':') c = '_';
  return name;
}

class OpTest : public ::testing::TestWithParam<std::string> {
 protected:
  OpTest() : backend(MakeBackend(ParseDevice(GetParam()))), random(1) {}

  std::unique_ptr<Backend> backend;
  Random random;
};

#define RC_FOR_ALL_DEVICES(test) \
  INSTANTIATE_TEST_SUITE_P(Devices, test, ::testing::ValuesIn(TestDevices()), DeviceTestName)

/// A batch whose arrays are on the device. Rows are given already resolved, for tests of ops that
/// come after Embed.
class TestBatch {
 public:
  /// Row i belongs to slots[i] at positions[i]; -1 = inactive.
  TestBatch(Backend& backend, const std::vector<int32_t>& positions,
            const std::vector<int32_t>& slots)
      : position_(backend, positions), slot_(backend, slots) {
    batch.num_rows = static_cast<int>(positions.size());
    batch.position = position_.data();
    batch.slot = slot_.data();
  }
  void SetSamples(Backend& backend, const std::vector<int32_t>& rows,
                  const std::vector<int32_t>& slots, const std::vector<int32_t>& forced) {
    sample_row_ = DeviceArray<int32_t>(backend, rows);
    sample_slot_ = DeviceArray<int32_t>(backend, slots);
    sample_forced_ = DeviceArray<int32_t>(backend, forced);
    batch.num_samples = static_cast<int>(rows.size());
    batch.sample_row = sample_row_.data();
    batch.sample_slot = sample_slot_.data();
    batch.sample_forced = sample_forced_.data();
  }

  RaggedBatch batch;

 private:
  DeviceArray<int32_t> position_, slot_, sample_row_, sample_slot_, sample_forced_;
};

inline SlotSampling DefaultSampling() {
  SlotSampling s = {};
  s.temperature = 1;
  s.top_p = 1;
  s.repetition_penalty = 1;
  s.max_length = 1 << 30;
  return s;
}

/// SlotState on the device; slot s owns pages [s * max_pages, (s + 1) * max_pages) in a shuffled
/// order.
class TestSlots {
 public:
  TestSlots(Backend& backend, int num_slots, int max_context, int page_size)
      : last_token_(backend, num_slots, 0),
        length_(backend, num_slots, 0),
        stopped_(backend, num_slots, 0),
        history_(backend, static_cast<size_t>(num_slots) * max_context, 0),
        sampling_(backend, num_slots, DefaultSampling()) {
    state.num_slots = num_slots;
    state.max_context = max_context;
    state.max_pages = (max_context + page_size - 1) / page_size;
    num_pages = num_slots * state.max_pages;
    std::vector<int32_t> pages(num_pages);
    for (int i = 0; i < num_pages; ++i) pages[i] = i;
    std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
    page_table_ = DeviceArray<int32_t>(backend, pages);
    state.last_token = last_token_.data();
    state.length = length_.data();
    state.stopped = stopped_.data();
    state.page_table = page_table_.data();
    state.history = history_.data();
    state.sampling = sampling_.data();
  }

  DeviceArray<int32_t>& last_token() { return last_token_; }
  DeviceArray<int32_t>& length() { return length_; }
  DeviceArray<int32_t>& stopped() { return stopped_; }
  DeviceArray<int32_t>& page_table() { return page_table_; }
  DeviceArray<int32_t>& history() { return history_; }
  DeviceArray<SlotSampling>& sampling() { return sampling_; }

  SlotState state;
  int num_pages = 0;

 private:
  DeviceArray<int32_t> last_token_, length_, stopped_, page_table_, history_;
  DeviceArray<SlotSampling> sampling_;
};

}  // namespace rollcast
