#include "rollout/trajectory_file.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "kernels/check.h"
#include "rollout/hdf5_appender.h"
#include "rollout/trajectory_columns.h"

namespace rollcast {

namespace {

using hdf5::ElementType;
using Column = Hdf5Appender::Column;

constexpr uint32_t kRowChunk = 1024, kFlatChunk = 16384;
constexpr size_t kMaxSharedPrompts = 4096;

// The flat datasets come first in the file's list of columns, in this order.
enum Flat : size_t { kTokens, kLogprob, kLogprobRaw, kLogprobFiltered, kPolicyVersion, kFlats };

constexpr const char* kLogprobDefinition =
    "float32, natural logarithm. logprob: of the sampled token under softmax(logits / temperature) "
    "before top-k, top-p and min-p, at temperature 0 equal to logprob_raw. logprob_raw: under "
    "softmax(logits). logprob_filtered: under the distribution drawn from (after penalties, stop "
    "ids ruled out up to min_tokens, top-k, top-p and min-p), at temperature 0 equal to "
    "logprob_raw, NaN where there was none of these.";

// What a trajectory's row is made of, by reference.
struct RowView {
  const Trajectory& trajectory;
  PolicyVersion version_first, version_last;
  int64_t prompt_offset, completion_offset;
  int32_t prompt_length, completion_length;
};

template <class Enum>
std::vector<std::string> Names(Enum last) {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) names.push_back(Name(static_cast<Enum>(i)));
  return names;
}

struct Describe {
  std::string group;
  std::vector<Column>& columns;

  template <class T>
  void operator()(const char* name, const T&) const {
    Column column;
    column.name = group + "/" + name;
    column.chunk_elements = kRowChunk;
    if constexpr (std::is_same_v<T, bool>) column.type = ElementType::kBool;
    if constexpr (std::is_same_v<T, int32_t>) column.type = ElementType::kInt32;
    if constexpr (std::is_same_v<T, int64_t>) column.type = ElementType::kInt64;
    if constexpr (std::is_same_v<T, uint64_t>) column.type = ElementType::kUInt64;
    if constexpr (std::is_same_v<T, float>) column.type = ElementType::kFloat32;
    if constexpr (std::is_same_v<T, double>) column.type = ElementType::kFloat64;
    if constexpr (std::is_same_v<T, std::vector<int32_t>>) column.type = ElementType::kInt32List;
    if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>>)
      column.type = ElementType::kText;
    if constexpr (std::is_same_v<T, Outcome>) {
      column.type = ElementType::kEnum;
      column.enum_names = Names(Outcome::kFailed);
    }
    if constexpr (std::is_same_v<T, FinishReason>) {
      column.type = ElementType::kEnum;
      column.enum_names = Names(FinishReason::kAbort);
    }
    columns.push_back(std::move(column));
  }
};

struct Store {
  Hdf5Appender& file;
  size_t column;

  template <class T>
  void operator()(const char*, const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      file.AppendText(column, value);
    } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
      file.AppendInt32List(column, value);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      // HDF5 lists of texts are beyond h5py; a JSON array is not.
      using nlohmann::json;
      file.AppendText(
          column, value.empty() ? std::string()
                                : json(value).dump(-1, ' ', false, json::error_handler_t::replace));
    } else {
      file.AppendOne(column, value);
    }
    ++column;
  }
};

std::vector<Column> AllColumns() {
  std::vector<Column> columns(kFlats);
  columns[kTokens].name = "tokens";
  columns[kLogprob].name = "logprob";
  columns[kLogprobRaw].name = "logprob_raw";
  columns[kLogprobFiltered].name = "logprob_filtered";
  columns[kPolicyVersion].name = "policy_version";
  for (Column& column : columns) {
    column.type = ElementType::kFloat32;
    column.chunk_elements = kFlatChunk;
  }
  columns[kTokens].type = ElementType::kInt32;
  columns[kPolicyVersion].type = ElementType::kInt64;
  const TrajectoryRow row;
  VisitTrajectoryColumns(row, Describe{"trajectories", columns});
  const SyncReport report;
  VisitUpdateColumns(report, Describe{"weight_updates", columns});
  return columns;
}

// Behind the flat datasets and those of /trajectories.
size_t FirstUpdateColumn() {
  const TrajectoryRow row;
  size_t column = kFlats;
  VisitTrajectoryColumns(row, [&](const char*, const auto&) { ++column; });
  return column;
}

void CheckWhole(const Trajectory& t) {
  const size_t length = t.completion.size();
  const std::string who = StrCat("prompt ", t.prompt_id, " sample ", t.sample_index);
  RC_CHECK_EQ(t.logprob.size(), length, who);
  RC_CHECK_EQ(t.logprob_raw.size(), length, who);
  if (!t.logprob_filtered.empty()) RC_CHECK_EQ(t.logprob_filtered.size(), length, who);
  int32_t end = 0;
  for (const PolicySpan& span : t.spans) {
    RC_CHECK_EQ(span.begin, end, who);
    RC_CHECK_LT(span.begin, span.end, who);
    end = span.end;
  }
  RC_CHECK_EQ(static_cast<size_t>(end), length, who, ": spans must cover the completion");
}

