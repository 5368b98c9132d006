// What the op tests share: arrays on a device, random data, and the list of devices that one test
// body is run on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace rollcast {

/// Memory of a backend with `size` elements between two guards, which must be whole when it goes.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Backend& backend, const std::vector<T>& host)
      : backend_(&backend),
        size_(host.size()),
        buffer_(backend.Allocate(host.size() * sizeof(T) + 2 * kGuardBytes)) {
    const std::vector<uint8_t> guard(kGuardBytes, kGuard);
    backend.Upload(buffer_.data(), guard.data(), kGuardBytes);
    backend.Upload(End(), guard.data(), kGuardBytes);
    Set(host);
  }
  DeviceArray(Backend& backend, size_t size, T value)
      : DeviceArray(backend, std::vector<T>(size, value)) {}
  DeviceArray(DeviceArray&&) = default;
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    CheckGuards();
    backend_ = other.backend_;
    size_ = other.size_;
    buffer_ = std::move(other.buffer_);
    return *this;
  }
  ~DeviceArray() { CheckGuards(); }

  void Set(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    backend_->Upload(data(), host.data(), size_ * sizeof(T));
  }
  std::vector<T> Get() const {
    std::vector<T> host(size_);
    backend_->Download(host.data(), data(), size_ * sizeof(T));
    return host;
  }
  T* data() const {
    return buffer_.data() == nullptr
               ? nullptr
               : reinterpret_cast<T*>(buffer_.template as<uint8_t>() + kGuardBytes);
  }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kGuardBytes = 256;  // what the backend aligns memory to
  static constexpr uint8_t kGuard = 0xff;     // NaN in every float type

  uint8_t* End() const { return buffer_.template as<uint8_t>() + kGuardBytes + size_ * sizeof(T); }
  void CheckGuards() const {
    if (buffer_.data() == nullptr) return;
    std::vector<uint8_t> guards(2 * kGuardBytes);
    backend_->Download(guards.data(), buffer_.data(), kGuardBytes);
    backend_->Download(guards.data() + kGuardBytes, End(), kGuardBytes);
    for (size_t i = 0; i < guards.size(); ++i)
      if (guards[i] != kGuard) {
        ADD_FAILURE() << "an array of " << size_ << " elements of " << sizeof(T)
                      << " bytes was written outside of, at byte " << i % kGuardBytes
                      << (i < kGuardBytes ? " of the guard before it" : " after its end");
        return;
      }
  }

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

/// Numbers on a device in one of the float types.
class Numbers {
 public:
  Numbers() = default;
  Numbers(Backend& backend, const std::vector<float>& values, DType dtype)
      : exact(values), dtype_(dtype) {
    std::vector<uint8_t> bytes(values.size() * SizeOf(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
        continue;
      }
      const uint16_t bits = dtype == DType::kBF16 ? ToBFloat16(values[i]) : ToFloat16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
      exact[i] = Wide(bits);
    }
    memory_ = DeviceArray<uint8_t>(backend, bytes);
  }

  std::vector<float> Get() const {
    const std::vector<uint8_t> bytes = memory_.Get();
    std::vector<float> values(bytes.size() / SizeOf(dtype_));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::kF32) {
        std::memcpy(&values[i], &bytes[4 * i], 4);
        continue;
      }
      uint16_t bits;
      std::memcpy(&bits, &bytes[2 * i], 2);
      values[i] = Wide(bits);
    }
    return values;
  }
  void* data(size_t element = 0) const { return memory_.data() + element * SizeOf(dtype_); }
  size_t size() const { return exact.size(); }
  DType dtype() const { return dtype_; }

  std::vector<float> exact;  // what the elements were made to be, rounded to the type

 private:
  float Wide(uint16_t bits) const {
    if (dtype_ != DType::kBF16) return FromFloat16(bits);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }

  DType dtype_ = DType::kF32;
  DeviceArray<uint8_t> memory_;
};

/// A weight on the device: of `dtype` where the backend leaves the choice.
struct Weight : Numbers {
  Weight() = default;
  Weight(Backend& backend, const std::vector<float>& values, Shape shape, DType dtype)
      : Numbers(backend, values, backend.weight_dtype().value_or(dtype)) {
    view = TensorView{data(), this->dtype(), shape};
  }

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

/// Every element within `tolerance` * (1 + |expected|). Where `expected` is NaN the poison must be
/// untouched.
inline ::testing::AssertionResult Near(const std::vector<float>& actual,
                                       const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure()
           << actual.size() << " against " << expected.size() << " elements";
  for (size_t i = 0; i < actual.size(); ++i)
    if (std::isnan(expected[i])
            ? !std::isnan(actual[i])
            : !(std::abs(actual[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i]))))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << actual[i] << ", expected " << expected[i];
  return ::testing::AssertionSuccess();
}

