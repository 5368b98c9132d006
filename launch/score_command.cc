#include "launch/score_command.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/input_stream.h"
#include "engine/json_text.h"
#include "launch/log.h"
#include "launch/output_path.h"
#include "launch/progress.h"
#include "launch/rollout_process.h"
#include "launch/unfinished_file.h"
#include "rollout/hdf5.h"

namespace rollcast {

namespace {

struct Row {
  std::string place;  // file:line
  std::vector<int32_t> tokens;
};

std::vector<int32_t> ParseTokens(const std::string& line, const std::string& file, size_t number) {
  const auto row = ParseJson<nlohmann::json>(line, file, number);
  const std::string place = fmt::format("{}:{}", file, number);
  if (!row.is_object())
    throw Error(fmt::format("{}: is {}, expected an object", place, JsonKind(row)));
  for (const auto& [key, value] : row.items())
    if (key != "tokens" && key != "id")
      throw Error(
          fmt::format("{}: unknown key \"{}\"; a row has \"tokens\", and may have an "
                      "\"id\", which results do not need: they are in the rows' order",
                      place, key));
  const auto tokens = row.find("tokens");
  if (tokens == row.end()) throw Error(fmt::format("{}: has no \"tokens\"", place));
  if (!tokens->is_array())
    throw Error(fmt::format("{}: \"tokens\" is {}, expected an array", place, JsonKind(*tokens)));
  std::vector<int32_t> ids;
  for (const nlohmann::json& token : *tokens) {
    const bool fits = token.is_number_integer() && token.get<double>() >= 0 &&
                      token.get<double>() <= std::numeric_limits<int32_t>::max();
    if (!fits)
      throw Error(fmt::format("{}: \"tokens\" holds {}, expected token ids", place, token.dump()));
    ids.push_back(token.get<int32_t>());
  }
  return ids;
}

std::vector<Row> ReadRows(const std::filesystem::path& path) {
  InputStream in(path);
  std::vector<Row> rows;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string place = fmt::format("{}:{}", path.string(), number);
    std::vector<int32_t> tokens = ParseTokens(line, path.string(), number);
    if (tokens.size() < 2)
      throw Error(fmt::format("{}: has {} tokens, expected at least 2", place, tokens.size()));
    rows.push_back({std::move(place), std::move(tokens)});
  }
  if (rows.empty())
    throw Error(
        fmt::format("{}: has no rows; expected {{\"tokens\": [...]}} lines", path.string()));
  return rows;
}

// The file under a name beside its own, renamed when it is complete.
class ScoreFile {
 public:
  explicit ScoreFile(const std::filesystem::path& path)
      : unfinished_(path), file_(Hdf5File::Create(unfinished_.written(), /*overwrite=*/true)) {}

  void Write(size_t row, const Completion& completion) {
    const std::string group = fmt::format("row_{}", row);
    file_.Write<float>(group + "/logprob_raw", completion.logprob_raw,
                       {completion.logprob_raw.size()});
    if (completion.logits.empty()) return;
    const size_t tokens = completion.prompt.size();
    file_.Write<float>(group + "/logits", completion.logits,
                       {tokens, completion.logits.size() / tokens}, /*compress=*/false);
  }
  void Commit() {
    file_.Close();
    unfinished_.Commit();
  }

 private:
  UnfinishedFile unfinished_;  // removes it also when its creation fails halfway
  Hdf5File file_;
};

}  // namespace

int RunScore(const Config& config, const ScoreOptions& options) {
  OpenLog(config.log, "score");
  const std::vector<Row> rows = ReadRows(options.input);
  PrepareOutput(options.output, options.overwrite, options.input);
  ScoreFile file(options.output);
  Config of_engine = config;
  of_engine.rollout.tokenizer.clear();
  LoadedModel model = LoadedModel::Load(of_engine);
  Engine& engine = *model.engine;

  Progress progress;
  size_t submitted = 0, done = 0;
  std::vector<Completion> finished;
  while (done < rows.size()) {
    // Logits of a row take T * vocab floats, so no more rows than decode together are under way.
    for (; submitted < rows.size() &&
           submitted - done < static_cast<size_t>(engine.config().max_running);
         ++submitted) {
      Request request;
      request.id = submitted;
      request.prompt = rows[submitted].tokens;
      request.score_only = true;
      request.want_logits = options.logits;
      const std::string why = engine.Submit(std::move(request));
      if (!why.empty()) throw Error(fmt::format("{}: {}", rows[submitted].place, why));
    }
    finished.clear();
    engine.Step(finished);
    for (const Completion& completion : finished) {
      if (completion.state != CompletionState::kScored)
        throw Error(fmt::format("{}: {}", rows.at(completion.id).place, completion.message));
      file.Write(completion.id, completion);
      ++done;
    }
    progress.Show(fmt::format("score: {} of {} rows", done, rows.size()));
  }
  file.Commit();
  return 0;
}

}  // namespace rollcast
