#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "engine/json_text.h"
#include "kernels/check.h"
#include "rollout/hdf5.h"
#include "rollout/trajectory_columns.h"
#include "rollout/trajectory_file.h"

namespace rollcast {

namespace {

[[noreturn]] void FailAt(const Hdf5File& file, const std::string& dataset, int64_t row,
                         const std::string& what) {
  throw Error(StrCat(file.path().string(), ": ", dataset, "[", row, "] ", what,
                     "; the file is damaged or was not written by rollcast"));
}

/// Elements of a dataset of one dimension.
int64_t Length(const Hdf5File& file, const std::string& dataset) {
  const std::vector<uint64_t> shape = file.Shape(dataset);
  if (shape.size() != 1 || shape[0] > static_cast<uint64_t>(INT64_MAX))
    throw Error(StrCat(file.path().string(), ": ", dataset, " has ", shape.size(),
                       " dimensions, expected one"));
  return static_cast<int64_t>(shape[0]);
}

std::vector<std::string> ParseTexts(const Hdf5File& file, const std::string& dataset, int64_t row,
                                    const std::string& text) try {
  return ParseJson<nlohmann::json>(text, dataset).get<std::vector<std::string>>();
} catch (const std::exception&) {
  FailAt(file, dataset, row, StrCat("is ", text.substr(0, 40), ", expected a JSON list of texts"));
}

// Reads one column of a group into one member of each row. The members are reached through the
// visitor again, by position, because a list of columns is a list of code and not of data.
template <class Row, class VisitRow>
std::vector<Row> ReadColumns(const Hdf5File& file, const std::string& group, int64_t begin,
                             int64_t count, const VisitRow& visit_row) {
  std::vector<Row> rows(static_cast<size_t>(count));
  Row shape;
  size_t column = 0;
  visit_row(shape, [&](const char* name, auto& member) {
    using T = std::remove_reference_t<decltype(member)>;
    const std::string dataset = group + "/" + name;
    const auto for_each = [&](const auto& set) {
      for (size_t i = 0; i < rows.size(); ++i) {
        size_t at = 0;
        visit_row(rows[i], [&](const char*, auto& target) {
          if constexpr (std::is_same_v<std::remove_reference_t<decltype(target)>, T>)
            if (at == column) set(i, target);
          ++at;
        });
      }
    };
    const auto numbers = [&]<class Stored>(Stored) {
      std::vector<Stored> values(rows.size());
      file.Read<Stored>(dataset, static_cast<uint64_t>(begin), values);
      return values;
    };
    const auto size = static_cast<uint64_t>(count), first = static_cast<uint64_t>(begin);
    if constexpr (std::is_same_v<T, std::string>) {
      std::vector<std::string> values = file.ReadText(dataset, first, size);
      for_each([&](size_t i, T& target) { target = std::move(values[i]); });
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      const std::vector<std::string> values = file.ReadText(dataset, first, size);
      for_each([&](size_t i, T& target) {
        if (!values[i].empty())
          target = ParseTexts(file, dataset, begin + static_cast<int64_t>(i), values[i]);
      });
    } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
      std::vector<T> values = file.ReadInt32Lists(dataset, first, size);
      for_each([&](size_t i, T& target) { target = std::move(values[i]); });
    } else if constexpr (std::is_same_v<T, bool>) {
      const auto values = numbers(int8_t{});
      for_each([&](size_t i, T& target) { target = values[i] != 0; });
    } else if constexpr (std::is_enum_v<T>) {
      const auto values = numbers(uint8_t{});
      for_each([&](size_t i, T& target) {
        if (values[i] >= EnumCount(T{}))
          FailAt(file, dataset, begin + static_cast<int64_t>(i),
                 StrCat("is ", int{values[i]}, ", expected less than ", EnumCount(T{})));
        target = static_cast<T>(values[i]);
      });
    } else {
      const auto values = numbers(T{});
      for_each([&](size_t i, T& target) { target = values[i]; });
    }
    ++column;
  });
  return rows;
}

template <class T>
std::vector<T> ReadFlat(const Hdf5File& file, const char* name, int64_t offset, int32_t length) {
  std::vector<T> values(static_cast<size_t>(length));
  file.Read<T>(name, static_cast<uint64_t>(offset), values);
  return values;
}

}  // namespace