/// Root mean square of the differences within `tolerance` times that of `expected`, and no element
/// off by more than eight times as much. Where `expected` is NaN the poison must be untouched.
inline ::testing::AssertionResult RelativelyNear(const std::vector<float>& actual,
                                                 const std::vector<double>& expected,
                                                 double tolerance) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure()
           << actual.size() << " against " << expected.size() << " elements";
  double squares = 0, error = 0, count = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) != std::isnan(actual[i]))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << actual[i] << ", expected " << expected[i];
    if (std::isnan(expected[i])) continue;
    squares += expected[i] * expected[i];
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    ++count;
  }
  if (!(error <= tolerance * tolerance * squares))
    return ::testing::AssertionFailure()
           << "relative error " << std::sqrt(error / squares) << ", at most " << tolerance;
  const double scale = std::sqrt(squares / std::max(count, 1.0));
  for (size_t i = 0; i < actual.size(); ++i)
    if (std::abs(actual[i] - expected[i]) > 8 * tolerance * (scale + std::abs(expected[i])))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << actual[i] << ", expected " << expected[i];
  return ::testing::AssertionSuccess();
}

/// "cpu:avx2:3" = device, instruction set, threads; "cuda" and "cuda:1" as they are.
inline BackendOptions ParseDevice(const std::string& text) {
  BackendOptions options;
  const size_t a = text.find(':');
  options.device = text.substr(0, a);
  if (a == std::string::npos) return options;
  if (options.device == "cuda") {
    options.device = text;
    return options;
  }
  const size_t b = text.find(':', a + 1);
  options.isa = text.substr(a + 1, b - a - 1);
  if (b != std::string::npos) options.threads = std::stoi(text.substr(b + 1));
  return options;
}

/// Variants of the CPU backend that this machine has, plain code on one thread first.
inline std::vector<std::string> CpuDevices() {
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

/// `cpu`, and the GPU that ROLLCAST_TEST_DEVICE names, if it names one.
inline std::vector<std::string> WithGpu(std::vector<std::string> cpu) {
  const char* named = std::getenv("ROLLCAST_TEST_DEVICE");
  if (named != nullptr && std::string(named).rfind("cuda", 0) == 0) cpu.push_back(named);
  return cpu;
}

inline std::string DeviceName(std::string name) {
  for (char& c : name)
    if (c == ':') c = '_';
  return name;
}
inline std::string DeviceTestName(const ::testing::TestParamInfo<std::string>& info) {
  return DeviceName(info.param);
}

/// What "equal" means on a device. `kRounded`: of results that pass through bfloat16 on their way,
/// `kSummed`: of float32 sums of exact products.
enum class Precision { kRounded, kSummed };

inline ::testing::AssertionResult Matches(const Backend& backend, const std::vector<float>& actual,
                                          const std::vector<double>& expected, double tolerance,
                                          Precision precision) {
  if (backend.activation_dtype() == DType::kF32) return Near(actual, expected, tolerance);
  return RelativelyNear(actual, expected, precision == Precision::kRounded ? 6e-3 : 3e-5);
}

class OpTest : public ::testing::TestWithParam<std::string> {
 protected:
  OpTest() : backend(MakeBackend(ParseDevice(GetParam()))), random(1) {}

  bool exact() const { return backend->activation_dtype() == DType::kF32; }
  /// What passes between ops, with random or given content, or poisoned.
  Numbers Activations(const std::vector<float>& values) const {
    return Numbers(*backend, values, backend->activation_dtype());
  }
  Numbers Poisoned(size_t size) const { return Activations(std::vector<float>(size, kPoison)); }

  std::unique_ptr<Backend> backend;
  Random random;
};

#define RC_FOR_ALL_DEVICES(test)                                                      \
  INSTANTIATE_TEST_SUITE_P(Devices, test, ::testing::ValuesIn(WithGpu(CpuDevices())), \
                           DeviceTestName)

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

/// A batch of segments that Embed has resolved, for ops that read more of it than its rows.
class SegmentBatch {
 public:
  struct Segment {
    int slot;  // -1 = padding
    int first_position;
    int rows;
  };

  SegmentBatch(Backend& backend, TestSlots& slots, const std::vector<Segment>& segments)
      : table_(backend, {1.0f}, {1, 1}, DType::kF32) {
    std::vector<int32_t> begin = {0}, segment_slot, token;
    for (const Segment& s : segments) {
      segment_slot.push_back(s.slot);
      for (int i = 0; i < s.rows; ++i) {
        token.push_back(0);
        positions.push_back(s.slot < 0 ? -1 : s.first_position + i);
        row_slots.push_back(s.slot);
      }
      begin.push_back(static_cast<int32_t>(token.size()));
      batch.max_segment_rows = std::max(batch.max_segment_rows, s.rows);
    }
    const auto put = [&](const std::vector<int32_t>& v) {
      arrays_.emplace_back(backend, v);
      return arrays_.back().data();
    };
    batch.num_rows = static_cast<int>(token.size());
    batch.num_segments = static_cast<int>(segments.size());
    batch.segment_begin = put(begin);
    batch.segment_slot = put(segment_slot);
    batch.row_token = put(token);
    batch.row_position = put(positions);
    batch.position = put(std::vector<int32_t>(token.size(), 12345));
    batch.slot = put(std::vector<int32_t>(token.size(), 12345));
    hidden_ = DeviceArray<float>(backend, token.size(), kPoison);
    backend.Embed({&batch, &slots.state, table_.view, 0, 1.0f, hidden_.data()});
  }

  RaggedBatch batch;
  std::vector<int32_t> positions, row_slots;  // [rows] as Embed resolves them

 private:
  Weight table_;
  DeviceArray<float> hidden_;
  std::vector<DeviceArray<int32_t>> arrays_;
};

}  // namespace rollcast