template <class T>
void Fill(Hdf5Appender& file, size_t column, size_t count, T value) {
  file.Append(column, std::span<const T>(std::vector<T>(count, value)));
}

}  // namespace

TrajectoryFile::TrajectoryFile(const std::filesystem::path& path, const TrajectoryFileInfo& info) {
  file_ = std::make_unique<Hdf5Appender>(
      path, info.overwrite,
      std::vector<Hdf5Appender::Attribute>{
          {"schema_version", kTrajectorySchemaVersion},
          {"rollcast_version",
           info.rollcast_version.empty() ? std::string(ROLLCAST_VERSION) : info.rollcast_version},
          {"config", info.config},
          {"model_digest", info.model_digest},
          {"manifest_digest", info.manifest_digest},
          {"logprob_definition", std::string(kLogprobDefinition)},
          {"closed", false},
          {"end", std::string()},
      },
      AllColumns());
  locked_ = file_->locked();
}

TrajectoryFile::~TrajectoryFile() {
  try {
    Close(RunEnd::Failed("its writer left without saying why"));
  } catch (...) {
    // Said to those who call Close or Append.
  }
}

int64_t TrajectoryFile::PlacePrompt(const Trajectory& t) {
  const auto store = [&] {
    const auto offset = static_cast<int64_t>(file_->size(kTokens));
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    file_->Append(kTokens, std::span<const int32_t>(t.prompt));
    for (const Flat flat : {kLogprob, kLogprobRaw, kLogprobFiltered})
      Fill(*file_, flat, t.prompt.size(), kNaN);
    Fill(*file_, kPolicyVersion, t.prompt.size(), PolicyVersion{-1});
    return offset;
  };
  if (t.group_id == 0 || t.group_size <= 1) return store();
  const auto found = shared_prompts_.find(t.group_id);
  if (found != shared_prompts_.end() && found->second.tokens == t.prompt) {
    const int64_t offset = found->second.offset;
    if (--found->second.rows_left == 0) shared_prompts_.erase(found);
    return offset;
  }
  // Groups that never come to an end must not add up; their prompts are then stored again.
  if (shared_prompts_.size() >= kMaxSharedPrompts) shared_prompts_.clear();
  const int64_t offset = store();
  shared_prompts_[t.group_id] = {t.prompt, offset, t.group_size - 1};
  return offset;
}

void TrajectoryFile::Append(std::span<const Trajectory> trajectories) {
  RC_CHECK(file_ != nullptr, "the trajectory file has been closed");
  for (const Trajectory& t : trajectories) CheckWhole(t);
  for (const Trajectory& t : trajectories) {
    RowView row{t, t.version_first(), t.version_last(), 0, 0, 0, 0};
    row.prompt_offset = PlacePrompt(t);
    row.prompt_length = static_cast<int32_t>(t.prompt.size());
    row.completion_offset = static_cast<int64_t>(file_->size(kTokens));
    row.completion_length = static_cast<int32_t>(t.completion.size());
    file_->Append(kTokens, std::span<const int32_t>(t.completion));
    file_->Append(kLogprob, std::span<const float>(t.logprob));
    file_->Append(kLogprobRaw, std::span<const float>(t.logprob_raw));
    if (t.logprob_filtered.empty()) {
      Fill(*file_, kLogprobFiltered, t.completion.size(), std::numeric_limits<float>::quiet_NaN());
    } else {
      file_->Append(kLogprobFiltered, std::span<const float>(t.logprob_filtered));
    }
    for (const PolicySpan& span : t.spans)
      Fill(*file_, kPolicyVersion, static_cast<size_t>(span.end - span.begin), span.version);
    VisitTrajectoryColumns(row, Store{*file_, kFlats});
  }
  file_->Commit();
}

void TrajectoryFile::AppendUpdate(const SyncReport& report) {
  RC_CHECK(file_ != nullptr, "the trajectory file has been closed");
  VisitUpdateColumns(report, Store{*file_, FirstUpdateColumn()});
  file_->Commit();
}

void TrajectoryFile::Flush() {
  RC_CHECK(file_ != nullptr, "the trajectory file has been closed");
  file_->Sync();
}

void TrajectoryFile::Close(const RunEnd& end) {
  if (file_ == nullptr) return;
  const std::unique_ptr<Hdf5Appender> file = std::move(file_);
  closed_rows_ = static_cast<int64_t>(file->size(kFlats));
  file->SetAttribute("closed", true);
  file->SetAttribute("end", end.text);
  file->Close();
}

int64_t TrajectoryFile::rows() const {
  return file_ == nullptr ? closed_rows_ : static_cast<int64_t>(file_->size(kFlats));
}

}  // namespace rollcast