TrajectoryReader::TrajectoryReader(const std::filesystem::path& path)
    : file_(std::make_unique<Hdf5File>(Hdf5File::Open(path))) {
  const std::string is_not = StrCat(path.string(), ": is not a rollcast trajectory file: ");
  const std::optional<int64_t> schema = file_->IntAttribute("schema_version");
  if (!schema) throw Error(is_not + "it has no attribute schema_version");
  if (*schema != kTrajectorySchemaVersion)
    throw Error(StrCat(path.string(), ": has schema_version ", *schema, "; this build reads ",
                       kTrajectorySchemaVersion));
  for (const char* name : {"tokens", "trajectories/group_id", "weight_updates/version"})
    if (!file_->Has(name)) throw Error(StrCat(is_not, "it has no dataset ", name));
  info_.config = file_->TextAttribute("config").value_or("");
  info_.rollcast_version = file_->TextAttribute("rollcast_version").value_or("");
  info_.model_digest = file_->UIntAttribute("model_digest").value_or(0);
  info_.manifest_digest = file_->UIntAttribute("manifest_digest").value_or(0);
  closed_ = file_->FlagAttribute("closed").value_or(false);
  end_ = file_->TextAttribute("end").value_or("");
  rows_ = Length(*file_, "trajectories/group_id");
}

TrajectoryReader::~TrajectoryReader() = default;
TrajectoryReader::TrajectoryReader(TrajectoryReader&&) noexcept = default;

std::vector<TrajectoryRow> TrajectoryReader::ReadRows(int64_t begin, int64_t count) const {
  RC_CHECK(begin >= 0 && count >= 0 && count <= rows_ - begin, count, " rows from ", begin, " of ",
           rows_);
  std::vector<TrajectoryRow> rows = ReadColumns<TrajectoryRow>(
      *file_, "trajectories", begin, count,
      [](auto& row, auto&& visit) { VisitTrajectoryColumns(row, visit); });
  const int64_t tokens = Length(*file_, "tokens");
  const auto check = [&](size_t i, const char* what, int64_t offset, int32_t length) {
    if (length < 0 || offset < 0 || length > tokens || offset > tokens - length)
      FailAt(*file_, StrCat("trajectories/", what, "_offset"), begin + static_cast<int64_t>(i),
             StrCat("is ", offset, " and ", what, "_length ", length, ", beyond the ", tokens,
                    " elements of tokens"));
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    check(i, "prompt", rows[i].prompt_offset, rows[i].prompt_length);
    check(i, "completion", rows[i].completion_offset, rows[i].completion_length);
  }
  return rows;
}

void TrajectoryReader::ReadTokens(TrajectoryRow& row) const {
  Trajectory& t = row.trajectory;
  t.prompt = ReadFlat<int32_t>(*file_, "tokens", row.prompt_offset, row.prompt_length);
  const int64_t offset = row.completion_offset;
  const int32_t length = row.completion_length;
  t.completion = ReadFlat<int32_t>(*file_, "tokens", offset, length);
  t.logprob = ReadFlat<float>(*file_, "logprob", offset, length);
  t.logprob_raw = ReadFlat<float>(*file_, "logprob_raw", offset, length);
  t.logprob_filtered = ReadFlat<float>(*file_, "logprob_filtered", offset, length);
  bool filtered = false;
  for (const float value : t.logprob_filtered) filtered |= !std::isnan(value);
  if (!filtered) t.logprob_filtered.clear();
  t.spans.clear();
  for (const PolicyVersion version :
       ReadFlat<PolicyVersion>(*file_, "policy_version", offset, length))
    AppendToSpans(t.spans, version);
}

Trajectory TrajectoryReader::Read(int64_t row) const {
  std::vector<TrajectoryRow> rows = ReadRows(row, 1);
  ReadTokens(rows[0]);
  return std::move(rows[0].trajectory);
}

std::vector<SyncReport> TrajectoryReader::ReadUpdates() const {
  const int64_t count = Length(*file_, "weight_updates/version");
  return ReadColumns<SyncReport>(
      *file_, "weight_updates", 0, count,
      [](auto& report, auto&& visit) { VisitUpdateColumns(report, visit); });
}

}  // namespace rollcast
